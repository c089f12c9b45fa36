"""Predictions to the digit from made-up parts; the parts from made-up runs."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.recipe import Recipe
from perfkit.results.run import Pairing, Raw, Run
from perfkit.search import predict as whatif
from perfkit.search.predict import COMPUTE, DATA, Model, switch_key


def run(
    recipe: Recipe,
    rate: float,
    ceiling: float,
    wait: float = 0.0,
    memory: int = 1,
    beside: float | None = None,
) -> Run:
    """Made up; `beside` is what a baseline of plain batches of 10 made in the same rounds."""
    step = recipe.batch_size / rate
    return Run(
        id=recipe.digest(), session="s", created="", stage="x", workload="w", device="cpu",
        recipe=recipe.to_dict(), samples_per_step=recipe.batch_size, peak_memory_bytes=memory,
        machine={"cpu": {"cores_usable": 2}},
        pairings=[
            Pairing(
                [rate] * 3, [beside] * 3, against=Recipe(batch_size=10).digest(), role="baseline",
                interleaved=True,
            )
        ] if beside else [],
        raw=Raw(
            step_s=[step] * 3, data_wait_s=[wait * step] * 3, block_samples_per_s=[rate] * 3,
            ceiling_samples_per_s=[ceiling] * 3,
        ),
    )  # fmt: skip


def model(**changes: Any) -> Model:
    """10 ms of one core a sample to fetch; 4 ms a sample and 10 ms a step to compute."""
    plain = Recipe()
    known: dict[str, Any] = {
        "cores": 4, "device": "cuda", "fetch_s": {switch_key(plain.to_dict(), DATA): 0.010},
        "compute_s": {switch_key(plain.to_dict(), COMPUTE): {10: 0.050, 100: 0.410}},
        "bytes_per_sample": {switch_key(plain.to_dict(), DATA): 1000},
    }  # fmt: skip
    return Model(**{**known, **changes})


def step(made: Model, recipe: Recipe, **more: Any) -> tuple[float, str]:
    told = whatif.predict(made, recipe.to_dict(), **more)
    assert told
    return round(told.step_s, 9), told.bottleneck


def test_without_workers_fetching_and_computing_add_up_on_a_cpu() -> None:
    assert step(model(device="cpu"), Recipe(batch_size=10)) == (0.150, "data")


def test_beside_an_accelerator_the_host_fetches_while_kernels_run() -> None:
    """Fetching takes 0.1 s, computing 0.05 s, the copy 0.1 s."""
    slow = {"link_bytes_per_s": 100_000.0}
    pinned = Recipe(batch_size=10, pin_memory=True, non_blocking=True)
    assert step(model(), Recipe(batch_size=10)) == (0.100, "data")
    assert step(model(), Recipe(batch_size=10), **slow)[0] == 0.200, "the host waits for the copy"
    assert step(model(), pinned.replace(non_blocking=False), **slow)[0] == 0.200
    assert step(model(), pinned, **slow) == (0.150, "compute"), "the host is free, the device is not"
    assert step(model(), pinned.replace(device_prefetch=True), **slow)[0] == 0.100, "both overlap"


def test_with_workers_the_slower_side_is_the_bottleneck() -> None:
    assert step(model(), Recipe(batch_size=10, workers=1)) == (0.100, "data")
    assert step(model(), Recipe(batch_size=10, workers=4)) == (0.050, "compute")
    assert step(model(), Recipe(batch_size=10, workers=8), cores=1) == (0.100, "data")


def test_on_a_cpu_loader_and_model_share_the_cores() -> None:
    """0.1 s of fetching and 0.05 s on both of two cores are 0.2 core seconds: 0.1 s at best."""
    cpu = model(device="cpu", cores=2)
    assert step(cpu, Recipe(batch_size=10, workers=2)) == (0.100, "cores")


def test_a_batch_size_in_between_is_on_the_line() -> None:
    assert step(model(), Recipe(batch_size=50, workers=64), cores=64) == (0.210, "compute")


def test_a_faster_device_and_a_slow_link() -> None:
    assert step(model(), Recipe(batch_size=10, workers=4), speed=2.0) == (0.025, "data")
    slow = {"link_bytes_per_s": 100_000.0}
    assert step(model(), Recipe(batch_size=10, workers=4), **slow) == (0.150, "compute")


def test_only_a_second_stream_hides_the_copy() -> None:
    slow = {"link_bytes_per_s": 100_000.0}
    pinned = Recipe(batch_size=10, workers=4, pin_memory=True, non_blocking=True)
    assert step(model(), pinned, **slow) == (0.150, "compute")
    assert step(model(), pinned.replace(device_prefetch=True), **slow) == (0.100, "compute")


def test_switches_never_measured_together_multiply() -> None:
    plain, batch = Recipe(), {10: 0.04}
    parts = {
        switch_key(plain.to_dict(), COMPUTE): batch,
        switch_key(plain.replace(amp="bf16").to_dict(), COMPUTE): {10: 0.02},
        switch_key(plain.replace(channels_last=True).to_dict(), COMPUTE): {10: 0.03},
    }
    both = Recipe(batch_size=10, amp="bf16", channels_last=True, workers=4)
    assert step(model(compute_s=parts, fetch_s={switch_key(plain.to_dict(), DATA): 0.0}), both)[0] == 0.015


def test_a_part_that_was_never_measured_gives_no_prediction() -> None:
    assert whatif.predict(model(), Recipe(uint8_copy=True).to_dict()) is None
    assert whatif.predict(model(), Recipe(amp="bf16").to_dict()) is None


def test_the_parts_come_out_of_runs_and_the_score_is_their_error() -> None:
    base = Recipe(batch_size=10)
    runs = [run(base, rate=100, ceiling=200, wait=0.5)]
    made = whatif.fit(runs)
    assert step(made, base)[0] == 0.1
    measured = [run(base, 100, 200, 0.5), run(base.replace(workers=1, cpu_threads=0), 80, 200)]
    found = whatif.score(made, measured)
    assert found
    assert found.count == 2
    assert found.median == pytest.approx(0.5 * abs(0.075 - 0.125) / 0.125)


def test_a_machine_at_half_its_pace_changes_no_prediction() -> None:
    base, fast = Recipe(batch_size=10), Recipe(batch_size=10, amp="bf16")
    first, still = run(base, 100, 200, 0.5), run(fast, 400 / 3, 400, 2 / 3, beside=100)
    slowed = run(fast, 200 / 3, 200, 2 / 3, beside=50)
    assert whatif.drift_corrected_rates([first, slowed]) == pytest.approx({first.id: 100, slowed.id: 400 / 3})
    assert whatif.fit([first, slowed]) == whatif.fit([first, still])
    made, runs = whatif.fit([first, still]), [first, slowed]
    right, wrong = whatif.score(made, runs, whatif.drift_corrected_rates(runs)), whatif.score(made, runs)
    assert right
    assert wrong
    assert right.p90 == pytest.approx(0)
    assert wrong.p90 > 0.4


def test_without_a_baseline_of_the_same_recipe_nothing_is_known_of_the_pace() -> None:
    first, other = (
        run(Recipe(batch_size=20), 100, 200),
        run(Recipe(batch_size=10, workers=1), 75, 200, beside=50),
    )
    assert whatif.drift_corrected_rates([first, other]) == {first.id: 100, other.id: 75}
    assert whatif.drift_corrected_rates([]) == {}


def test_what_workers_lose_is_measured_and_holds_for_other_recipes() -> None:
    """Ideal on two cores: (5 + 2 x 5) / 2 ms a sample; measured: a quarter more."""
    base, beside = Recipe(batch_size=10), Recipe(batch_size=10, workers=1)
    made = whatif.fit([run(base, 100, 200, 0.5), run(beside, 1000 / 7.5 / 1.25, 200)])
    assert made.overlap[1] == pytest.approx({10: 1.25})
    assert step(made, beside)[0] == pytest.approx(0.09375)
    assert step(made, Recipe(batch_size=20, workers=2))[0] == pytest.approx(0.1875)
    assert step(made, Recipe(batch_size=20))[0] == pytest.approx(0.2)
    assert step(made, beside, cores=4)[0] == pytest.approx(0.0625), "not known for another number of cores"


def test_what_workers_lose_lies_between_the_batch_sizes_that_were_measured() -> None:
    base, small, large = (Recipe(batch_size=size, workers=w) for size, w in ((10, 0), (5, 1), (20, 1)))
    lost = {5: 2.0, 20: 1.5}
    runs = [run(one, 1000 / 7.5 / lost[one.batch_size], 200) for one in (small, large)]
    made = whatif.fit([run(base, 100, 200, 0.5), *runs])
    assert made.overlap[1] == pytest.approx(lost)
    for size, expected in ((5, 2.0), (10, 3.0**0.5), (20, 1.5), (2, 2.0), (40, 1.5)):
        found, _ = step(made, Recipe(batch_size=size, workers=1))
        assert found == pytest.approx(0.0075 * size * expected), f"batch {size}"
