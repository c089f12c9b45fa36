"""Runs: what is derived from raw values, alone and in pairs; their text, and text that is none."""

import json
import math

import msgspec
import pytest

from perfkit.errors import StoreError
from perfkit.results.comparison import Comparison
from perfkit.results.documents import document, read
from perfkit.results.rounds import Pairing, Rounds, pooled
from perfkit.results.run import Run, continued, with_rate_of
from perfkit.results.schema import Mechanism, Raw, Simulated
from perfkit.results.stats import Spread


def run(run_id="r0", **changes):
    """A run with the fewest fields."""
    known = {
        "session": "s1", "created": "2026-11-20T12:00:00+00:00", "stage": "baseline", "device": "cpu",
        "workload": "perfkit.workloads.photos:Photos", "recipe": {"batch_size": 32},
    }  # fmt: skip
    return Run(id=run_id, **known | changes)


def test_more_rounds_keep_the_remarks_on_those_before():
    before, more = (run(warnings=list(remarks)) for remarks in (("throttled", "same"), ("same", "other")))
    assert continued(before, more).warnings == ["throttled", "same", "other"]


def test_no_raw_value_is_lost_where_further_rounds_follow():
    def raw(at):
        rounds = ("device_step_s", "block_samples_per_s", "gpu_utilization_nvml", "disturbed")
        values = {name: [at] for name in rounds} | {name: [9.0, at] for name in ("step_s", "data_wait_s")}
        counts = {"warmup_steps": 1, "block_steps": [1], "incarnations": [1]}
        return Raw(**values, **counts, ceiling_samples_per_s=[at], further_warmup_s=[[at]])

    whole = msgspec.structs.asdict(raw(1.0).followed_by(raw(2.0)))
    assert whole.pop("step_s") == whole.pop("data_wait_s") == [9.0, 1.0, 2.0]
    assert whole.pop("further_warmup_s") == [[1.0], [9.0], [2.0]]
    assert (whole.pop("warmup_steps"), whole.pop("ceiling_samples_per_s")) == (1, [1.0])
    assert whole.pop("block_steps") == whole.pop("incarnations") == [1, 1]
    assert whole and all(values == [1.0, 2.0] for values in whole.values()), "what is added to it later, too"


def test_rounds_whose_disturbance_is_not_known_do_not_hide_that_of_those_they_are_joined_with():
    """All rounds counted as clean, because the shares were fewer than the rounds."""
    old, new = Raw(block_samples_per_s=[1.0] * 2), Raw(block_samples_per_s=[1.0], disturbed=[0.4])
    rounds = pairing([1.0] * 2, [1.0] * 2), pairing([1.0], [1.0], disturbed=[0.4])
    assert old.followed_by(new).disturbed == pooled(*rounds).disturbed == [0.0, 0.0, 0.4]
    assert new.followed_by(old).disturbed == pooled(*reversed(rounds)).disturbed == [0.4, 0.0, 0.0]


def test_pooled_rates_divide_to_their_ratio_where_one_run_took_part_in_fewer_rounds():
    plain = run(raw=Raw(block_samples_per_s=[50.0, 50.0, 80.0, 80.0], incarnations=[2, 2]))
    few = Raw(block_samples_per_s=[100.0, 100.0], incarnations=[2])
    compared = run("r1", raw=few, pairings=[pairing([100.0] * 2, [50.0] * 2, role="baseline")])
    faster = with_rate_of(compared, plain)
    assert faster.samples_per_s.value / plain.samples_per_s.value == pytest.approx(2.0)


def decode(text):
    return read(text.encode() if isinstance(text, str) else text, Run, "this")


def pairing(own, other, **more):
    return Pairing(own, other, **{"against": "r1", "role": "previous", "interleaved": True} | more)


MEASURED = run(
    stage="pinning",
    raw=Raw(
        step_s=[9.0, 9.0, 0.2, 0.4, 0.3],
        data_wait_s=[8.0, 8.0, 0.1, 0.1, 0.1],
        warmup_steps=2,
        block_samples_per_s=[100.0, 90.0, 110.0],
        ceiling_samples_per_s=[200.0, 90.0, 220.0],
    ),
    mechanism=[Mechanism("workers", True, "2 processes"), Mechanism("amp", True, "logits are bf16")],
    pairings=[
        pairing([100.0, 90.0, 110.0, 100.0, 100.0], [50.0, 45.0, 55.0, 50.0, 50.0]),
        pairing([100.0] * 5, [100.0] * 5, role="baseline", interleaved=False),
    ],
)


