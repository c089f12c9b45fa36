"""Scripts that are watched: their samples/s against times taken by hand, and what switches do to them.

    python benchmarks/scripts.py [--steps 30]
    python benchmarks/scripts.py --table [--budget 60]

By hand: the example scripts with one line more, which prints the clock after each step, are watched; both
clocks see the same steps, so that other programs do not matter. Target: within 2%. The table compares each
script with itself under some switches, and verifies the edit of its file: some minutes for each row.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from perfkit.errors import PerfkitError
from perfkit.recipe import Value
from perfkit.scripts import patch_study as patching
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import Observation
from perfkit.scripts.study import losses, script_plan
from perfkit.scripts.watched import WatchedScript
from perfkit.studies import compare as comparing
from perfkit.worker.messages import Trained

SCRIPTS = Path(__file__).parents[1] / "data" / "scripts"
EXAMPLES = {
    "plain_loop.py": (("--images", "3200", "--size", "32"), "            optimizer.step()\n", 32),
    "trainer_style.py": ((), "                self.optimizer.step()\n", 32),
    "module_style.py": (("--signals", "6400"), "                optimizer.step(closure)\n", 64),
}
"""Arguments, the line that ends a step, samples in a step."""
ROWS: tuple[tuple[str, dict[str, Value]], ...] = (
    ("plain_loop.py", {"channels_last": True}),
    ("plain_loop.py", {"workers": 1}),
    ("plain_loop.py", {"amp": "bf16"}),
    ("trainer_style.py", {"optimizer_impl": "fused"}),
    ("trainer_style.py", {"compile": True}),
    ("module_style.py", {"workers": 1}),
    ("module_style.py", {"zero_grad_set_to_none": True}),
)


def by_hand(name: str, steps: int) -> float:
    """Samples/s as watched / as the script's own clock has them, over the same steps."""
    arguments, line, samples = EXAMPLES[name]
    with tempfile.TemporaryDirectory() as folder:
        text = (SCRIPTS / name).read_text(encoding="utf-8")
        assert text.count(line) == 1
        indent = line[: len(line) - len(line.lstrip())]
        stamp = f'{line}{indent}print("STEP", __import__("time").perf_counter(), flush=True)\n'
        Path(folder, name).write_text(text.replace(line, stamp), encoding="utf-8")
        script = WatchedScript(Launch(name, arguments, folder=Path(folder)))
        try:
            script.ask("train", Trained, recipe={}, seed=0, loss_steps=4, warmup_s=2)
            before = len(_stamps(script))
            seen = script.ask("observe", Observation, steps=steps)
            stamps = _stamps(script)[before - 1 :]
        finally:
            script.stop()
    assert not seen.outside, "an epoch ended meanwhile: give the script more data"
    # The clock is read within a step: its first interval began before the block, so that it is left out.
    hand = stamps[2 : steps + 1]
    rate = samples * (len(hand) - 1) / (hand[-1] - hand[0])
    own = seen.block.step_s[2:steps]
    return samples * len(own) / sum(own) / rate


def _stamps(script: WatchedScript) -> list[float]:
    return [float(line.split()[1]) for line in list(script.output) if line.startswith("STEP ")]


def row(name: str, settings: dict[str, Value], budget: float) -> str:
    """One line of the table: script, switches, effect, losses, edit."""
    launch = Launch(name, EXAMPLES[name][0], folder=SCRIPTS)
    title = ", ".join(f"{switch}={value}" for switch, value in settings.items())
    sides = comparing.Candidate("as it is"), comparing.Candidate(title, changes=settings)
    try:
        result = comparing.compare(*sides, script_plan(launch), budget, pairs=1)
        ratio, check = result.ratio, losses(result.a, result.b)
        effect = f"{ratio.ratio:.2f} ({ratio.low:.2f}-{ratio.high:.2f}) {ratio.verdict}"
        edit = patching.make(launch, settings)
        verified = patching.verify(launch, edit, settings, budget / 2).describe()
    except PerfkitError as problem:
        return f"{name} | {title} | {problem}"
    return f"{name} | {title} | {effect} | {check.evidence} | {verified}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of rounds for a row")
    given = parser.parse_args()
    if given.table:
        for name, settings in ROWS:
            print(row(name, settings, given.budget), flush=True)
        shutil.rmtree(SCRIPTS / "__pycache__", ignore_errors=True)
        return
    for name in EXAMPLES:
        print(f"{name}: watched / by hand {by_hand(name, given.steps):.4f} (target 0.98 to 1.02)", flush=True)


if __name__ == "__main__":
    main()
