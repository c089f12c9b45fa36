"""Reading PyTorch profiler traces: columns in, tables out.

    trace = perfkit.trace.load("step.pt.trace.json.gz")   # or a list, one file a rank
    analysis = perfkit.trace.analyse(trace)
    print(analysis.gpu_utilization, analysis.mean_us)

Everything is imported on first use, so `import perfkit.trace` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfkit.trace.analysis import Trace, analyse, load
    from perfkit.trace.difference import TraceComparison, compare
    from perfkit.trace.errors import TraceError
    from perfkit.trace.model import Analysis
    from perfkit.trace.source import Limits
    from perfkit.trace.timeline import Bar, Lane, Lanes, lanes

_HOME = {
    "analysis": ("Trace", "analyse", "load"),
    "difference": ("TraceComparison", "compare"),
    "errors": ("TraceError",),
    "model": ("Analysis",),
    "source": ("Limits",),
    "timeline": ("Bar", "Lane", "Lanes", "lanes"),
}
__all__ = [
    "Analysis", "Bar", "Lane", "Lanes", "Limits", "Trace", "TraceComparison", "TraceError",
    "analyse", "compare", "lanes", "load",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"perfkit.trace.{module}"), name)
    raise AttributeError(f"module 'perfkit.trace' has no attribute '{name}'")