def test_numbers_are_derived_from_the_raw_values_without_the_warm_up():
    assert MEASURED.step_s.value == pytest.approx(0.3)
    assert MEASURED.data_wait_s.value == pytest.approx(0.1)
    assert MEASURED.data_wait_share == pytest.approx(0.3 / 0.9)
    assert run(raw=Raw(step_s=[0.1], data_wait_s=[0.1], device_step_s=[0.4])).data_wait_share == 0.25
    rate, efficiency = (100 * 90 * 110) ** (1 / 3), (0.5 * 1.0 * 0.5) ** (1 / 3)
    assert MEASURED.samples_per_s.value == pytest.approx(rate)
    assert MEASURED.pipeline_efficiency == pytest.approx(efficiency)
    assert MEASURED.ceiling_samples_per_s == pytest.approx(rate / efficiency)
    previous, baseline = MEASURED.speedup("previous"), MEASURED.speedup("baseline")
    assert (previous.ratio, previous.verdict) == (pytest.approx(2), "faster")
    assert (baseline.ratio, baseline.verdict) == (1.0, "undecided"), "of two runs that were not interleaved"
    fewer = Raw(block_samples_per_s=[50.0, 60.0, 10.0], ceiling_samples_per_s=[100.0, 100.0])
    assert run(raw=fewer).pipeline_efficiency == pytest.approx((0.5 * 0.6) ** 0.5)


def test_what_was_not_measured_is_none_and_never_zero():
    plain = document([run()])
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    (stage,) = plain["stages"]
    absent = """samples_per_s step_s data_wait_s data_wait_share ceiling_samples_per_s pipeline_efficiency
        startup_s compile_s peak_memory_bytes batch_bytes_per_sample h2d_bytes_per_sample speedup_vs_previous
        speedup_vs_baseline disturbed utilization simulated decision origin script"""
    assert {name: stage[name] for name in absent.split()} == dict.fromkeys(absent.split())
    assert run(raw=Raw(step_s=[1.0, 1.0], data_wait_s=[0.5, 0.5], warmup_steps=2)).data_wait_share is None


def compared(rounds, **changes):
    return Comparison(run(title="A", **changes), run(title="B", pairings=[rounds], **changes), rounds)


def test_incarnations_count_once_each_and_are_stored_with_the_run():
    factors = (1.1, 1.1, 1.12, 1.08, 1.1, 1.1)
    own = [factor * 100.0 for factor in factors for _ in range(5)]
    several = pairing(own, [100.0] * 30, incarnations=[5] * 6)
    result = compared(several)
    assert (result.incarnations, result.rounds) == (6, 30)
    assert math.log(result.ratio.ratio) == pytest.approx(sum(map(math.log, factors)) / 6)
    assert result.ratio.verdict == "faster"
    assert decode(msgspec.json.encode(result.b)).speedup("previous") == result.ratio


def test_rounds_that_took_turns_make_what_they_are_joined_with_sequential():
    together, in_turns = (pairing([110.0] * 5, [100.0] * 5, interleaved=is_so) for is_so in (True, False))
    assert pooled(together, together).interleaved
    assert not pooled(together, in_turns).interleaved and not pooled(in_turns, together).interleaved


def test_rounds_that_others_disturbed_count_less_and_decide_no_verdict():
    own, other = [200.0] * 9 + [50.0], [100.0] * 10
    quiet = pairing(own, other, disturbed=[0.0] * 9 + [0.5]).ratio
    assert (quiet.ratio, quiet.verdict) == (pytest.approx(2.0, rel=0.01), "faster")
    assert pairing([200.0] * 10, other, disturbed=[0.5] * 10).ratio.verdict == "faster"


def test_sides_that_took_turns_in_a_disturbed_room_have_no_verdict():
    """Nothing says which part of the difference is the room's."""
    rates = {"own": [100.0] * 10, "other": [60.0] * 10, "interleaved": False}
    assert pairing(**rates).ratio.verdict == "faster"
    assert pairing(**rates, disturbed=[0.5] * 10).ratio.verdict == "undecided"


