from dataclasses import replace

import pytest

from perfkit.recipe import Recipe
from perfkit.rules import Target
from perfkit.scripts.messages import Observation
from perfkit.scripts.suggest import Seen, Suggestion, suggest
from perfkit.trace import Analysis
from perfkit.trace.model import Operator, Step
from perfkit.worker.messages import Block, Place, SyncReport


def block(samples_per_s: float, waits: float = 0.0, batch: int = 32, steps: int = 10) -> Block:
    step = batch / samples_per_s
    return Block(batch * steps, steps * step, [step] * steps, [waits * step] * steps)


def analysis(**shares: float) -> Analysis:
    """A profile of one step of a second on a CPU: operators with their shares of it."""
    rows = [
        Operator(
            name=f"aten::{name}", input_shapes=None, input_dtypes=None, calls=1, host_total_us=1e6 * share,
            host_self_us=1e6 * share, device_total_us=None, device_self_us=None,
        )
        for name, share in shares.items()
    ]  # fmt: skip
    parts = {"other": 0.0, "cpu_op": 1e6}
    step = Step(name="0", rank=0, start_us=0, duration_us=1e6, breakdown_us={})
    return Analysis(
        files=[], device={"kind": "cpu"}, health=[], steps=[step], mean_step_us=1e6, mean_us=parts,
        exposed_and_hidden_us=parts, gpu_utilization=None, est_sm_efficiency=None,
        est_achieved_occupancy=None, tensor_core=None, operators=rows, kernels=[], transfers=[], syncs=[],
        idle=[], communication=None, memory=None,
    )  # fmt: skip


OWN = Recipe(batch_size=32)
SEEN = Seen(OWN, Target("cpu"), Observation(block=block(100, waits=0.5)), cores=4, ceiling=block(200))


def steps(waits: float, **more) -> Observation:
    return Observation(block=block(100, waits=waits), **more)


def of(seen: Seen, title: str) -> Suggestion:
    return next(one for one in suggest(seen) if one.title.startswith(title))


def test_workers_are_predicted_from_the_wait_and_the_cores_that_they_share_with_the_step():
    idea = of(replace(SEEN, own=OWN.replace(cpu_threads=4)), "Loader workers")
    # 10 ms a sample, half of it loading: two workers of four cores, which the model's threads need as well
    assert idea.settings == {"workers": 2}
    assert idea.gain == pytest.approx(1 / (0.5 / 4 + 0.5), rel=1e-6)
    assert idea.at_most and "2 load beside the step" in idea.basis
    assert idea.set_options == "--set workers=2"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_prediction_exceeds_what_the_waiting_allows(device):
    seen = replace(SEEN, target=Target(device), ceiling=block(2000), own=OWN.replace(workers=4))
    assert all(idea.gain <= 2.0 for idea in suggest(seen) if idea.title.startswith("Loader"))
    assert replace(SEEN, target=Target("cuda"), ceiling=block(20)).without_waiting_s == SEEN.step_s


def test_on_few_cores_fewer_workers_are_worth_a_try():
    seen = replace(SEEN, cores=2, own=OWN.replace(workers=2, cpu_threads=2))
    assert of(seen, "Fewer workers").settings == {"workers": 1}
    assert of(replace(seen, own=OWN.replace(workers=1, cpu_threads=2)), "Fewer workers").settings == {
        "workers": 0
    }


def test_on_a_gpu_loading_is_hidden_behind_the_step():
    seen = replace(SEEN, target=Target("cuda"))
    idea = of(seen, "Loader workers")
    assert idea.settings["workers"] == 4 and idea.settings["pin_memory"]
    assert idea.gain == pytest.approx(1 / 0.5)


def test_a_step_that_does_not_wait_needs_no_workers():
    idea = of(replace(SEEN, steps=steps(0.01)), "Loader workers")
    assert idea.state == "refused" and "next to nothing" in idea.why


def test_workers_that_cannot_keep_up_call_for_cheaper_samples():
    idea = of(replace(SEEN, own=OWN.replace(workers=4)), "Loader workers")
    assert idea.state == "edit" and "cheaper" in idea.why and idea.gain == pytest.approx(2.0)


def test_shares_of_a_profile_bound_the_gain():
    seen = replace(SEEN, analysis=analysis(mkldnn_convolution=0.5, relu=0.2, mm=0.1))
    assert of(seen, "torch.compile").gain == pytest.approx(1 / 0.8)
    assert of(seen, "channels_last").gain is None and "50% of a step" in of(seen, "channels_last").why


def test_without_a_profile_a_gain_is_unknown_and_says_why():
    idea = of(SEEN, "torch.compile")
    assert idea.gain is None and "only measuring tells" in idea.basis and not idea.at_most


def test_amp_follows_from_a_step_that_was_tried_in_16_bits():
    assert of(SEEN, "AMP").gain is None
    # 10 ms a sample, 5 ms of it on a held batch: three times as fast
    idea = of(replace(SEEN, in_16_bits=3.0), "AMP")
    assert idea.gain == pytest.approx(10 / (5 + 5 / 3)) and not idea.at_most
    assert "3.00× as fast in bf16" in idea.basis


def test_what_is_on_or_refused_is_told_with_its_reason():
    target = Target("cpu", own={"channels_last": True}, refused={"compile": "the script compiles it already"})
    seen = replace(SEEN, own=OWN.replace(channels_last=True), target=target)
    assert of(seen, "channels_last").state == "on"
    assert of(seen, "torch.compile").state == "refused"
    assert of(seen, "torch.compile").why == "the script compiles it already"


def test_the_largest_predicted_gain_comes_first_and_the_unknown_after_it():
    seen = replace(SEEN, analysis=analysis(relu=0.9, conv2d=0.0))
    states = [idea.state for idea in suggest(seen)]
    assert states == sorted(states, key=["try", "edit", "refused", "on"].index)
    gains = [idea.gain or 0.0 for idea in suggest(seen) if idea.state == "try"]
    assert gains == sorted(gains, reverse=True) and suggest(seen)[0].title == "torch.compile"


def test_a_line_that_waits_for_the_gpu_is_an_edit():
    places = [Place("item", "train.py:7", "wait", "read it every N steps", count=4, seconds=4 * 0.08)]
    seen = replace(SEEN, target=Target("cuda"), syncs=SyncReport(places, 4, "cuda"))
    idea = of(seen, "item at train.py:7")
    assert idea.state == "edit" and idea.gain == pytest.approx(1 / (1 - 0.08 / 0.32))
    assert not [one for one in suggest(replace(seen, target=Target("cpu"))) if "train.py" in one.title]


def test_what_would_gain_nothing_is_not_worth_a_try():
    seen = replace(SEEN, analysis=analysis(mm=1.0), in_16_bits=0.5)
    assert of(seen, "AMP").state == "refused" and "gain nothing" in of(seen, "AMP").why
    assert of(seen, "Optimizer").gain is None


def test_memory_that_each_step_fetches_again_is_kept_by_the_allocator(monkeypatch):
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    seen = replace(SEEN, steps=steps(0.5, system_s=0.64, page_faults=10 * 900))
    idea = of(seen, "Keep freed memory")
    assert idea.settings == {"allocator": "keep"} and idea.gain == pytest.approx(1 / 0.8)
    for other in (
        replace(SEEN, steps=steps(0.5, system_s=0.64, page_faults=100)),
        replace(SEEN, steps=steps(0.5, system_s=0.05, page_faults=9000)),
        replace(seen, target=Target("cuda")),
    ):
        assert not any(one.title == "Keep freed memory" for one in suggest(other))
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert not any(one.title == "Keep freed memory" for one in suggest(seen))
