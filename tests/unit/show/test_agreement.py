"""Rates and ratios agree, whatever was measured: a higher rate never has a ratio below 1."""

from types import SimpleNamespace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.show import tables, units
from perfkit.studies.record import Measurement, Round
from perfkit.worker.messages import Block
from tests.unit.show.fake_runs import session

NOTHING = Block(0, 1.0)
UNKNOWN = (None, False)
"""The A/A noise of the device."""
rates = st.floats(5, 5000)
shares = st.sampled_from([0.0, 0.0, 0.01, 0.3])


@st.composite
def ladders(draw):
    """A ladder in one or two heats, each with the baseline; some rounds are disturbed."""
    heats = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    trainings = [SimpleNamespace(first=NOTHING, warm=NOTHING)] * (1 + sum(heats))
    base, *others = (Measurement(str(at), one) for at, one in enumerate(trainings))
    runs, members = [], iter(others)
    for count in heats:
        heat = [base, *(next(members) for _ in range(count))]
        rounds = [
            Round(
                {one.id: Block(100, seconds := 100 / draw(rates), step_s=[seconds]) for one in heat},
                disturbed=draw(shares),
            )
            for _ in range(draw(st.integers(5, 8)))
        ]
        for one in heat:
            one.rounds.extend(rounds)
        runs += [build(base, [])] if not runs else []
        before = others[len(runs) - 2] if len(runs) > 1 else base
        for one in heat[1:]:
            pairs = [
                one.pairing("previous", before, base, UNKNOWN),
                one.pairing("baseline", base, base, UNKNOWN),
            ]
            runs.append(build(one, pairs, runs[0].samples_per_s.value))
            before = one
    return runs


def build(one, pairings, reference=None):
    return msgspec.structs.replace(
        session()[0], id=one.id, stage=one.id, title=f"stage {one.id}", raw=one.raw(), pairings=pairings,
        reference_samples_per_s=reference,
    )  # fmt: skip


def shown(cell):
    """The first number of a cell."""
    return float(cell.split(maxsplit=1)[0].rstrip("×").replace(",", ""))


@settings(deadline=None, max_examples=25)
@given(ladders())
def test_a_higher_rate_has_a_ratio_above_1(runs):
    pairs = [(runs[at], runs[at - 1], "previous") for at in range(1, len(runs))]
    pairs += [(run, runs[0], "baseline") for run in runs[1:]]
    for run, other, role in pairs:
        own, before, ratio = run.samples_per_s, other.samples_per_s, run.speedup(role)
        assert abs(own.value / before.value / ratio.ratio - 1) < 1e-9
        gain = shown(units.interval(own)) - shown(units.interval(before))
        assert gain * (shown(str(tables.against(run, role))) - 1) >= 0
