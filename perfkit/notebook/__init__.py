"""What people use in a notebook. It holds no measuring code; everything else works without this package."""

from typing import Any

from perfkit import lookup, registry
from perfkit.errors import PerfkitError

_CORE = {
    "LadderPanel": "perfkit.notebook.ladder:LadderPanel",
    "RecipePanel": "perfkit.notebook.ladder:RecipePanel",
    "Shown": "perfkit.notebook.shown:Shown",
    "StagePanel": "perfkit.notebook.stage:StagePanel",
    "kept": "perfkit.notebook.stage:kept",
    "training_loop": "perfkit.notebook.shown:training_loop",
    "use": "perfkit.notebook.ladder:use",
}
_OF_PANELS = {"ipywidgets", "IPython", "anywidget", "traitlets", "matplotlib"}


def __dir__() -> list[str]:
    return sorted({*_CORE, *registry.table("NOTEBOOK")})


def __getattr__(name: str) -> Any:
    reference = {**registry.table("NOTEBOOK"), **_CORE}.get(name)
    if reference is None:
        raise AttributeError(f"perfkit.notebook has no '{name}'. It has {', '.join(__dir__())}")
    try:
        return lookup.load(reference)
    except ModuleNotFoundError as problem:
        if problem.name not in _OF_PANELS:
            raise
        remedy = "Panels need it: pip install jupyterlab ipywidgets anywidget matplotlib"
        raise PerfkitError(f"{problem.name} is missing", remedy) from problem
