"""Runs scripts in processes that are forked from one that has imported torch: seconds less for each."""

import atexit
import itertools
import json
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec

from perfkit import lookup
from perfkit.additions.referee.behaviour import WITNESS, Behaviour
from perfkit.additions.scripts import entry, watched
from tests.support import forks
from tests.support.settings import settings

ROOT = Path(__file__).parents[2]


def fork(monkeypatch):
    """Has perfkit watch scripts in forked processes; what differs is their beginning alone."""
    monkeypatch.setattr(watched, "subprocess", forking())


def forking():
    """What takes the place of `subprocess` there."""
    return SimpleNamespace(**{**vars(subprocess), "Popen": _started})


def _started(words, *, env, **how):
    """A forked process, unless the C library is to read a variable that is not set here: it does so at its start."""
    if any(name.startswith("MALLOC_") and os.environ.get(name) != value for name, value in env.items()):
        return subprocess.Popen(words, env=env, **how)
    return _forked(words, env=env, prepare=_watch, **how)


def _forked(words, stdin, stdout, stderr, cwd, env, prepare=None, pass_fds=(), **_):
    """What `subprocess.Popen` starts: `python train.py …`, `python -m train …`, or what torchrun starts."""
    files = [*(stream.fileno() for stream in (stdin, stdout, stderr)), *pass_fds]
    return forks.Forked(_run, files, words, str(cwd), env, prepare)


def _run(files, words, folder, environment, prepare):
    """Does in a forked process what Python does with these words."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(environment)
    if files[3:]:  # the line to its parent has another number here
        told = json.loads(os.environ[entry.VARIABLE]) | {"line": files[3]}
        os.environ[entry.VARIABLE] = json.dumps(told)
    os.chdir(folder)
    tempfile.tempdir = None
    torch = sys.modules["torch"]  # it has read the variable where the server began
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    multiprocessing.set_start_method("fork", force=True)  # of loader workers: they find the script in memory
    sys.path[:] = [path for path in sys.path if path not in ("", str(ROOT))]
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [folder, *own]
    code = 0
    try:
        if prepare:
            prepare()
        _go_on(words)
    except SystemExit as end:
        code = end.code or 0
    except BaseException as problem:
        sys.excepthook(type(problem), problem, problem.__traceback__)
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _go_on(words):
    """Runs the script that is named after a program, as each rank of it does if the program is torchrun."""
    script = _in_ranks(words) if Path(words[0]).name == "torchrun" else words[1:]
    if script[0] == "-m":
        sys.argv = script[1:]
        runpy.run_module(script[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = script
        runpy.run_path(script[0], run_name="__main__")


def _in_ranks(words):
    """The words of the script, in each of the ranks that are forked here; this process waits for their end."""
    script = next(at for at, word in enumerate(words) if word.endswith(".py"))
    given = dict(itertools.pairwise(words[:script]))
    count, nodes = int(given["--nproc-per-node"]), int(given.get("--nnodes", 1))
    first = count * int(given.get("--node-rank", 0))
    port = given.get("--master-port")
    if port is None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {"WORLD_SIZE": str(count * nodes), "LOCAL_WORLD_SIZE": str(count)}
    ranks = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(first + rank), "LOCAL_RANK": str(rank)}
            return words[script:]
        ranks.append(child)
    codes = [os.waitpid(child, 0)[1] for child in ranks]
    os._exit(1 if any(codes) else 0)


def _watch():
    """What `entry` does before a script, and once it has imported torch."""
    entry.enter()
    watcher = sys.meta_path.pop(0)
    lookup.load(watcher._settings.watcher)(watcher._settings, watcher._outputs)


def run(file, prepare=None):
    """What a script prints, as `python file` in its folder does; perfkit's own folder is not on its path."""
    out, err = file.with_suffix(".out"), file.with_suffix(".err")
    with open(os.devnull, "rb") as given, out.open("wb") as output, err.open("wb") as errors:
        process = _forked(
            ["python", file.name], given, output, errors, file.parent, dict(os.environ), prepare
        )
        code = process.wait()
    assert code == 0, err.read_text()
    return out.read_text()


def behaviour(file, steps=40):
    """What the first steps of a script do."""
    run(file, partial(_observe, file, steps))
    return msgspec.json.decode(file.with_suffix(".json").read_bytes(), type=Behaviour)


def _observe(file, steps):
    from perfkit.additions.guard.outputs import Outputs
    from perfkit.additions.referee.witness import behaviour as behaviour_of
    from perfkit.additions.scripts.questions import ParentConnection, listen
    from perfkit.additions.scripts.script import Callback

    class Observer(Callback):
        def on_steps(self, ended):
            if questions.subject.steps.count >= steps:
                file.with_suffix(".json").write_bytes(msgspec.json.encode(behaviour_of(questions)))
                sys.exit()

    about = settings(program=file.name, observers=[WITNESS])
    questions = listen(about, Outputs(str(file.parent)), ParentConnection())  # nobody asks
    questions.subject.set_callbacks(*questions.subject.callbacks, Observer())
