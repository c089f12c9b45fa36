"""Puts the double of CUDA into every Python process that has this folder on its PYTHONPATH, once it imports torch."""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class AfterTorch:
    """Installs the double after `import torch`."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        # Not through every finder: one that wraps what it is given, as perfkit's own, would wrap it twice.
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        plain = spec.loader.exec_module

        def exec_module(module):
            # Torch has none of the lines that are noted, and its import makes millions of calls.
            tracing = sys.gettrace()
            sys.settrace(None)
            plain(module)
            sys.settrace(tracing)
            double = load("perfkit_double", HERE.parent / "double.py")
            double.stays = double.installed()
            double.stays.__enter__()

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, AfterTorch())
if "TESTS_CUDA_LINES" in os.environ:
    load("perfkit_cuda_lines", HERE.parent / "cuda_lines.py").trace()
