import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.errors import StoreError
from perfkit.recipe import Recipe
from perfkit.results import run as runs
from perfkit.results.run import SCHEMA, Mechanism, Pairing, Raw, Run, decode, document, encode, slug, summary


def run(**changes: Any) -> Run:
    known: dict[str, Any] = {
        "id": "r0",
        "session": "s0",
        "created": "2026-11-20T12:00:00+00:00",
        "stage": "pinning",
        "workload": "my.module:Toy",
        "device": "cpu",
        "recipe": Recipe().to_dict(),
    }
    return Run(**known | changes)


MEASURED = run(
    raw=Raw(
        step_s=[9.0, 9.0, 0.2, 0.4, 0.3],
        data_wait_s=[8.0, 8.0, 0.1, 0.1, 0.1],
        warmup_steps=2,
        block_samples_per_s=[100.0, 90.0, 110.0],
        ceiling_samples_per_s=[200.0, 90.0, 220.0],
    ),
    mechanism=[Mechanism("workers", True, "2 processes"), Mechanism("amp", True, "logits are bf16")],
    pairings=[
        Pairing(
            [100.0, 90.0, 110.0, 100.0, 100.0],
            [50.0, 45.0, 55.0, 50.0, 50.0],
            against="r1",
            role="previous",
            interleaved=True,
        ),
        Pairing([100.0] * 5, [100.0] * 5, against="r2", role="baseline", interleaved=False),
    ],
)

finite = st.floats(allow_nan=False, allow_infinity=False)
several = st.lists(finite, max_size=5)
anything = st.builds(
    run,
    stage=st.text(),
    seed=st.integers(0, 2**63 - 1),
    options=st.dictionaries(st.text(), st.none() | st.booleans() | finite | st.text(), max_size=3),
    machine=st.dictionaries(st.text(), st.lists(st.integers(-(2**63), 2**63 - 1)), max_size=3),
    raw=st.builds(Raw, step_s=several, data_wait_s=several, warmup_steps=st.integers(0, 9)),
    status=st.sampled_from(["ok", "not_applicable", "failed", "cancelled"]),
    reason=st.text(),
    losses=several,
    compile_s=st.none() | finite,
    peak_memory_bytes=st.none() | st.integers(0, 2**63 - 1),
    facts=st.dictionaries(st.text(), st.text(), max_size=2),
)


# ---------------------------------------------------------------- derived numbers


def test_numbers_are_derived_from_the_raw_values_without_the_warm_up() -> None:
    assert MEASURED.step_s.value == pytest.approx(0.3)  # type: ignore[union-attr]
    assert MEASURED.data_wait_s.value == pytest.approx(0.1)  # type: ignore[union-attr]
    assert MEASURED.data_wait_share == pytest.approx(0.3 / 0.9)
    rate = (100 * 90 * 110) ** (1 / 3)
    assert MEASURED.samples_per_s.value == pytest.approx(rate)  # type: ignore[union-attr]
    assert MEASURED.pipeline_efficiency == pytest.approx((0.5 * 1.0 * 0.5) ** (1 / 3))
    assert MEASURED.ceiling_samples_per_s == pytest.approx(rate / (0.5 * 1.0 * 0.5) ** (1 / 3))


def test_what_was_not_measured_is_none_and_never_zero() -> None:
    empty = run()
    for name in (
        "samples_per_s",
        "step_s",
        "data_wait_s",
        "data_wait_share",
        "ceiling_samples_per_s",
        "pipeline_efficiency",
        "startup_s",
        "compile_s",
        "peak_memory_bytes",
        "batch_bytes_per_sample",
        "h2d_bytes_per_sample",
    ):
        assert getattr(empty, name) is None, name
    assert empty.speedup("previous") is None
    assert run(raw=Raw(step_s=[1.0, 1.0], data_wait_s=[0.5, 0.5], warmup_steps=2)).data_wait_share is None


def test_efficiency_counts_only_rounds_in_which_both_were_measured() -> None:
    raw = Raw(block_samples_per_s=[50.0, 60.0, 10.0], ceiling_samples_per_s=[100.0, 100.0])
    assert run(raw=raw).pipeline_efficiency == pytest.approx((0.5 * 0.6) ** 0.5)


def test_speedups_are_those_of_the_pairings() -> None:
    previous, baseline = MEASURED.speedup("previous"), MEASURED.speedup("baseline")
    assert previous is not None
    assert baseline is not None
    assert (previous.ratio, previous.verdict) == (pytest.approx(2), "faster")
    assert (baseline.ratio, baseline.verdict) == (1.0, "no measurable difference")


