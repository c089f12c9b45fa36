"""The lanes of a step: what a run holds, on one axis, with the result in words above them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.results import recordings
from perfkit.results.run import Pairing, Run
from perfkit.show import figures, figures_step, results
from tests.unit.show.fake_runs import session


def lane(run: Run, name: str) -> list[tuple[float, float, str]]:
    found = {one.name: one.pieces for one in figures_step.lanes(run)}
    return [(start, seconds, look[0]) for start, seconds, look in found[name]]


def test_the_loop_waits_then_computes_and_fills_the_step() -> None:
    run = session()[0]
    step, share = results.step_s(run), results.wait_share(run)
    assert step
    assert share
    (_, wait, first), (start, rest, then) = lane(run, "loop")
    assert (first, then) == ("waits for data", "computes")
    assert start == wait == pytest.approx(step.value * share)
    assert wait + rest == pytest.approx(step.value)
    assert lane(run, "loader") == [(0.0, wait, "loads data")]


def test_workers_load_at_the_same_time_all_of_it_only_where_the_loop_waits_for_them() -> None:
    behind, ahead = session(gpu=True)[1], session(gpu=True)[2]
    assert lane(behind, "1 worker")[0][2] == "loads data"
    assert lane(ahead, "2 workers")[0][2] == "workers load ahead"
    assert "how long workers load" in figures_step.unmeasured([ahead])
    assert "how long workers load" not in figures_step.unmeasured([behind])


def test_the_device_has_a_lane_where_something_is_known_of_it() -> None:
    simulated = recordings.find("sim-v100").runs[0]
    assert simulated.simulated
    (first, rest, _), (start, seconds, _) = lane(simulated, "device")  # they end in the next step
    assert first == 0.0
    assert rest + seconds == pytest.approx(simulated.simulated.kernel_s)
    assert results.step_s(simulated).value == pytest.approx(start + seconds)  # type: ignore[union-attr]
    assert [one.name for one in figures_step.lanes(session()[0])] == ["loader", "loop"]


@pytest.mark.parametrize("ahead", [False, True])
def test_copies_of_a_simulated_step_come_before_its_kernels_or_beside_the_last_ones(ahead: bool) -> None:
    run = recordings.find("sim-v100").runs[0]
    known = msgspec.structs.replace(run.simulated, copy_s=0.002, copies_ahead=ahead)
    run = msgspec.structs.replace(run, simulated=known)
    ((start, seconds, _),) = lane(run, "copies")
    kernels = lane(run, "device")[-1][0]
    assert seconds == 0.002
    assert start == lane(run, "loop")[0][1], "no batch is copied before it is there"
    assert kernels == pytest.approx(start if ahead else start + seconds)
    assert "when copies run" in figures_step.unmeasured([run])


def test_all_are_drawn_for_as_many_samples() -> None:
    small, large = (run for run in session() if run.stage in ("data_loading", "batch_size"))
    ax = figures.view("step_time", [small, large]).draw().axes[0]
    assert "128 samples" in ax.get_xlabel()
    ends = {round(patch.get_x() + patch.get_width()) for patch in ax.patches}  # type: ignore[attr-defined]
    assert round(4 * results.step_s(small).value) in ends  # type: ignore[union-attr]
    assert "4 steps, each" in ax.texts[0].get_text()


def test_the_headline_is_the_last_comparison_in_words() -> None:
    runs = session()
    assert figures.headline(runs).title.startswith("2.91× faster (2.88–2.93) · AMP against baseline")
    assert figures.headline(runs[:1]).title == "baseline: 1.97 s (1.94–2.00) a step"
    assert figures.headline([]).nothing


@pytest.mark.parametrize(
    ("factor", "rounds", "words"),
    [(1.0, 8, "No measurable difference: an effect over 1% would show"), (0.5, 8, "× as fast, slower"),
     (1.5, 2, "No verdict from so few rounds")],
)  # fmt: skip
def test_every_verdict_has_its_headline(factor: float, rounds: int, words: str) -> None:
    before, after = session()[:2]
    rates = [16.0 + 0.01 * (at % 2) for at in range(rounds)]
    own = [factor * rate for rate in reversed(rates)]
    pairing = Pairing(own, rates, against=before.id, role="previous", interleaved=True)
    runs = [before, msgspec.structs.replace(after, pairings=[pairing])]
    assert words in figures.headline(runs).title


def test_the_others_leave_out_what_the_headline_shows_already() -> None:
    assert list(figures.others(session())) == ["Every stage", "Throughput", "Memory", "Losses"]
    assert list(figures.others(session()[:2])) == ["Throughput", "Memory", "Losses"]


@given(st.lists(st.floats(1e-4, 10), min_size=3, max_size=30), st.floats(2, 1e5), st.floats(0, 1))
def test_an_outlier_does_not_rule_the_axis(times: list[float], factor: float, share: float) -> None:
    steps = [*times, max(times) * factor]
    run = session()[0]
    raw = msgspec.structs.replace(
        run.raw, step_s=steps, data_wait_s=[share * step for step in steps], warmup_steps=0
    )
    with_outlier = msgspec.structs.replace(run, raw=raw)
    ax = figures.view("step_time", [with_outlier]).draw().axes[0]
    scale = 1e3 if "ms" in ax.get_xlabel() else 1.0
    assert ax.get_xlim()[1] / scale <= 1.3 * float(np.median(steps))
