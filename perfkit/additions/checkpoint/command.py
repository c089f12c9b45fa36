"""`perfkit checkpoint`."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from perfkit.additions.checkpoint.codes import verify
from perfkit.cli.options import OutputOptions
from perfkit.show.document import Bullets, Content, Table


def checkpoint(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="a file with lines NAME CODE")],
    output: OutputOptions,
) -> None:
    """Checks a list of codes that `pk.checkpoint("02")` printed: who is done, and with which ratio.

    Finds mistyped codes, and runs that two people claim. It does not protect against forgery. The exit code
    is 1 if some code does not count.
    """
    entries = [*verify(file.read_text(encoding="utf-8-sig", errors="replace").splitlines())]
    good = sorted((entry for entry in entries if not entry.fault), key=lambda entry: entry.chapter)
    faults = [f"{entry.name}: {entry.fault}" for entry in entries if entry.fault]
    contents: list[Content] = [Table(("name", "chapter", "ratio"), [entry[:3] for entry in good])]
    if faults:
        contents += ["These do not count:", Bullets(faults)]
    contents.append(f"Codes that count: {len(good)} of {len(entries)}.")
    output.deliver("checkpoints", contents, msgspec.to_builtins(entries), verdict=1 if faults else 0)
