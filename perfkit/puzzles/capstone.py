"""The capstone of the puzzles: how much of the speed of light a learner's edited script reaches."""

from pathlib import Path

import msgspec

from perfkit.process.child import call
from perfkit.puzzles import folder
from perfkit.results.parity import Check
from perfkit.results.run import Comparison
from perfkit.scripts.behaviour import Behaviour
from perfkit.scripts.launch import Launch
from perfkit.scripts.referee import same_losses
from perfkit.scripts.study import script_plan
from perfkit.studies.compare import Candidate, compare
from perfkit.studies.sources import Progress

BUDGET_S, PRECISION = 30.0, 0.03
LEVERS_S = 120.0


class Score(msgspec.Struct, frozen=True):
    """A script beside the slow one that it was made from, and beside the speed of light."""

    gain: Comparison
    """The script (b) against the slow one (a)."""
    light: Comparison
    """The script (b) against its model on a batch that is already there (a)."""
    losses: Check
    """Whether each of the first steps has the loss that it has in the slow script."""
    levers: dict[str, bool]
    """Workers, uint8, 16 bits, compile: whether each is in effect."""

    @property
    def points(self) -> float | None:
        """Speed / speed of light, at most 1, times the share of levers; None if it trains differently."""
        if not self.losses.ok:
            return None
        return min(1.0, self.light.ratio.ratio) * sum(self.levers.values()) / len(self.levers)


def slow_script() -> Path:
    """The script that is to be made faster."""
    return folder() / "capstone.py"


def score(script: str | Path, preset: str | None = None, progress: Progress | None = None) -> Score:
    """Measures a script against the slow one and against the speed of light, interleaved, pair by pair.

    Args:
        script: the learner's edited copy.
        preset: how large blocks are.
        progress: follows and stops it.

    Raises:
        PerfkitError: there is no such script, or it fails.
    """
    slow, progress = slow_script(), progress or Progress()
    yours = {"yours": Launch(str(Path(script).absolute()))}
    source = Path(script).read_text(encoding="utf-8")
    levers = call("perfkit.puzzles.judge:levers", source, timeout_s=LEVERS_S, cancelled=progress.cancelled)
    observed: dict[str, Behaviour] = {}
    results = []
    for number, file in enumerate((slow, slow.with_name("capstone_light.py"))):
        plan = script_plan(Launch(str(file)), preset, more=yours, observed=observed)
        sides = Candidate(("slow", "speed of light")[number]), Candidate("yours")
        with progress.part(number, 2):
            results.append(
                compare(*sides, plan, BUDGET_S, PRECISION, pairs=1, ceiling=False, progress=progress)
            )
    gain, light = results
    return Score(gain, light, same_losses(gain, observed), levers)
