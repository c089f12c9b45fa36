"""One model of gains: loading saves the wait, everything else a share of the work."""

from dataclasses import replace

import pytest

from perfkit.additions.scripts import study
from perfkit.additions.scripts.messages import Observation
from perfkit.additions.scripts.suggest import Seen, suggest, tried
from perfkit.results.stats import Ratio
from perfkit.rules import Target
from perfkit.worker.messages import Block


def block(samples_per_s, waits=0.0, batch=32, steps=10):
    step = batch / samples_per_s
    return Block(batch * steps, steps * step, [step] * steps, [waits * step] * steps)


SEEN = Seen(Target("cpu"), Observation(block=block(100, waits=0.5)), cores=4, ceiling=block(200))


def on(device, **own):
    return Target(device, own=own)


def idea(title, seen=SEEN, **changes):
    return next(idea for idea in suggest(replace(seen, **changes)) if idea.title.startswith(title))


def test_workers_save_the_wait_as_far_as_they_load_fast_enough():
    found = idea("Loader workers")
    # 10 ms a sample, half of it loading, which two workers do in half the time
    assert found.gain == pytest.approx(2.0) and found.at_most
    assert found.settings == {"workers": 2}
    late = idea("Loader workers", steps=Observation(block=block(100, waits=0.9)))
    assert late.gain == pytest.approx(2 / 0.9)
    on_gpu = idea("Loader workers", target=Target("cuda"))
    assert on_gpu.settings == {"workers": 4, "pin_memory": True, "non_blocking": True}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_prediction_exceeds_what_waiting_and_work_allow(device):
    steps = Observation(block=block(100, waits=0.5), optimizer_s=3.04)  # 95%
    seen = replace(SEEN, target=on(device, workers=4), ceiling=block(2000), steps=steps)
    assert idea("Cheaper samples", seen).gain == idea("Optimizer", seen).gain == pytest.approx(2.0)
    hidden = idea("Cheaper samples", seen, target=on("cuda", workers=4), ceiling=block(20))
    assert hidden.gain == 1.0, "on a GPU work goes on during the wait"


def test_workers_of_which_there_are_enough_call_for_cheaper_samples_or_fewer_of_them():
    found = idea("Cheaper samples", target=on("cpu", workers=4))
    assert found.state == "edit" and "cache" in found.why
    for workers, fewer in ((2, 1), (1, 0)):
        target = on("cpu", workers=workers, cpu_threads=2)
        assert idea("Fewer workers", cores=2, target=target).settings == {"workers": fewer}
    assert idea("Fewer workers", cores=1, target=target).why.endswith(" share 1 core")
    assert idea("Cheaper samples", cores=1).state == "edit", "a worker would take the model's only core"
    assert idea("Loader workers", steps=Observation(block=block(100, waits=0.01))).state == "refused"


def test_amp_follows_from_steps_that_were_tried_in_16_bits():
    assert idea("AMP").gain is None and idea("AMP").state == "try"
    # 10 ms a sample, 5 ms of it on a held batch: three times as fast
    found = idea("AMP", in_16_bits=3.0)
    assert found.gain == pytest.approx(10 / (5 + 5 / 3)) and not found.at_most
    assert "tried on a held batch: 3.00× as fast" in found.why
    slower = idea("AMP", in_16_bits=0.5)
    assert slower.state == "refused" and "no gain" in slower.why


def test_the_largest_gain_comes_first_then_edits_then_what_is_refused_or_on():
    refused = {"compile": "the script compiles it already"}
    target = Target("cpu", own={"channels_last": True}, refuses=study.refusing(refused))
    seen = replace(SEEN, target=target, in_16_bits=3.0)
    ideas = [(idea.title, idea.state) for idea in suggest(seen)]
    assert ideas[:3] == [("Loader workers", "try"), ("AMP", "try"), ("Optimizer", "try")]
    edit, *others = ideas[3:]
    assert edit == ("Cheaper samples", "edit"), "workers may not pay on a CPU"
    assert others == [("torch.compile", "refused"), ("channels_last", "on")]
    assert idea("torch.compile", seen).why == "the script compiles it already"


def test_what_was_tried_and_did_not_help_is_suggested_no_more():
    amp = idea("AMP", in_16_bits=3.0)
    cases = ("slower", 1.0, "refused"), ("disturbed", 1.1, "try"), ("faster", 1.2, "try")
    for verdict, high, state in cases:
        assert tried(amp, Ratio(1.0, 0.9, high, verdict)).state == state