def test_a_ratio_by_way_of_kept_stages_is_their_product_with_all_their_errors():
    below = [Rounds([120.0] * 10, [100.0] * 10), Rounds([150.0] * 10, [100.0] * 10)]
    through = pairing([110.0] * 10, [100.0] * 10, role="baseline", via=below).ratio
    alone = pairing([110.0] * 10, [100.0] * 10).ratio
    assert through.ratio == pytest.approx(1.1 * 1.2 * 1.5)
    assert math.log(through.high / through.ratio) == pytest.approx(
        math.sqrt(3) * math.log(alone.high / alone.ratio)
    )


def test_each_factor_of_a_ratio_has_its_own_error():
    """That of a group whose sides took turns was taken for interleaved, and the other way round."""
    drifting = {"own_samples_per_s": [120.0, 240.0] * 5, "other_samples_per_s": [100.0, 200.0] * 5}

    def half_width(interleaved, **below):
        flat = pairing([110.0] * 10, [100.0] * 10, role="baseline", interleaved=interleaved, **below)
        return flat.ratio.half_width

    together, in_turns = Rounds(**drifting), Rounds(**drifting, interleaved=False)
    assert half_width(True, via=[in_turns]) > 2 * half_width(True, via=[together])
    assert half_width(False, via=[together]) < 0.5 * half_width(False, via=[in_turns])
    differing = Rounds(**drifting, spread=Spread(0.1, 4))
    assert half_width(True, via=[differing]) > 2 * half_width(True, via=[together])
    as_all = {"spread": Spread(0.1, 4)}
    assert half_width(True, via=[together], **as_all) == half_width(True, via=[differing], **as_all)


def test_turns_in_a_disturbed_room_spoil_each_ratio_that_they_are_a_factor_of():
    in_turns = Rounds([200.0] * 10, [100.0] * 10, [0.5] * 10, interleaved=False)
    apart = pairing([], [], role="baseline", via=[in_turns])
    assert apart.has_spoiled_turns and apart.ratio.verdict == "undecided"
    assert decode(msgspec.json.encode(run(pairings=[apart]))).pairings == [apart]
    shared = Rounds([200.0] * 10, [100.0] * 10, [0.5] * 10)
    assert not pairing([], [], role="baseline", interleaved=False, via=[shared]).has_spoiled_turns


def test_two_runs_that_were_only_measured_apart_have_no_rounds_but_those_between():
    """They had rounds of a third run, which were called their own."""
    between = [Rounds([120.0] * 10, [100.0] * 10), Rounds([150.0] * 4, [100.0] * 4)]
    apart = pairing([], [], role="baseline", via=between)
    assert (apart.ratio.ratio, apart.ratio.verdict) == (pytest.approx(1.8), "undecided"), "four are too few"
    stored = run(pairings=[apart])
    assert decode(msgspec.json.encode(stored)) == stored
    for nothing in ([], [Rounds([], [])]):
        with pytest.raises(ValueError, match="it has no rounds"):
            pairing([], [], via=nothing)


def test_no_ratio_of_a_file_from_others_overflows():
    unlike = Rounds([1e11, 1e-5] * 3, [1e-5, 1e11] * 3, spread=Spread(9.0, 1.0))
    far = Rounds([1e11] * 6, [1e-5] * 6)
    for via in ([far] * 40, [unlike] * 40):
        ratio = pairing([], [], via=via).ratio
        assert 0 < ratio.low <= ratio.ratio <= ratio.high < math.inf


def test_clean_and_disturbed_rounds_that_disagree_are_told_apart():
    own = [150.0, 151.0, 149.0] * 4 + [220.0, 222.0, 218.0] * 4
    quiet, noisy = pairing(own, [100.0] * 24, disturbed=[0.0] * 12 + [0.4] * 12).clean_and_disturbed
    assert (quiet.ratio, noisy.ratio) == (pytest.approx(1.5, rel=0.01), pytest.approx(2.2, rel=0.01))
    assert pairing(own[:12], [100.0] * 12, disturbed=[0.0, 0.4] * 6).clean_and_disturbed is None


def test_what_schema_1_kept_in_other_ways_is_read_as_it_is_now():
    pair = {"own_samples_per_s": [110.0] * 5, "other_samples_per_s": [100.0] * 5}
    further = {"own_samples_per_s": [112.0] * 6, "other_samples_per_s": [100.0] * 6}
    told = {"against": "r0", "role": "previous", "interleaved": True, "noise": 0.03}
    stored = msgspec.to_builtins(MEASURED) | {
        "schema": 1,
        "facts": {"rung": "dropped: slower", "command": "a.py"},
        "pairings": [pair | told | {"further_pairs": [further]}],
    }
    run = decode(msgspec.json.encode(stored))
    assert (run.decision.kept, run.decision.why, run.script, run.facts) == (False, "slower", "a.py", {})
    (now,) = run.pairings
    assert now.incarnations == [5, 6] and now.own_samples_per_s == [110.0] * 5 + [112.0] * 6
    assert now.spread.sd == pytest.approx(0.0106, rel=0.01)
    for damaged in ([1], [{}], "x"):
        stored["pairings"][0]["further_pairs"] = damaged
        with pytest.raises(StoreError, match="not a run"):
            decode(msgspec.json.encode(stored))


