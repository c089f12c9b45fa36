"""Reading PyTorch profiler traces: a table of events in, tables of figures out.

analysis = perfkit.trace.analyse("step.pt.trace.json.gz")
print(analysis.gpu_utilization, analysis.mean_us)
"""

from typing import Any

from perfkit import additions

COMMANDS = {
    "trace": ("perfkit.trace.command:trace", "Read a trace of PyTorch's profiler: where did the time go?"),
    "profile": ("perfkit.trace.command:profile", "Profile some steps of a recipe, and read the trace"),
}
NOTEBOOK = {"TraceView": "perfkit.trace.panel:TraceView", "profile": "perfkit.trace.panel:profile"}
_PUBLIC = {
    "analyse": "perfkit.trace.analysis:analyse",
    "Analysis": "perfkit.trace.model:Analysis",
    "Trace": "perfkit.trace.table:Trace",
    "Bottleneck": "perfkit.trace.model:Bottleneck",
    "new_file": "perfkit.trace.profile:new_file",
    "lanes": "perfkit.trace.timeline:lanes",
    "Lanes": "perfkit.trace.timeline:Lanes",
    "Lane": "perfkit.trace.timeline:Lane",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'perfkit.trace' has no attribute '{name}'")
    return additions.load(_PUBLIC[name])
