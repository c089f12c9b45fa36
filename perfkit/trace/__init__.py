"""Reading PyTorch profiler traces: columns in, tables out.

trace = perfkit.trace.load("step.pt.trace.json.gz")   # or a list, one file per rank
analysis = perfkit.trace.analyse(trace)
print(analysis.gpu_utilization, analysis.mean_us)
"""

from perfkit.errors import TraceError
from perfkit.trace.analysis import analyse
from perfkit.trace.diagnosis import Bottleneck, diagnose
from perfkit.trace.difference import TraceComparison, compare
from perfkit.trace.model import Analysis, Bar, Lane, Lanes
from perfkit.trace.rank import Trace, load
from perfkit.trace.source import Limits
from perfkit.trace.timeline import lanes

__all__ = [
    "Analysis", "Bar", "Bottleneck", "Lane", "Lanes", "Limits", "Trace", "TraceComparison", "TraceError",
    "analyse", "compare", "diagnose", "lanes", "load",
]  # fmt: skip
