"""Predictions to the digit from made-up parts; candidates, probes and the front of the tuner."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit.program.recipe import Recipe
from perfkit.program.rules import Target
from perfkit.results.run import Pairing, Raw, Run
from perfkit.studies import engine, tune
from perfkit.studies import predict as whatif
from perfkit.studies.predict import COMPUTE, DATA, Model, flavour

CPU = Target(device="cpu", offers=frozenset({"uint8_copy"}))
GPU = Target(device="cuda", offers=frozenset({"uint8_copy"}))


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
        pairings=[Pairing(Recipe(batch_size=10).digest(), "baseline", True, [rate] * 3, [beside] * 3)]
        if beside else [],
        raw=Raw(
            step_s=[step] * 3, data_wait_s=[wait * step] * 3, block_samples_per_s=[rate] * 3,
            ceiling_samples_per_s=[ceiling] * 3,
        ),
    )  # fmt: skip


def model(**changes: Any) -> Model:
    """10 ms of one core a sample to fetch; 4 ms a sample and 10 ms a step to compute."""
    plain = Recipe()
    known: dict[str, Any] = {
        "cores": 4, "device": "cuda", "fetch_s": {flavour(plain.to_dict(), DATA): 0.010},
        "compute_s": {flavour(plain.to_dict(), COMPUTE): {10: 0.050, 100: 0.410}},
        "bytes_per_sample": {flavour(plain.to_dict(), DATA): 1000},
    }  # fmt: skip
    return Model(**{**known, **changes})


def step(made: Model, recipe: Recipe, **more: Any) -> tuple[float, str]:
    told = whatif.predict(made, recipe.to_dict(), **more)
    assert told
    return round(told.step_s, 9), told.binds


def test_without_workers_fetching_and_computing_add_up() -> None:
    assert step(model(), Recipe(batch_size=10)) == (0.150, "data")


def test_with_workers_the_slower_side_binds() -> None:
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
        flavour(plain.to_dict(), COMPUTE): batch,
        flavour(plain.replace(amp="bf16").to_dict(), COMPUTE): {10: 0.02},
        flavour(plain.replace(channels_last=True).to_dict(), COMPUTE): {10: 0.03},
    }
    both = Recipe(batch_size=10, amp="bf16", channels_last=True, workers=4)
    assert step(model(compute_s=parts, fetch_s={flavour(plain.to_dict(), DATA): 0.0}), both)[0] == 0.015


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
    assert whatif.rates([first, slowed]) == pytest.approx({first.id: 100, slowed.id: 400 / 3})
    assert whatif.fit([first, slowed]) == whatif.fit([first, still])
    made, runs = whatif.fit([first, still]), [first, slowed]
    right, wrong = whatif.score(made, runs, whatif.rates(runs)), whatif.score(made, runs)
    assert right
    assert wrong
    assert right.p90 == pytest.approx(0)
    assert wrong.p90 > 0.4


def test_without_a_baseline_of_the_same_recipe_nothing_is_known_of_the_pace() -> None:
    first, other = (
        run(Recipe(batch_size=20), 100, 200),
        run(Recipe(batch_size=10, workers=1), 75, 200, beside=50),
    )
    assert whatif.rates([first, other]) == {first.id: 100, other.id: 75}
    assert whatif.rates([]) == {}


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


# ---------------------------------------------------------------- tune


def plan() -> engine.Plan:
    return engine.plan("cifar_resnet18", "smoke", ["baseline"], device="cpu")


def test_candidates_are_those_that_can_act_here_each_once() -> None:
    found = tune.candidates(plan(), CPU, tune.SPACE)
    assert len({recipe.digest() for recipe in found}) == len(found) >= 60
    assert {recipe.amp for recipe in found} == {"off", "bf16"}
    assert not any(recipe.pin_memory for recipe in found)
    assert all(recipe.pin_memory for recipe in tune.candidates(plan(), GPU, tune.SPACE) if recipe.workers)


def test_probes_are_few_and_cover_every_part() -> None:
    every = tune.candidates(plan(), CPU, tune.SPACE)
    base = Recipe(batch_size=8)
    asked = tune.probes(base, every)
    assert len(asked) < len(every) / 8
    runs = [run(recipe, 100, 200, 0.5) for recipe in [base, *asked]]
    made = whatif.fit(runs)
    assert all(whatif.predict(made, recipe.to_dict()) for recipe in every)


def test_the_search_asks_for_the_parts_then_the_short_list_then_the_better_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A made-up machine on which bf16 doubles the pace and each worker adds a tenth, but which slows down."""
    asked: list[list[str]] = []
    pace = iter(range(1000, 0, -1))

    def climb(plan: engine.Plan, store: Any, on_progress: Any, stop: Any) -> list[Run]:
        found: list[Run] = []
        asked.append([])
        for title, recipe in plan.recipes:
            asked[-1].append(title)
            now = next(pace) / 1000
            rate = 100 * (2.0 if recipe.amp == "bf16" else 1.0) * (1 + recipe.workers / 10)
            rate *= 1.5 if recipe.prefetch_factor == 4 else 1.0
            made = run(recipe, rate * now, 4 * rate * now, 0.75, beside=100 * now if found else None)
            made = msgspec.structs.replace(made, id=f"{made.id}-{len(asked)}-{len(found)}")
            if found:
                beside = msgspec.structs.replace(made.pairings[0], against=found[0].id)
                made = msgspec.structs.replace(made, pairings=[beside])
            found.append(made)
            on_progress(engine.Progress(title, "ok", 0.5, made))
        return found

    monkeypatch.setattr(engine, "climb", climb)
    monkeypatch.setattr(engine, "resolve", lambda plan: ({}, []))
    monkeypatch.setattr(engine, "target", lambda plan, described: CPU)
    monkeypatch.setattr(tune.proving, "parity", lambda *given: None)
    told: list[float] = []
    space: dict[str, Any] = {"workers": (0, 1, 2), "amp": ("off", "bf16"), "channels_last": (False, True)}
    space["prefetch_factor"] = (2, 4)
    where = engine.plan("cifar_resnet18", "smoke", ["baseline"], {"batch_size": 10}, "cpu")
    where = engine.replace(where, preset=engine.replace(where.preset, batch_size=10))
    tuned = tune.tune(where, space, on_progress=lambda progress: told.append(progress.fraction))
    short, final = asked
    assert sorted(short[:3]) == [
        "batch_size=10",
        "batch_size=10, amp=bf16",
        "batch_size=10, channels_last=true",
    ]
    assert len(short) <= 5 + 6 + 1, "parts, short list, and what the model knows nothing of tried on the best"
    assert [title for title in short if "prefetch_factor" in title] == short[-1:]
    assert len(final) == 3
    best = tuned.best.recipe
    assert (best["amp"], best["workers"], best["prefetch_factor"]) == ("bf16", 2, 4)
    assert tuned.considered == 20
    assert tuned.gain
    assert max(told) <= 1
    spent = tune.tune(where, space, budget_s=-1)
    assert len(asked[-2]) == 1, "after the budget nothing further starts"
    assert spent.best.recipe == Recipe(batch_size=10).to_dict()
