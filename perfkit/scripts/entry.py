"""The way into a script's interpreter: copied as `sitecustomize.py` into a folder on its `PYTHONPATH`.

Python imports it first. It restores path and environment, runs the user's own `sitecustomize`, sees what is
written, and waits for `import torch`: only then is the rest loaded, from the folder that the parent named.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import Any

VARIABLE = "PERFKIT_WATCH"


def enter() -> None:
    """Prepares this process to be watched; what it starts itself is not."""
    here = os.path.dirname(os.path.abspath(__file__))
    settings = json.loads(os.environ.pop(VARIABLE))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    paths = [path for path in os.environ.pop("PYTHONPATH").split(os.pathsep) if path and path != here]
    if paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec and spec.loader and spec.origin != __file__:  # the user's own, whose place this module took
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    sys.meta_path.insert(0, finder := _AfterTorch(settings))
    from perfkit.scripts.outputs import Outputs

    finder.outputs = Outputs(settings["scratch"])
    sys.addaudithook(finder.outputs.hook)


class _AfterTorch:
    """Loads the watcher once torch is imported, and finds the package `perfkit` for it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._is_waiting = True
        self.outputs: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As the import system asks it; a library may ask for torch before anybody imports it."""
        if name == "torch" and self._is_waiting:
            self._is_waiting = False  # the other finders are asked
            spec = importlib.util.find_spec("torch")
            self._is_waiting = True
            return self._with_watcher(spec)
        if name == "perfkit":
            package = self._settings["package"]
            return importlib.util.spec_from_file_location(
                name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
            )
        return None

    def _with_watcher(self, spec: Any) -> Any:
        if spec is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            self._is_waiting = False
            load(module)
            from perfkit.scripts.questions import Server

            Server(self._settings, self.outputs)

        spec.loader.exec_module = exec_module
        return spec


if VARIABLE in os.environ and __name__ == "sitecustomize":
    enter()
