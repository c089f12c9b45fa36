"""The verdict in words: what the numbers show, and no more."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.results.run import Mechanism, Pairing, Raw, Run
from perfkit.show import sentences
from tests.unit.show.fake_runs import again, disturbed, session

SAME = [100.0, 100.4, 99.8, 100.1, 99.9]


def make(
    rates: list[float],
    wait: float,
    ceiling: float,
    before: Run | None = None,
    memory: int | None = None,
    **more: Any,
) -> Run:
    raw = Raw(
        step_s=[1.0] * 4, data_wait_s=[wait] * 4, block_samples_per_s=rates,
        ceiling_samples_per_s=[ceiling] * len(rates),
    )  # fmt: skip
    pairings = []
    if before:
        other = before.raw.block_samples_per_s
        pairing = Pairing(
            own_samples_per_s=rates, other_samples_per_s=other, against="a", role="previous", interleaved=True
        )
        pairings = [pairing]
    return Run(
        id="b" if before else "a", session="s", created="", stage="it", workload="w", device="cpu", recipe={},
        raw=raw, pairings=pairings, peak_memory_bytes=memory, **more,
    )  # fmt: skip


def said(after: dict[str, Any], before: dict[str, Any], bottleneck: str) -> str:
    first = make(**before)
    stage = next((name for name, one in OPTIMIZATIONS.items() if one.bottleneck == bottleneck), "it")
    run = msgspec.structs.replace(make(before=first, **after), stage=stage, title="it")
    return sentences.verdict_sentence(run, first)


def plain(factor: float = 1, wait: float = 0.0, ceiling: float = 102, **more: Any) -> dict[str, Any]:
    return {"rates": [factor * rate for rate in SAME], "wait": wait, "ceiling": ceiling, **more}


def test_data_was_not_the_problem() -> None:
    text = said(plain(wait=0.03), plain(wait=0.03), "data")
    assert text.startswith("it: no measurable difference here (1.00×, 1.00–1.00): the step does not wait")
    assert "(3% of it), so faster data would save next to nothing" in text


def test_low_efficiency_forbids_that_conclusion() -> None:
    text = said(plain(wait=0.03, ceiling=200), plain(wait=0.03, ceiling=200), "data")
    assert "next to nothing" not in text
    assert "though it runs at 50% of its ceiling" in text


def test_waiting_fell() -> None:
    text = said(plain(2, wait=0.05, ceiling=250), plain(wait=0.5, ceiling=250), "data")
    assert text == "it: faster here (2.00×, 2.00–2.00): waiting for data fell from 50% to 5% of the step."


def test_a_faster_model_behind_a_slow_loader() -> None:
    text = said(plain(wait=0.8, ceiling=700), plain(wait=0.79, ceiling=500), "device")
    assert "it computes 1.40× as fast" in text
    assert "79% of the step is waiting for data, which faster computing cannot reduce" in text


def test_what_speaks_against_the_verdict_is_marked() -> None:
    text = said(plain(2, wait=0.2, ceiling=260), plain(wait=0.01), "device")
    assert "it computes 2.55× as fast; though waiting for data rose from 1% to 20%" in text


def test_no_cause_is_invented() -> None:
    assert "neither the wait for data nor the ceiling explains it" in said(
        plain(1.5, ceiling=200), plain(ceiling=200), "host"
    )
    assert "neither the wait for data nor the ceiling explains it" in said(plain(0.5), plain(), "none")
    alone = sentences.verdict_sentence(make(before=make(**plain()), **plain(1.5, ceiling=200)))
    assert alone == "it: faster here (1.50×, 1.50–1.50)."


def test_a_wide_interval_asks_for_more() -> None:
    wild = plain() | {"rates": [60.0, 160.0, 95.0, 120.0, 80.0]}
    assert "an effect over 48% would show; measure longer." in said(wild, plain(), "host")


def power(**pairing: Any) -> str:
    """The sentence of an undecided stage whose rounds scatter by about 8%."""
    first = make(**plain())
    run = make(before=first, **plain() | {"rates": [92.0, 108.0, 95.0, 105.0, 100.0]})
    pairings = [msgspec.structs.replace(run.pairings[0], **pairing)]
    return sentences.verdict_sentence(msgspec.structs.replace(run, pairings=pairings), first)


def test_an_undecided_stage_says_how_much_more_would_show_five_percent() -> None:
    text = power(seconds=60.0)
    assert re.search(r"an effect over \d+% would show; about \d+ more minutes? would show 5%\.", text)
    assert "equal processes differ by that much" in power(seconds=60.0, noise=0.08)
    assert "measure longer" in power()
    quiet = said(plain(), plain(), "none")
    assert quiet.endswith("an effect over 1% would show.")


def test_the_baseline_again_says_how_far_equal_processes_differ() -> None:
    text = sentences.verdicts(again(session()))[-1]
    assert re.fullmatch(
        r"baseline \(again\): the same recipe against itself, 1\.00\d× \(0\.\d+–1\.\d+\): "
        r"equal processes differ by this much here\.", text,
    )  # fmt: skip


def test_a_disturbed_stage_says_so_and_what_to_do() -> None:
    first, stage, *_ = sentences.verdicts(disturbed(session()))
    said_so = "other programs took 37% of the cores (chrome (process 7) 37%): close them, then run it again"
    assert first.startswith("baseline: disturbed: others took 37% of the cores; 16.3")
    assert stage == "data loading: disturbed (1.53×, 1.51–1.56): others took 37% of the cores."
    (notice,) = sentences.notices(disturbed(session()))
    assert notice.startswith(f"Disturbed (!): {said_so}. The numbers of every stage")
    two = [*disturbed(session()[:2]), *session()[3:5]]
    assert "The numbers of baseline, data loading rest" in sentences.notices(two)[0]
    assert sentences.notices(session()) == []


def test_too_few_rounds_are_said_to_be_so() -> None:
    text = said(plain() | {"rates": [200.0, 210.0]}, plain() | {"rates": [100.0, 100.0]}, "none")
    assert "too few rounds" in text
    assert "2 rounds give no verdict: measure longer" in text


def test_a_ceiling_that_only_wavers_is_no_evidence() -> None:
    first, after = make(**plain()), make(before=make(**plain()), **plain(1.5))
    raw = msgspec.structs.replace(after.raw, ceiling_samples_per_s=[60.0, 300.0, 90.0, 210.0, 150.0])
    text = sentences.verdict_sentence(msgspec.structs.replace(after, raw=raw), first)
    assert "neither the wait for data nor the ceiling explains it" in text


def test_a_rate_above_its_ceiling_is_doubted() -> None:
    text = sentences.verdict_sentence(make(**plain(ceiling=50)))
    assert "ceiling came out below its rate, which cannot be: the machine was not steady" in text


def test_memory_is_told_where_it_moved() -> None:
    text = said(plain(memory=11_300_000_000), plain(memory=1_050_000_000), "device")
    assert text.endswith("peak memory rose from 1.05 GB to 11.3 GB.")


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [("not_applicable", "needs CUDA", "it: not measured here: needs CUDA."),
     ("failed", "Out of memory.", "it: failed: Out of memory."),
     ("cancelled", "", "it: cancelled: no reason was given.")],
)  # fmt: skip
def test_no_number_no_verdict(status: str, reason: str, text: str) -> None:
    run = msgspec.structs.replace(make(**plain()), status=status, reason=reason)
    assert sentences.verdict_sentence(run) == text


def test_a_mechanism_that_is_off_overrules_the_number() -> None:
    run = make(before=make(**plain()), **plain(2), mechanism=[Mechanism("amp", False, "logits are float32")])
    text = sentences.verdict_sentence(run)
    assert "its mechanism is not in effect (amp: logits are float32)" in text
    assert "faster" not in text


def test_the_baseline_tells_where_it_stands() -> None:
    text = sentences.verdict_sentence(make(**plain(wait=0.4, ceiling=200)))
    assert "40% of the step is waiting for data" in text
    assert "50% of what the model could do if data were free" in text


def test_clean() -> None:
    assert sentences.clean("a\x00b\n c\u202e") == "a b c"
    assert sentences.clean("abcdef", 4) == "abc…"
