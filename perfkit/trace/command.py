"""The commands that profile a recipe and read traces."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from perfkit import trace as traces
from perfkit.cli.options import Output, Stage, check_writable, progress
from perfkit.show import inside
from perfkit.show.document import Section
from perfkit.studies import inspect
from perfkit.studies.sources import ProfilerOptions
from perfkit.trace import profile as profiling


def profile(
    training: Stage,
    output: Output,
    steps: Annotated[int, typer.Option(min=1, max=100, help="steps to record")] = 3,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="also the Python frames around each call (slow)")
    ] = False,
    syncs: Annotated[
        bool, typer.Option("--syncs", help="also each copy and wait between host and device, by line")
    ] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="also the device's roofs, and what shapes reach of them")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="write the trace: FILE.json or FILE.json.gz")
    ] = None,
) -> None:
    """Profiles some steps of a recipe in a process of its own, and says where the time went."""
    check_writable(out)
    how = ProfilerOptions(active=steps, stacks=stacks)
    where = training.look()
    result = profiling.profile(profiler=how, out=out, **where)
    sections = result.sections()
    document = msgspec.to_builtins(result.analysis)
    if syncs:
        waits = inspect.syncs(**where)
        sections.append(Section("Copies and waits by line", inside.syncs(waits)))
        document["syncs"] = msgspec.to_builtins(waits)
    if kernels:
        roofs = inspect.kernels(**where)
        sections.append(Section("What the device can do", inside.kernels(roofs)))
        document["kernels"] = msgspec.to_builtins(roofs)
    output.show("profile", [*sections, result.describe()], document)


def trace(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="*.pt.trace.json[.gz], one a rank, or a folder"),
    ],
    output: Output,
) -> None:
    """Reads a PyTorch profiler trace and says where the time went."""
    with progress() as follow:
        view = profiling.Profile(traces.load(files, follow.share))
    title = f"trace {', '.join(path.name for path in files)}"
    output.show(title, view.sections(), msgspec.to_builtins(view.analysis))
