"""For every stage: measured recipe, shown diff, exported script and the stage of the ladder agree."""

from dataclasses import replace

import msgspec
import pytest

from perfkit import export
from perfkit.ladder.catalogue import LADDER, OPTIMIZATIONS
from perfkit.studies import planning, staging
from perfkit.studies.climb import climb
from perfkit.worker.messages import Description, DeviceFacts
from perfkit.workloads.cifar_resnet18 import CifarResNet18
from tests.support.plans import on
from tests.unit.studies import fakes

WORKLOAD = "perfkit.workloads.cifar_resnet18:CifarResNet18"
OFFERS = sorted(CifarResNet18.offers)
DESCRIPTION = Description({"image_size": 32}, OFFERS, DeviceFacts())
NAMES = sorted(set(OPTIMIZATIONS) - {"baseline"})
IN_THE_ENVIRONMENT = ("allocator", "wait_policy")
LOSSES = [2.3] * 8


class Child(fakes.FakeChild):
    """A child of a machine with every device: it describes this workload."""

    def answer(self, question, arguments):
        if question == "describe":
            return DESCRIPTION
        answer = super().answer(question, arguments)
        return msgspec.structs.replace(answer, losses=LOSSES) if question == "train" else answer


def plan(device, stages=None, below=True):
    return on(planning.plan(WORKLOAD, "smoke", stages, device="cpu"), device=device).trying(below=below)


def described(wanted):
    return replace(wanted.source(), reported=DESCRIPTION)


def stages(wanted):
    return staging.all_stages(described(wanted))


def shown(*where):
    return staging.stage_diff(described(plan(*where)))


@pytest.fixture
def _machine(monkeypatch, data_dir, whole_machine):
    monkeypatch.setattr(fakes, "FakeChild", Child)
    monkeypatch.setattr(export, "script", fakes.scripted)
    fakes.install(monkeypatch, fakes.FakeMachine())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("_machine")
def test_what_is_measured_is_what_is_shown_and_exported(name):
    # Each somewhere, not everywhere.
    device = "cpu" if len(name) % 2 or name in IN_THE_ENVIRONMENT else "cuda"
    wanted = plan(device, (name,))
    *_, stage = stages(wanted)
    runs = [run for run in climb(wanted) if run.stage in ("baseline", name)]
    assert [run.status for run in runs] == (["not_applicable"] if stage.reason else ["ok", "ok"])
    title, diff = staging.stage_diff(described(wanted))
    if stage.reason:
        assert title.startswith(f"n/a here: {stage.reason}")
        assert not (diff and device == "cuda")
    else:
        before, after = staging.scripts(runs).values()
        assert before != after, "a stage that is measured changes the script"
        assert diff == export.diff(before, after, name)


@pytest.mark.usefixtures("whole_machine")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_stage_alone_is_that_of_the_ladder(device):
    ladder = stages(plan(device, below=False))
    assert [stage.name for stage in ladder] == list(LADDER)
    for at, name in enumerate(LADDER[1:], start=1):
        before, after = stages(plan(device, (name,)))
        assert before.recipe == ladder[at - 1].recipe, name
        assert (after.recipe, after.reason) == (ladder[at].recipe, ladder[at].reason), name


@pytest.mark.usefixtures("whole_machine")
@pytest.mark.parametrize(
    ("name", "variable"), [("allocator", "MALLOC_"), ("data_loading", "OMP_WAIT_POLICY=PASSIVE")]
)
def test_a_variable_of_the_process_stands_in_the_command_of_a_cpu_s_script_alone(name, variable):
    assert variable in shown("cpu", (name,))[1] and variable not in shown("cuda", (name,))[1]
