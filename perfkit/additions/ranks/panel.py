"""How a script scales, in a notebook."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfkit import machine
from perfkit.additions.ranks import scaled, scaling
from perfkit.additions.ranks.scaling import Scaling
from perfkit.additions.scripts.watched import Launch
from perfkit.notebook.shown import Shown, with_line


def scale(
    script: str, ranks: Sequence[int] = (1, 2), arguments: Sequence[str] = (), **how: Any
) -> Shown[Scaling]:
    """Trains a script, or one of `data/scripts`, with each number of ranks; `how` as for `scaling.scale`."""
    shipped = machine.shipped(script.removeprefix("data/"))
    path = str(shipped) if shipped.is_file() and not Path(script).exists() else script
    launch, counts = Launch(path, tuple(arguments)), scaling.counts_of(",".join(map(str, ranks)))
    found = with_line(lambda now: scaling.scale(launch, counts, progress=now, **how))
    return Shown(found, scaled.sections(found))
