"""The capstone of the puzzles: how much of the speed of light a learner's edited script reaches."""

from pathlib import Path

import msgspec

from perfkit.process.child import call
from perfkit.puzzles import folder
from perfkit.results.parity import Check
from perfkit.results.run import Comparison, Run
from perfkit.scripts.launch import Launch
from perfkit.scripts.study import script_plan
from perfkit.studies.compare import Candidate, compare
from perfkit.studies.progress import Progress

BUDGET_S, PRECISION = 30.0, 0.03
LEVERS_S = 120.0
PARTS = (1, 2, 4, 8, 16)
"""Backward passes that a step may have; the slow script's has the most."""
TOLERANCE = 0.02
"""Of the losses, relative to the largest: 16 bits may be used."""


class Score(msgspec.Struct, frozen=True):
    """A script beside the slow one that it was made from, and beside the speed of light."""

    gain: Comparison
    """The script (b) against the slow one (a)."""
    light: Comparison
    """The script (b) against its model on a batch that is already there (a)."""
    losses: Check
    """Whether it still trains the same."""
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
    results = []
    for number, file in enumerate((slow, slow.with_name("capstone_light.py"))):
        plan = script_plan(Launch(str(file)), preset, more=yours)
        sides = Candidate(("slow", "speed of light")[number]), Candidate("yours")
        with progress.part(number, 2):
            results.append(
                compare(*sides, plan, BUDGET_S, PRECISION, pairs=1, ceiling=False, progress=progress)
            )
    gain, light = results
    return Score(gain, light, same_training(gain.b, gain.a), levers)


def same_training(yours: Run, slow: Run) -> Check:
    """Whether each of the first steps has the loss that the slow script has there.

    A step's loss is the sum over its backward passes, as the slow script adds up parts of a batch.
    """
    if yours.samples_per_step != slow.samples_per_step:
        words = f"a step has {yours.samples_per_step} samples and should have {slow.samples_per_step}"
        return Check("losses", False, words)
    expected, evidence = _by_step(slow.losses, PARTS[-1]), ""
    for parts in PARTS:
        pairs = list(zip(_by_step(yours.losses, parts), expected, strict=False))
        allowed = TOLERANCE * max((abs(right) for _, right in pairs), default=0.0)
        wrong = [step for step, (loss, right) in enumerate(pairs) if not abs(loss - right) <= allowed]
        if pairs and not wrong:
            return Check("losses", True, f"The first {len(pairs)} steps have the losses of the slow script")
        if wrong and not evidence:
            loss, right = pairs[wrong[0]]
            evidence = f"step {wrong[0] + 1} has the loss {loss:.4f} and should have {right:.4f}"
    return Check("losses", False, f"It trains differently: {evidence or 'it has no losses to compare'}")


def _by_step(losses: list[float], parts: int) -> list[float]:
    return [sum(losses[at : at + parts]) for at in range(0, len(losses) - parts + 1, parts)]
