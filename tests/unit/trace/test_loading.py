"""What the loader's notes say, and how they are taken."""

import pytest

from perfkit.trace import Lanes, loading
from tests.unit.trace.recording import bars

SECOND = 10**9


def note(number: int, worker: int, start: float, fetch: float = 2.0, collate: float = 1.0) -> loading.Fetch:
    return loading.Fetch(
        number=number, worker=worker, start_s=start, fetched_s=start + fetch,
        collated_s=start + fetch + collate,
    )  # fmt: skip


def test_supply_and_demand_to_the_digit() -> None:
    """Two workers, 3 s a batch of 6: 4 samples/s. Steps of 2 s of which 0.5 s wait: 6 in 1.5 s are 4 too."""
    made = [note(0, 0, 0.0), note(1, 1, 1.0), note(2, 0, 3.0)]
    taken = [(0, 9.5, 10.0), (1, 11.5, 12.0)]
    found = loading.join(made, taken, batch_size=6, workers=2, marks=[9.5, 11.5, 13.5])
    assert found
    assert found.parts == {"fetch": [2, 2], "collate": [1, 1], "queue": [7, 8], "wait": [0.5, 0.5]}
    assert found.supply_samples_per_s == pytest.approx(4.0)
    assert found.demand_samples_per_s == pytest.approx(4.0)
    assert loading.join(made[2:], taken, 6, 2, [9.5, 11.5, 13.5]) is None, "nothing joined"


@pytest.mark.parametrize(("fetch", "said"), [(0.1, "would not help"), (30.0, "the step waits for data")])
def test_the_verdict_names_the_short_side(fetch: float, said: str) -> None:
    found = loading.join([note(0, 0, 0.0, fetch)], [(0, 40.0, 40.1)], 8, 1, [40.0, 42.0])
    assert found and said in found.verdict


def test_workers_become_rows_of_the_timeline() -> None:
    found = loading.join([note(0, 0, 1.0), note(1, 1, 1.5)], [(0, 5.0, 5.0)], 8, 2, [1.0, 6.0])
    assert found
    window = Lanes(duration=7 * SECOND, step=0, steps=([SECOND], [5 * SECOND], [""]), lanes=[], texts=[""])
    window = loading.lanes(found, window, start_s=1.0)
    assert [lane.label for lane in window.lanes] == ["worker 0", "worker 1"]
    assert [(bar.name, bar.part, bar.start, bar.duration) for bar in bars(window, 1)] == [
        ("batch 1: fetch", "fetch", 1.5 * SECOND, 2 * SECOND),
        ("batch 1: collate", "collate", 3.5 * SECOND, SECOND),
    ]
