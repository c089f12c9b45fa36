"""The verdict in words: what the numbers show, and no more. The golden pages of the terminal hold more of it."""

import math

import msgspec
import pytest

from perfkit.results import Ratio, recordings
from perfkit.results.parity import Check, Parity
from perfkit.results.rounds import Pairing
from perfkit.results.run import Run
from perfkit.results.schema import Mechanism, Raw
from perfkit.show import sentences, units
from tests.unit.show.fake_runs import again, disturbed, session

SAME = [100.0, 100.4, 99.8, 100.1, 99.9]


def make(factor=1, wait=0.0, ceiling=102, rates=None, before=None, **more):
    rates = rates or [factor * rate for rate in SAME]
    raw = Raw(
        step_s=[1.0] * 4,
        data_wait_s=[wait] * 4,
        block_samples_per_s=rates,
        ceiling_samples_per_s=[ceiling] * len(rates),
    )
    other = before.raw.block_samples_per_s if before else rates
    pairing = Pairing(rates, other, against="a", role="previous", interleaved=True)
    about = {"session": "s", "created": "", "stage": "it", "workload": "w", "device": "cpu", "recipe": {}}
    pairings = [pairing] if before else []
    return Run(id="b" if before else "a", **about, raw=raw, pairings=pairings, **more)


GB = "peak_memory_bytes"


@pytest.mark.parametrize(
    ("after", "before", "text"),
    [
        ({"factor": 2, "wait": 0.05, "ceiling": 250}, {"wait": 0.5, "ceiling": 250},
         "2.00× (1.87–2.14) as fast; waiting for data fell from 50% to 5% of the step."),
        ({"factor": 0.8, "ceiling": 80}, {"ceiling": 100},
         "0.80× (0.75–0.86) as fast; waiting for data stays at 0% of the step; compute only: 100 → 80.0 samples/s."),
        ({GB: 11_300_000_000}, {GB: 1_050_000_000},
         "undecided, 1.00× (0.93–1.07); more rounds would decide; waiting for data stays at 0% of the step; "
         "peak memory rose from 1.05 GB to 11.3 GB."),
        ({"rates": [200.0, 210.0]}, {"rates": [100.0, 100.0]},
         "undecided, 2.05× (1.86–2.26); more rounds would decide; "),
        ({"status": "not_applicable", "reason": "needs CUDA"}, {}, "n/a: needs CUDA."),
        ({"status": "cancelled"}, {}, "cancelled: no reason was given."),
        ({"factor": 2, "mechanism": [Mechanism("amp", False, "logits are float32")]}, {},
         "the switch is not in effect (amp: logits are float32), so the numbers say nothing about it."),
    ],
)  # fmt: skip
def test_a_verdict_names_what_changed_and_how_well_it_is_known(after, before, text):
    first = make(**before)
    assert sentences.verdict(make(before=first, **after), first).startswith(f"it: {text}")


@pytest.mark.parametrize(("slices", "is_a_reason"), [
    ([455.0, 544.0], False), ([499.0, 420.0], False), ([600.0, 604.0], True),
])  # fmt: skip
def test_compute_only_is_a_reason_only_where_its_few_slices_decide(slices, is_a_reason):
    before = make(ceiling=450)
    raw = msgspec.structs.replace(before.raw, ceiling_samples_per_s=slices)
    now = msgspec.structs.replace(make(before=before), raw=raw)
    assert any("compute only" in reason for reason in sentences.reasons(now, before)) is is_a_reason


def test_the_headline_has_one_form_for_names_of_every_number():
    before = make(title="the plain loop")
    said = [
        sentences.headline([before, make(factor, before=before, title="two workers")]) for factor in (2, 1)
    ]
    assert said[0] == "two workers: 2.00× (1.87–2.14) as fast as the plain loop"
    assert said[1].startswith("two workers: undecided, 1.00× (0.93–1.07) as fast as the plain loop; more")
    assert "predicted 2.07×" in sentences.headline(recordings.find("sim-v100")[:2])


def test_whether_it_trains_the_same_is_a_proof_or_the_losses_or_n_a():
    first, same = make(losses=[2.0, 1.5]), make(before=make(), losses=[2.0, 1.5])
    proof = Parity("it", "bitwise", [Check("losses", True, "equal")], False, {})
    assert sentences.training(same, first, proof) == "Parity: on equal batches it trains bit for bit the same"
    assert sentences.training(same, first) == "First losses: the same (equal bit for bit for the first 2)"
    apart = msgspec.structs.replace(same, losses=[2.0, 1.0])
    assert "which no switch explains" in sentences.training(apart, first)
    small = msgspec.structs.replace(apart, recipe={"scaled_decode": True})
    said = sentences.training(small, first)
    assert said.startswith("First losses: different, because Scaled decoding gives other inputs (differ from")
    assert "n/a" not in said, "they were measured"
    assert sentences.training(same, make()).startswith("First losses: n/a: ")
    older = msgspec.structs.replace(same, recipe={"ranks": 2})
    assert sentences.training(older, first) == "First losses: n/a: unknown switch 'ranks'"
    simulated = recordings.find("sim-v100")
    assert sentences.training(simulated[1], simulated[0]).startswith("First losses: n/a: ")


def test_a_disturbance_is_told_of_the_runs_that_it_concerns():
    assert sentences.notices(again()) == []
    (notice,) = sentences.notices([*disturbed(session()[:2]), *session()[3:5]])
    assert notice.endswith("run it again. Affected: baseline, data loading.")


@pytest.mark.parametrize(
    ("low", "high", "most"),
    [(0.995, 1.086, "8.6%"), (0.942, 1.021, "6.2%"), (0.999, 1.001, "1%"), (0.97, 1.0801, "8.1%")],
)
def test_without_a_difference_the_farther_end_says_how_large_one_may_be(monkeypatch, low, high, most):
    """Half of the interval would say 4% of 0.995 to 1.086, which holds 9%."""
    runs = session()
    ratio = Ratio(math.sqrt(low * high), low, high, "no measurable difference")
    said = f"no measurable difference, {units.ratio(ratio)}; any difference is at most {most}; "
    monkeypatch.setattr(Run, "speedup", lambda run, role: ratio)
    assert said in sentences.verdict(runs[1], runs[0])
