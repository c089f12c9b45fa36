"""The way into a script's interpreter: copied as `sitecustomize.py` into a folder on its `PYTHONPATH`.

Python imports it first. It restores path and environment, runs the user's own `sitecustomize`, keeps files
from being changed, and waits for `import torch`: only then is the rest loaded, from the parent's folder.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback
from typing import Any

VARIABLE = "PERFKIT_WATCH"


def enter() -> None:
    """Prepares this process to be watched; processes that it starts are not, but must leave files alone."""
    fields = json.loads(os.environ.pop(VARIABLE))
    paths = os.environ.pop("PYTHONPATH")
    folder, _, others = paths.partition(os.pathsep)
    sys.path.remove(folder)
    if others:
        os.environ["PYTHONPATH"] = others
    if spec := importlib.machinery.PathFinder.find_spec("sitecustomize"):  # the user's own
        _load(spec)
    _load(importlib.util.spec_from_file_location("perfkit", fields["package"]))
    from perfkit.additions.guard import landlock
    from perfkit.additions.guard.outputs import Outputs
    from perfkit.additions.shared.settings import Settings

    settings = Settings(**fields)
    outputs = Outputs(settings.scratch, settings.is_guarded, settings.more)
    sys.addaudithook(outputs.hook)
    if settings.is_guarded:
        landlock.restrict([os.path.dirname(settings.scratch), *outputs.writable])
    if settings.address or not settings.is_guarded:  # a Python that this one starts enters here, too
        os.environ |= {VARIABLE: settings.handed_on().to_json(), "PYTHONPATH": paths}
    if settings.watcher:
        sys.path[:] = map(outputs.place, sys.path)  # the project may be installed, or on PYTHONPATH
        sys.meta_path.insert(0, _AfterTorch(settings, outputs))


def _load(spec: Any) -> None:
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


class _AfterTorch:
    """Loads the watcher once torch is imported."""

    def __init__(self, settings: Any, outputs: Any) -> None:
        self._settings, self._outputs = settings, outputs

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of torch, which a library may ask for before anybody imports it."""
        if name != "torch":
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        spec: Any = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        if spec:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                from perfkit import lookup

                lookup.load(self._settings.watcher)(self._settings, self._outputs)

            spec.loader.exec_module = exec_module
        return spec


if VARIABLE in os.environ and __name__ == "sitecustomize":
    try:
        enter()
    except BaseException as problem:  # Python itself would go on, and run the script without a guard
        traceback.print_exception(problem)
        os._exit(70)
