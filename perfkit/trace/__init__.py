"""Reading PyTorch profiler traces: a table of events in, tables of figures out.

analysis = perfkit.trace.analyse("step.pt.trace.json.gz")
print(analysis.gpu_utilization, analysis.mean_us)
"""

import importlib
from typing import Any

COMMANDS = {
    "trace": ("perfkit.trace.command:trace", "Read a trace of PyTorch's profiler: where did the time go?"),
    "profile": ("perfkit.trace.command:profile", "Profile some steps of a recipe, and read the trace."),
}
NOTEBOOK = {"TraceView": "perfkit.trace.panel:TraceView", "profile": "perfkit.trace.panel:profile"}
_PUBLIC = {
    "analyse": "analysis",
    "Analysis": "model",
    "Trace": "table",
    "Bottleneck": "model",
    "lanes": "timeline",
    "Lanes": "timeline",
    "Lane": "timeline",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'perfkit.trace' has no attribute '{name}'")
    return getattr(importlib.import_module(f"perfkit.trace.{_PUBLIC[name]}"), name)
