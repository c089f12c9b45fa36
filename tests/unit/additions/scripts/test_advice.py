"""What is suggested: one model of gains, in which loading saves the wait, everything else a share of the work."""

from dataclasses import replace

import msgspec
import pytest

from perfkit.additions.scripts.advice import Switches, ordered, suggest
from perfkit.additions.scripts.messages import Account, Evidence, Observation, ScriptFacts, StepTime, Symptoms
from perfkit.results.stats import Ratio
from perfkit.rules import Target
from perfkit.worker.messages import DeviceFacts, TimedSteps


def block(samples_per_s, waits=0.0, batch=32, steps=10):
    step = batch / samples_per_s
    return TimedSteps(batch * steps, steps * step, [step] * steps, [waits * step] * steps)


def run(optimizing=None):
    parts = [0.0, 0.0, 1 - (optimizing or 0.0), optimizing, 0.0]
    return Account(parts={"steps": 1.0}, plain=[] if optimizing is None else [StepTime(1, 1.0, parts)])


SYMPTOMS = Symptoms(
    script=ScriptFacts(device="cpu", facts=DeviceFacts()), run=run(), evidence=Evidence(steps=0), cores=4
)
SEEN = Switches(SYMPTOMS, Target("cpu"), Observation(block=block(100, waits=0.5)))


def on(device, **own):
    return Target(device, defaults=own)


OF_SYMPTOMS = ("cores", "cpu_has_bf16", "run", "is_disturbed")


def ideas(title, seen=SEEN, **changes):
    symptoms = {name: changes.pop(name) for name in OF_SYMPTOMS if name in changes}
    seen = replace(seen, symptoms=msgspec.structs.replace(seen.symptoms, **symptoms), **changes)
    return [idea for idea in suggest(seen) if idea.cause.startswith(title)]


def idea(*args, **changes):
    (found,) = ideas(*args, **changes)
    return found


def test_workers_save_the_wait_as_far_as_they_load_fast_enough():
    found = idea("Loader workers")
    # 10 ms a sample, half of it loading, which two workers do in half the time
    assert found.gain == pytest.approx(2.0) and found.limit == "up to"
    assert found.settings == {"workers": 2}
    late = idea("Loader workers", steps=Observation(block=block(100, waits=0.9)))
    assert late.gain == pytest.approx(2 / 0.9)
    on_gpu = idea("Loader workers", target=Target("cuda"))
    assert on_gpu.settings == {"workers": 4, "pin_memory": True, "non_blocking": True}


def test_no_prediction_exceeds_what_waiting_and_work_allow():
    seen = replace(SEEN, symptoms=msgspec.structs.replace(SYMPTOMS, run=run(optimizing=0.95)))
    assert idea("Loader workers", seen).gain == idea("Optimizer", seen).gain == pytest.approx(2.0)
    assert idea("Optimizer", replace(seen, target=on("cuda"))).gain is None, "a GPU works on by itself"


def test_no_bound_is_given_where_workers_may_take_cores_from_the_model():
    steps = Observation(block=block(100, waits=0.04))
    assert idea("Loader workers", target=on("cpu", workers=1, cpu_threads=1), steps=steps).gain is None
    assert idea("Loader workers", target=on("cuda", workers=1), steps=steps).gain == pytest.approx(1 / 0.96)


def test_no_bound_is_given_while_other_programs_take_the_cores():
    found = idea("Loader workers", is_disturbed=True)
    assert found.gain is None


def test_workers_of_which_there_are_enough_call_for_fewer_of_them_or_of_threads():
    for workers, fewer in ((2, 1), (1, 0)):
        target = on("cpu", workers=workers, cpu_threads=2)
        assert idea("Fewer workers", cores=2, target=target).settings == {"workers": fewer}
        assert idea("One compute thread", cores=2, target=target).settings == {"cpu_threads": 1}
    assert idea("Fewer workers", cores=1, target=target).evidence.endswith(" share 1 core")
    steady = Observation(block=block(100, waits=0.01))
    assert not ideas("Loader workers", steps=steady)
    assert not ideas("One compute thread", target=on("cpu", cpu_threads=2))
    assert idea("One compute thread", target=on("cpu", cpu_threads=2), one_thread=4.0).gain == pytest.approx(
        4
    )


def test_what_the_check_up_calls_slower_is_not_suggested():
    assert idea("AMP").gain is None
    assert not ideas("AMP", cpu_has_bf16=False)
    assert ideas("AMP", target=on("cuda"), cpu_has_bf16=False)


def test_bounds_come_before_what_only_measuring_tells_and_measured_gains_before_both():
    refused = {"compile": "the script compiles it already"}
    target = Target(
        "cpu", defaults={"channels_last": True}, refuses=lambda name, recipe: refused.get(name, "")
    )
    seen = replace(SEEN, target=target)
    found = suggest(seen)
    assert [idea.cause for idea in found] == ["Loader workers", "AMP", "Optimizer"], "neither refused nor on"
    assert ordered(found[::-1])[0] == found[0]
    measured = msgspec.structs.replace(found[2], measured=Ratio(1.2, 1.1, 1.3, "faster"))
    assert ordered([*found, measured])[0] == measured
    for cause in ("rows_one_by_one", "workers_cost_more", "sampler_line"):
        assert "Loader workers" not in [idea.cause for idea in suggest(seen, {cause})]


def test_what_was_tried_and_did_not_help_is_suggested_no_more():
    cases = (0.95, "slower", False), (1.02, "undecided", False), (1.2, "faster", True)
    for ratio, verdict, helps in cases:
        gave = Ratio(ratio, ratio - 0.1, ratio + 0.1, verdict)
        tried = msgspec.structs.replace(idea("AMP"), measured=gave)
        assert tried.may_help == helps
        assert ordered([tried, idea("Optimizer")])[0 if helps else -1] == tried
