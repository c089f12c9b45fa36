"""How training scales with its ranks: what is lost to what, and what more ranks could give at most."""

import msgspec
import pytest

from perfkit.additions.ranks import scaled, scaling
from perfkit.additions.ranks.lateness import lateness
from perfkit.additions.ranks.messages import State, StepOfRank
from perfkit.additions.ranks.watching import RanksReport
from perfkit.additions.scripts.watched import Launch
from perfkit.errors import InvalidValue, RunFailed
from perfkit.show import terminal
from tests.unit.additions.ranks.test_lateness import DDP


def state(rank, parts, samples=8, hidden=0.0, threads=1):
    """A rank whose steps have these parts: waiting, forward, backward, optimizer, own code, exchange."""
    about = {"hidden": hidden, "is_read": True, "syncs": 1, "samples": samples, "elements": 8, "marks": []}
    steps = [StepOfRank(number=n, seconds=sum(parts), parts=parts, **about) for n in range(1, 31)]
    return State(rank=rank, count=30, steps=steps, ddps=[DDP], threads=threads)


def seen(states, taken=0.0):
    """What watching a launch has shown."""
    about = {"command": "", "ranks": len(states), "nodes": 1, "device": "cpu", "cores": 2, "threads": 1}
    return RanksReport(**about, steps=30, lateness=lateness(states), states=states, taken=taken)


def measured(count, *states, taken=0.0):
    return scaling._point(count, 2 * [seen([*states], taken)])


def one(**more):
    return measured(1, state(0, [0.1, 0.3, 0.5, 0.1, 0.0, 0.0], **more))


def two(samples=8, **more):
    """Rank 1 computes 0.2 s longer in backward, and each loads 0.1 s longer than one alone."""
    early = state(0, [0.2, 0.3, 0.5, 0.1, 0.0, 0.9], samples, hidden=0.3)
    late = state(1, [0.2, 0.3, 0.7, 0.1, 0.0, 0.7], samples, hidden=0.3)
    return measured(2, early, late, **more)


def found(*ranks, **more):
    regime = scaling._regime(ranks)
    predicted = [scaling.at_most(ranks[-1], 4, more.get("regime", regime))]
    fields = {
        "bytes_per_s": 400.0,
        "seen": regime,
        "regime": regime,
        "predicted": predicted,
        "measured": [*ranks],
        **more,
    }
    return scaling.Scaling(command="torchrun train.py", **{"cores": 2, **fields})


def test_what_is_lost_sums_to_what_the_efficiency_lacks():
    base, many = one(), two()
    assert (base.samples_per_s.value, many.samples_per_s.value) == pytest.approx((8.0, 16 / 2.0))
    assert many.efficiency(base) == pytest.approx(0.5)
    lost = many.losses(base)
    assert lost == pytest.approx(dict(zip(scaling.LOSSES, (0.35, 0.05, 0.05, 0.05), strict=True)))
    assert sum(lost.values()) == pytest.approx(1 - many.efficiency(base))
    assert base.losses(base) == pytest.approx(dict.fromkeys(scaling.LOSSES, 0.0))
    assert many.samples_per_s.low < many.samples_per_s.value < many.samples_per_s.high


@pytest.mark.parametrize(
    ("samples", "regime", "words"),
    [
        (8, "weak", "Weak scaling: each rank keeps"),
        (4, "strong", "the global batch is kept"),
        (6, "neither", "Neither"),
    ],
)
def test_strong_and_weak_scaling_are_told_by_the_batches(samples, regime, words):
    result = found(one(), two(samples))
    assert result.seen == regime and words in terminal.text(scaled.sections(result))


def test_more_ranks_give_at_most_what_the_ring_and_the_undivided_work_leave():
    many = two()
    weak = scaling.at_most(many, 4, "weak")
    exchange = 1.5 * (0.7 + 0.3)  # 2 (n-1)/n of the bytes: 1.5 for four ranks, 1 for two
    assert weak.parts["exposed"] == pytest.approx(0.7 * exchange)
    assert weak.step_s == pytest.approx(0.2 + 0.3 + 0.6 + 0.1 + 0.7 * exchange)
    assert weak.samples_per_s.value == pytest.approx(4 * 8 / weak.step_s)
    strong = scaling.at_most(many, 8, "strong")
    assert strong.parts["exposed"] == pytest.approx(1.75 - 0.6 / 4), "no more is hidden than backward takes"
    assert strong.step_s == pytest.approx((0.2 + 0.3 + 0.6) / 4 + 0.1 + strong.parts["exposed"])


