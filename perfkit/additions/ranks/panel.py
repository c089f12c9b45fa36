"""How a script scales, in a notebook."""

from collections.abc import Sequence
from typing import Any

from perfkit.additions.ranks import scaled, scaling, watching
from perfkit.additions.ranks.scaling import Scaling
from perfkit.additions.ranks.watching import RanksReport
from perfkit.additions.scripts.watched import own_or_shipped
from perfkit.notebook.shown import Shown, with_line
from perfkit.studies.sources import Progress


def scale(
    script: str, ranks: Sequence[int] = (1, 2), arguments: Sequence[str] = (), **how: Any
) -> Shown[Scaling]:
    """Trains a script, or one of `data/scripts`, with each number of ranks; `how` as for `scaling.scale`."""
    launch, counts = own_or_shipped(script, arguments), scaling.counts_of(",".join(map(str, ranks)))
    result = with_line(lambda progress: scaling.scale(launch, counts, progress=progress, **how))
    return Shown(result, scaled.sections(result))


def watch_ranks(script: str, ranks: int = 2, arguments: Sequence[str] = (), **how: Any) -> Shown[RanksReport]:
    """Watches the ranks of a script: who is late, and where; `how` as for `watching.watch_launch`."""
    launch = scaling.torchrun(own_or_shipped(script, arguments), ranks)

    def watch(progress: Progress) -> RanksReport:
        with watching.alone(launch, progress):
            return watching.watch_launch(launch, progress, **how)

    report = with_line(watch)
    return Shown(report, report.sections())
