"""The commands that profile a recipe and read traces."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from perfkit.additions.trace import profile as profiling
from perfkit.additions.trace import ranks
from perfkit.cli.options import Out, OutputOptions, RecipeOptions, StageName, progress

_FILE = "*.pt.trace.json[.gz], a folder or archive with one of each rank, or recorded:NAME"


def profile(
    training: RecipeOptions,
    output: OutputOptions,
    stage: StageName = None,
    steps: Annotated[int, typer.Option(min=1, max=100, help="steps to record")] = 3,
    stacks: Annotated[bool, typer.Option("--stacks", help="also record Python frames (slow)")] = False,
    out: Out = None,
) -> None:
    """Profiles some steps of a recipe in a new process, and says where the time went."""
    output.check_files(out)
    where = training.where()
    with progress() as now:
        result = profiling.profile(recipe=stage, steps=steps, stacks=stacks, out=out, progress=now, **where)
    output.deliver("profile", result.sections(), msgspec.to_builtins(result.analysis))


def trace(file: Annotated[Path, typer.Argument(metavar="FILE", help=_FILE)], output: OutputOptions) -> None:
    """Reads a PyTorch profiler trace and says where the time went."""
    with progress() as follow:
        result = profiling.Profile(ranks.read(file, follow.share))
    output.deliver(f"trace {file.name}", result.sections(), msgspec.to_builtins(result.analysis))