def test_the_report_says_what_is_lost_what_is_shared_and_what_is_predicted():
    many = msgspec.structs.replace(two(), taken=0.2)
    result = found(one(threads=2), many, regime="strong", failures={4: "rank 3 of 4 failed"}, cores=1)
    text = " ".join(terminal.text(scaled.sections(result)).split())
    alone = found(one(), two(), cores=2)
    assert "as here, an equally" in " ".join(terminal.text(scaled.sections(alone)).split())
    assert "2 ranks train 1.00× as many samples/s as 1: an efficiency of 50%" in text
    assert "35% is lost to exposed communication, 5% to" in text
    assert "4 ranks: rank 3 of 4 failed" in text
    assert "2 ranks share 1 core: no rank has one for itself, so what is lost" in text
    assert "as here (2 ranks share 1 core, so twice as many ranks need twice the cores), an equally" in text
    assert "2 ranks compute with 1 thread each, 1 with 2: torchrun sets OMP_NUM_THREADS=1" in text
    assert "other programs took 20% of the cores" in text
    assert "to measure that, divide the batch size by WORLD_SIZE" in text
    assert "computed from the parts of a step with 2 ranks, not measured" in text
    assert "over the 400 B/s" in text and "efficiency 50%" in scaled.picture(result).alt


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return Launch("train.py")


def watching(monkeypatch, failing, first=1):
    """Launches that end at once, those with so many ranks by failing from their `first` one on."""
    started = []

    def watched(launch, count, budget_s, progress):
        started.append(count)
        if count in failing and started.count(count) >= first:
            raise RunFailed(f"rank 0 of {count} failed", "Mend it")
        states = [state(rank, [0.1, 0.3, 0.5, 0.1, 0.0, 0.1]) for rank in range(count)]
        return seen(states)

    monkeypatch.setattr(scaling, "_watched", watched)
    return started


def test_numbers_of_ranks_take_turns_and_one_that_fails_is_told(script, monkeypatch):
    started = watching(monkeypatch, {4})
    result = scaling.scale(script, [1, 2, 4])
    assert started == [1, 2, 4, 1, 2, 1, 2]
    assert [each.ranks for each in result.measured] == [1, 2]
    assert result.failures == {4: "rank 0 of 4 failed"}
    assert [each.ranks for each in result.predicted] == [4, 8, 16]
    assert "--nproc-per-node 2 train.py" in result.command
    assert result.bytes_per_s == pytest.approx(400 / 0.1), "a ring of two sends the bytes once"


@pytest.mark.parametrize("failing", [{1}, {2}])
def test_a_script_that_fails_ends_it_where_nothing_is_left_to_compare(script, monkeypatch, failing):
    started = watching(monkeypatch, failing)
    with pytest.raises(RunFailed, match=f"rank 0 of {min(failing)} failed"):
        scaling.scale(script, [1, 2])
    assert started == [1, *failing - {1}]


def test_the_others_are_tried_where_the_first_number_of_ranks_fails(script, monkeypatch):
    started = watching(monkeypatch, {1})
    result = scaling.scale(script, [1, 2, 4])
    assert started == [1, 2, 4, 2, 4, 2, 4]
    assert ([each.ranks for each in result.measured], list(result.failures)) == ([2, 4], [1])
    text = terminal.text(scaled.sections(result))
    assert "1 rank: rank 0 of 1 failed" in text and "4 ranks train" in text


def test_where_nothing_is_left_to_compare_each_failure_is_told(script, monkeypatch):
    started = watching(monkeypatch, {1, 2})
    with pytest.raises(RunFailed, match="rank 0 of 1 failed; rank 0 of 2 failed"):
        scaling.scale(script, [1, 2, 4])
    assert started == [1, 2]


def test_launches_before_one_that_fails_count(script, monkeypatch):
    started = watching(monkeypatch, {2}, first=3)
    result = scaling.scale(script, [1, 2])
    assert started == [1, 2, 1, 2, 1, 2]
    assert [each.ranks for each in result.measured] == [1, 2]
    assert result.failures == {2: "as 2 launches showed before one failed: rank 0 of 2 failed"}


def test_what_is_no_number_of_ranks_is_refused():
    assert scaling.counts_of("4,1,2, 2") == [1, 2, 4]
    for wrong in ("1", "0,2", "", "1,two", "-1,2", "1,,2"):
        with pytest.raises(InvalidValue, match="two or more numbers from 1 on"):
            scaling.counts_of(wrong)
