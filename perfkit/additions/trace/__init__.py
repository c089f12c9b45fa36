"""Reads PyTorch profiler traces: turns a table of events into tables of figures (`analysis.analyse`)."""

COMMANDS = {
    "trace": ("perfkit.additions.trace.command:trace", "Read a profiler trace: where did the time go?"),
    "profile": ("perfkit.additions.trace.command:profile", "Profile steps of a recipe, and read the trace"),
}
NOTEBOOK = {name: f"perfkit.additions.trace.panel:{name}" for name in ("TraceView", "profile")}
PUBLIC = {"profile": "perfkit.additions.trace.profile:profile"}
