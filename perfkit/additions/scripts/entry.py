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
    settings = json.loads(os.environ.pop(VARIABLE))
    here, _, others = os.environ.pop("PYTHONPATH").partition(os.pathsep)
    if others:
        os.environ["PYTHONPATH"] = others
    sys.path.remove(here)
    if spec := importlib.machinery.PathFinder.find_spec("sitecustomize"):  # the user's own
        _load(spec)
    _load(importlib.util.spec_from_file_location("perfkit", settings["package"]))
    from perfkit.additions.scripts.outputs import Outputs

    outputs = Outputs(settings["scratch"])
    sys.path[:] = map(outputs.place, sys.path)  # the project may be installed, or on PYTHONPATH
    sys.addaudithook(outputs.hook)
    sys.meta_path.insert(0, _AfterTorch(settings, outputs))


def _load(spec: Any) -> None:
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


class _AfterTorch:
    """Loads the watcher once torch is imported."""

    def __init__(self, settings: dict[str, Any], outputs: Any) -> None:
        self._settings, self._outputs = settings, outputs

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As the import system asks it; a library may ask for torch before anybody imports it."""
        if name != "torch":
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        spec: Any = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        if spec:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                from perfkit.additions.scripts.questions import Questions

                Questions(self._settings, self._outputs)

            spec.loader.exec_module = exec_module
        return spec


if VARIABLE in os.environ and __name__ == "sitecustomize":
    enter()
