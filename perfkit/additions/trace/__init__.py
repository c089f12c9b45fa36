"""Reading PyTorch profiler traces: a table of events in, tables of figures out.

analysis = perfkit.additions.trace.analyse("step.pt.trace.json.gz")
print(analysis.gpu_utilization, analysis.mean_us)
"""

from typing import Any

from perfkit import registry

COMMANDS = {
    "trace": (
        "perfkit.additions.trace.command:trace",
        "Read a trace of PyTorch's profiler: where did the time go?",
    ),
    "profile": (
        "perfkit.additions.trace.command:profile",
        "Profile some steps of a recipe, and read the trace",
    ),
}
NOTEBOOK = {
    "TraceView": "perfkit.additions.trace.panel:TraceView",
    "profile": "perfkit.additions.trace.panel:profile",
}
PUBLIC = {"profile": "perfkit.additions.trace.profile:profile"}
_PUBLIC = {
    "analyse": "perfkit.additions.trace.analysis:analyse",
    "Analysis": "perfkit.additions.trace.model:Analysis",
    "Trace": "perfkit.additions.trace.table:Trace",
    "Bottleneck": "perfkit.additions.trace.model:Bottleneck",
    "new_file": "perfkit.additions.trace.profile:new_file",
    "lanes": "perfkit.additions.trace.timeline:lanes",
    "Lanes": "perfkit.additions.trace.timeline:Lanes",
    "Lane": "perfkit.additions.trace.timeline:Lane",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'perfkit.additions.trace' has no attribute '{name}'")
    return registry.load(_PUBLIC[name])
