"""The verdict in words: what the numbers show, and no more. The golden pages of the terminal hold more of it."""

from typing import Any

import msgspec
import pytest

from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.results.pairing import Pairing
from perfkit.results.run import Mechanism, Raw, Run
from perfkit.show import sentences, units
from tests.unit.show.fake_runs import again, disturbed, session

SAME = [100.0, 100.4, 99.8, 100.1, 99.9]
UNKNOWN = "neither waiting for data nor computing explains it"


def make(
    factor: float = 1, wait: float = 0.0, ceiling: float = 102, rates: list[float] | None = None,
    before: Run | None = None, **more: Any,
) -> Run:  # fmt: skip
    rates = rates or [factor * rate for rate in SAME]
    raw = Raw(
        step_s=[1.0] * 4, data_wait_s=[wait] * 4, block_samples_per_s=rates,
        ceiling_samples_per_s=[ceiling] * len(rates),
    )  # fmt: skip
    other = before.raw.block_samples_per_s if before else []
    pairing = Pairing(rates, other, against="a", role="previous", interleaved=True)
    return Run(
        id="b" if before else "a", session="s", created="", stage="it", workload="w", device="cpu", recipe={},
        raw=raw, pairings=[pairing] if before else [], **more,
    )  # fmt: skip


def verdict(after: dict[str, Any], before: dict[str, Any], bottleneck: str = "none") -> str:
    first = make(**before)
    stage = next((name for name, card in OPTIMIZATIONS.items() if card.bottleneck == bottleneck), "it")
    return sentences.verdict_sentence(
        msgspec.structs.replace(make(before=first, **after), stage=stage, title="it"), first
    )


GB = "peak_memory_bytes"


@pytest.mark.parametrize(
    ("after", "before", "bottleneck", "text"),
    [
        ({"factor": 2, "wait": 0.05, "ceiling": 250}, {"wait": 0.5, "ceiling": 250}, "data",
         "it: 2.00× (2.00–2.00) faster; waiting for data fell from 50% to 5% of the step."),
        ({"factor": 0.8, "ceiling": 80}, {"ceiling": 100}, "device",
         "it: 1.25× (1.25–1.25) slower; on data that is already on the device, the step is 1.25× slower."),
        ({"factor": 2, "wait": 0.2, "ceiling": 260}, {"wait": 0.01}, "device",
         "it: 2.00× (2.00–2.00) faster; waiting for data rose from 1% to 20% of the step; on data that is "
         "already on the device, the step is 2.55× faster."),
        ({"wait": 0.03}, {"wait": 0.03}, "data",
         "it: no measurable difference, 1.00× (1.00–1.00); an effect over 1% would show; only 3% of the step "
         "waits for data, so there was little to gain."),
        ({"wait": 0.8}, {"wait": 0.79}, "device",
         "it: no measurable difference, 1.00× (1.00–1.00); an effect over 1% would show; 79% of the step "
         "waits for data, which faster computing cannot reduce."),
        ({"factor": 1.5, "ceiling": 200, GB: 11_300_000_000}, {"ceiling": 200, GB: 1_050_000_000}, "host",
         f"it: 1.50× (1.50–1.50) faster; {UNKNOWN}; peak memory rose from 1.05 GB to 11.3 GB."),
        ({"rates": [200.0, 210.0]}, {"rates": [100.0, 100.0]}, "none", "it: too few rounds, 2.05× ("),
    ],
)  # fmt: skip
def test_a_verdict_names_what_changed_and_how_well_it_is_known(
    after: dict[str, Any], before: dict[str, Any], bottleneck: str, text: str
) -> None:
    assert verdict(after, before, bottleneck).startswith(text)


def test_a_ceiling_that_only_wavers_explains_nothing() -> None:
    first, after = make(), make(1.5, before=make())
    raw = msgspec.structs.replace(after.raw, ceiling_samples_per_s=[60.0, 300.0, 90.0, 210.0, 150.0])
    assert UNKNOWN in sentences.verdict_sentence(msgspec.structs.replace(after, raw=raw), first)


def test_a_disturbed_stage_says_so_and_the_remedy_stands_above_all() -> None:
    _, stage, *_ = sentences.verdicts(disturbed(session()))
    assert stage == "data loading: disturbed, 1.53× (1.51–1.56); measure again."
    (notice,) = sentences.notices(disturbed(session()))
    assert notice == (
        "Disturbed (!): other programs took 37% of the cores (chrome (process 7) 37%): close them, then run "
        "it again. This concerns every stage."
    )
    two = [*disturbed(session()[:2]), *session()[3:5]]
    assert "This concerns baseline, data loading." in sentences.notices(two)[0]
    assert sentences.notices(again(session())) == []


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [("not_applicable", "needs CUDA", "it: n/a: needs CUDA."),
     ("failed", "Out of memory.", "it: failed: Out of memory."),
     ("cancelled", "", "it: cancelled: no reason was given.")],
)  # fmt: skip
def test_no_number_no_verdict(status: str, reason: str, text: str) -> None:
    run = msgspec.structs.replace(make(), status=status, reason=reason)
    assert sentences.verdict_sentence(run) == text


def test_a_switch_that_is_not_in_effect_overrules_the_number() -> None:
    run = make(2, before=make(), mechanism=[Mechanism("amp", False, "logits are float32")])
    text = sentences.verdict_sentence(run)
    assert (
        text
        == "it: the switch is not in effect (amp: logits are float32), so the numbers say nothing about it."
    )


def test_text_from_outside_is_one_clean_line() -> None:
    assert units.clean("a\x00b\n c\u202e") == "a b c"
    assert units.clean("abcdef", 4) == "abc…"