# ---------------------------------------------------------------- for --json


def test_a_summary_has_every_name_that_is_promised_as_plain_data() -> None:
    plain = summary(MEASURED)
    assert json.loads(json.dumps(plain)) == plain
    promised = """name recipe status reason samples_per_s step_s data_wait_s data_wait_share
        ceiling_samples_per_s pipeline_efficiency peak_memory_bytes h2d_bytes_per_sample startup_s compile_s
        speedup_vs_previous speedup_vs_baseline mechanism losses warnings raw"""
    assert set(promised.split()) <= set(plain)
    assert set(plain["samples_per_s"]) == {"value", "low", "high"}
    assert set(plain["speedup_vs_previous"]) == {"ratio", "low", "high", "verdict"}
    assert set(plain["mechanism"][0]) == {"switch", "ok", "evidence"}
    assert {"step_s", "data_wait_s", "warmup_steps"} <= set(plain["raw"])


def test_a_document_holds_the_stages_in_their_order() -> None:
    plain = document([run(stage="baseline", machine={"id": "m"}), MEASURED])
    assert {"schema", "machine", "workload", "preset", "stages"} <= set(plain)
    assert [stage["name"] for stage in plain["stages"]] == ["baseline", "pinning"]
    assert plain["machine"] == {"id": "m"}
    json.dumps(plain, allow_nan=False)


# ---------------------------------------------------------------- to text and back


@given(anything)
@settings(max_examples=30)
def test_a_run_survives_its_text_exactly(kept: Run) -> None:
    assert decode(encode(kept)) == kept
    assert decode(encode(kept).decode()) == kept


def test_fields_of_later_versions_of_this_schema_do_no_harm() -> None:
    text = json.dumps(json.loads(encode(MEASURED)) | {"something": "new"})
    assert decode(text) == MEASURED


def test_fields_that_came_later_have_defaults() -> None:
    needed = ("schema", "id", "session", "created", "stage", "workload", "device", "recipe")
    least = {name: value for name, value in json.loads(encode(run())).items() if name in needed}
    assert decode(json.dumps(least)) == run()


def test_a_run_of_another_version_is_refused_with_a_remedy() -> None:
    with pytest.raises(StoreError, match=r"another version of perfkit \(schema 2.*Use that version"):
        decode(json.dumps({"schema": SCHEMA + 1}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "7",
        "{}",
        '{"schema": "one"}',
        '{"schema": null}',
        '{"schema": 1}',
        b"\xff\xfe",
        b'"\xff"',
        "[" * 100_000,
        encode(run())[:-1],
        encode(run()).replace(b'"cpu"', b"7"),
        encode(run()).replace(b'"ok"', b'"splendid"'),
        encode(run(losses=[1.0])).replace(b"[1.0]", b'["many"]'),
    ],
)
def test_what_is_no_run_is_one_message(text: str | bytes) -> None:
    with pytest.raises(StoreError, match="not a run of perfkit"):
        decode(text)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "name"), [("AMP in fp16", "amp-in-fp16"), ("  a/b:c ", "a-b-c"), ("é", ""), ("x" * 3, "xxx")]
)
def test_a_slug_has_letters_digits_and_hyphens_only(text: str, name: str) -> None:
    assert runs.slug is slug
    assert slug(text) == name


def compiled(eager_s: float, compiled_s: float, first_s: float) -> list[Run]:
    def one(name: str, first: float, steady: float, **more: Any) -> Run:
        raw = Raw(step_s=[first, steady, steady], data_wait_s=[0.0] * 3, warmup_steps=1)
        return run(id=name, raw=raw, samples_per_step=8, **more)

    pair = [Pairing([1.0], [1.0], against="eager", role="previous", interleaved=True)]
    return [one("eager", 1.0, eager_s), one("fast", first_s, compiled_s, compile_s=first_s, pairings=pair)]


def test_compiling_pays_after_so_many_steps_or_never() -> None:
    assert runs.break_even_steps(*_last(compiled(0.3, 0.2, 21.0))) == 200
    assert runs.break_even_steps(*_last(compiled(0.2, 0.3, 21.0))) is None
    assert runs.break_even_steps(MEASURED, [MEASURED]) is None
    assert document(compiled(0.3, 0.2, 21.0))["stages"][1]["compile_break_even_steps"] == 200


def _last(found: list[Run]) -> tuple[Run, list[Run]]:
    return found[-1], found
