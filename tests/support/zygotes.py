"""Fewer processes that import torch: that takes a core 3 s for each zygote."""

import os
import subprocess
from types import SimpleNamespace

from perfkit.process import zygote
from perfkit.recipe import Recipe
from tests.support import forks

SET = Recipe(wait_policy="passive", allocator="keep").environment()
"""What stages set before a process starts: where it is set anyway, all of a kernel's children have one zygote."""


def forking():
    """What takes the place of `subprocess` in `zygote`: zygotes are forked, unless a library would be set otherwise."""
    return SimpleNamespace(**{**vars(subprocess), "Popen": _started})


def _started(command, *, env, pass_fds, **how):
    if forks.is_alike(env):
        return forks.Forked(_serve, pass_fds, env)
    return subprocess.Popen(command, env=env, pass_fds=pass_fds, **how)


def _serve(files, environment):
    """Does in a forked process what Python does with a zygote's program."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(environment)
    zygote.serve(*files)