KNOWN = Simulated(gpu="V100", host="article", model="1", constants="abc", band=0.15, kernel_s=0.09)


@pytest.mark.parametrize(
    ("ratio", "band", "verdict"),
    [
        (1.5, 0.2, "predicted faster"),
        (1.5, 0.6, "too close to predict"),
        (0.5, 0.2, "predicted slower"),
        (1.005, 0.0, "too close to predict"),
    ],
)
def test_the_model_s_error_decides_the_verdict(ratio, band, verdict):
    predicted = pairing([100.0 * ratio], [100.0], band=band).ratio
    assert predicted.verdict == verdict
    expected = (ratio, ratio / (1 + band), ratio * (1 + band))
    assert (predicted.ratio, predicted.low, predicted.high) == pytest.approx(expected)


def test_a_simulated_rate_holds_the_model_s_error():
    raw = Raw(step_s=[0.1], block_samples_per_s=[100.0], block_steps=[1])
    simulated = run(device="sim:v100", simulated=KNOWN, samples_per_step=10, raw=raw)
    rate = simulated.samples_per_s
    assert (rate.value, rate.low, rate.high) == pytest.approx((100.0, 100 / 1.15, 115.0))
    assert simulated.utilization == pytest.approx(0.9)
    assert document([simulated])["simulated"] is True
    result = compared(pairing([150.0], [100.0], band=0.2), simulated=KNOWN, device="sim:v100")
    words = "simulated on sim:v100, host article, model error of the ratio ±20%"
    assert result.describe() == f"B / A: 1.500× (1.250–1.800), predicted faster; {words}"


def test_fields_of_a_later_version_are_passed_over():
    text = msgspec.json.encode(MEASURED)
    assert decode(text.replace(b"{", b'{"further": "fields",', 1)) == MEASURED


@pytest.mark.parametrize("text", ["", '{"schema": 1}', '{"schema": 2}', b"\xff\xfe", "[" * 100_000])
def test_what_is_no_run_is_one_message(text):
    with pytest.raises(StoreError, match="not a run of this version of perfkit.*measure again"):
        decode(text)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("losses", ["many"]),
        ("pairings.0.own_samples_per_s", []),
        ("pairings.0.other_samples_per_s", [50.0, 0.0, 50.0, 50.0, 50.0]),
        ("pairings.0.own_samples_per_s", [50.0] * 4),
        ("pairings.0.via", [{"own_samples_per_s": [1.0], "other_samples_per_s": [1.0, 2.0]}]),
        ("pairings.0.incarnations", [0, 5]),
        ("pairings.0.spread", [1e200, 4]),
        ("pairings.0.spread", [0.02, 0]),
        ("pairings.0.spread", [0.0, 0.001]),
        ("pairings.0.spread", [-1, -5]),
        ("raw.block_samples_per_s", [0.0, 1.0, 1.0]),
        ("raw.block_samples_per_s", [100.0, 90.0]),
        ("raw.incarnations", [0, 3]),
        ("raw.ceiling_samples_per_s", [-1.0]),
        ("raw.step_s", [0.0] * 5),
        ("raw.warmup_steps", -1),
        ("reference_samples_per_s", 0.0),
        ("raw.device_step_s", [0.0] * 5),
        ("recipe.workers", [1]),
        ("peak_memory_bytes", -5),
        ("startup_s", -5.0),
        ("samples_per_step", -1),
    ],
)
def test_of_what_cannot_have_been_measured_nothing_is_read(where, value):
    """A recording comes from others: a rate of 0 would show NaN, no rates would end in an error."""
    plain = part = json.loads(msgspec.json.encode(MEASURED))
    *above, name = [int(key) if key.isdigit() else key for key in where.split(".")]
    for key in above:
        part = part[key]
    part[name] = value
    with pytest.raises(StoreError, match="not a run of this version of perfkit"):
        decode(json.dumps(plain))
