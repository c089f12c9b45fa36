"""Looks inside: faults that make a GPU's host wait are found at their line, bytes and FLOPs counted, reports shown."""

import operator
import warnings
from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import perfkit
from perfkit import notebook as pk
from perfkit import program, train
from perfkit.additions import inside
from perfkit.additions.inside import looks, step, syncs
from perfkit.errors import InvalidValue
from perfkit.notebook.shown import CellOutput
from perfkit.recipe import Recipe
from perfkit.show import document, terminal
from perfkit.show.style import Figure
from perfkit.studies.sources import Plan
from perfkit.worker.procedure import drive
from perfkit.worker.session import WorkerSession
from perfkit.worker.training import Training
from tests.support.toy import Toy

X = torch.arange(6.0)
FAULTS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: torch.masked_select(x, x > 1),
    "unique": lambda x: x.unique(),
    "boolean index": lambda x: x[x > 2],
    "boolean assignment": lambda x: operator.setitem(x.clone(), x > 2, torch.ones(3)),
    "the article's case": lambda x: x[: int(torch.tensor(x.shape).sub(2)[0])],
    "a branch": lambda x: 1 if x.sum() > 100 else 0,
    "printed": lambda x: f"{x.sum()}",
    "equal": lambda x: torch.equal(x, x),
}


def test_the_lines_of_the_training_program_are_places_too():
    assert {module.__file__ for module in (train, program)} == syncs.PROGRAM


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_found_at_its_line(fault):
    with perfkit.detect_syncs() as detected:
        FAULTS[fault](X)
    assert detected and sum(place.count for place in detected) <= 2
    assert all(place.where.startswith("test_inside.py:") and place.fix for place in detected)


def test_a_clean_step_has_none_and_neither_has_a_loader():
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.tensor(float(torch.arange(4)[index].item()))

    model, target = torch.nn.Linear(6, 2), torch.zeros(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    with perfkit.detect_syncs() as detected:
        list(torch.utils.data.DataLoader(Data(), batch_size=2))
        for _ in range(3):
            loss = torch.nn.functional.mse_loss(model(X), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            torch.where(X > 2, X, -X)
    assert not detected


@pytest.mark.parametrize(
    ("requires_grad", "calls"), [(False, ["__getitem__"]), (True, ["__getitem__", "backward of __getitem__"])]
)
def test_a_mask_waits_again_in_backward_if_there_is_one(requires_grad, calls):
    """There the gradient is written where the mask is true, which is looked for by nonzero again."""
    values = torch.arange(4.0, requires_grad=requires_grad)
    with perfkit.detect_syncs() as places:
        values[values.detach() > 1]
    assert [(place.call, place.count) for place in places] == [(call, 1) for call in calls]
    assert len({place.where for place in places}) == 1, "both are that line's"


def test_the_detector_does_not_wait_itself(monkeypatch):
    """To format a tensor is to read it: on a GPU that waits for it."""
    monkeypatch.setattr(torch._tensor_str, "_str", lambda *_, **__: pytest.fail("a tensor was read"))
    with perfkit.detect_syncs():
        torch.zeros(6).copy_(X).to(X)


def test_what_only_the_driver_notices_is_listed_with_its_line(monkeypatch):
    modes, notice = [], "Synchronization debug mode does not yet detect all synchronizing operations"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    set_mode = lambda mode: modes.append(mode) or warnings.warn(notice, stacklevel=1)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with warnings.catch_warnings(record=True) as others, perfkit.detect_syncs() as detected:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("of the script", stacklevel=1)
    (place,) = detected
    assert [str(other.message) for other in others] == ["of the script"]
    assert place.where.startswith("test_inside.py:")
    assert (place.kind, place.count, modes) == ("wait", 2, ["warn", 0])


@pytest.mark.parametrize(
    ("pinned", "asynchronous", "fix"),
    [(False, True, "pin it"), (True, False, "non_blocking"), (True, True, "overlaps")],
)
def test_copies_to_a_device_are_judged_by_their_memory(pinned, asynchronous, fix):
    """With stand-ins: no GPU is needed to judge what a copy from pageable or pinned memory means."""
    source = SimpleNamespace(device=torch.device("cpu"), is_pinned=lambda: pinned)
    kind, judgement = syncs._copy("to", (source,), {"non_blocking": asynchronous}, "cuda", on_gpu=True)
    assert kind == "host to device"
    assert fix in judgement


def test_a_scaler_that_reads_whether_gradients_overflowed_is_told_apart_from_a_read_of_the_script():
    model = torch.nn.Linear(6, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu")
    scaler.scale(model(X).sum()).backward()
    with perfkit.detect_syncs() as detected:
        scaler.step(optimizer)
    assert "item" in {place.call for place in detected}
    assert {place.fix for place in detected} == {syncs.SCALER_REMEDY}


def test_what_a_library_reads_is_not_the_script_s_to_change():
    names = {}
    exec(compile("def read(value): return value.item()", "/x/site-packages/trainer/loop.py", "exec"), names)
    with perfkit.detect_syncs() as detected:
        names["read"](X.sum())
    assert [place.fix[:17] for place in detected] == ["trainer does this"]


def session(workload=None, **switches):
    asked = WorkerSession(SimpleNamespace(send=None))
    asked.subject = Training(Recipe(**{"batch_size": 8, **switches}), workload or Toy(), torch.device("cpu"))
    return asked


class Deep(Toy):
    """Each of eight parts keeps 256 floats of a sample, and 16 more."""

    def model(self):
        parts = [nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 16)) for _ in range(8)]
        return nn.Sequential(*parts, nn.Linear(16, 2))

    def optimizer(self, parameters, **implementation):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **implementation)


def test_each_byte_is_of_one_kind_and_activations_are_what_layers_keep_for_the_backward_pass():
    report = session(Deep(), batch_size=64, zero_grad_set_to_none=False).answer(inside.MEMORY, {})
    assert sum(report.parts.values()) == report.peak
    weights, kept = sum(weight.nbytes for weight in Deep().model().parameters()), 8 * 4 * 64 * 256
    assert [report.parts[kind] for kind in ("weights", "optimizer", "gradients")] == [weights] * 3
    assert report.parts["batch"] >= 64 * 16 * 4
    assert kept <= report.parts["activations"] < 1.1 * kept
    assert report.allocated is None
    assert report.peak_phase in ("forward", "backward", "optimizer")


def test_flops_of_a_step_are_those_of_its_products_and_a_compiled_model_is_not_followed():
    """Forward 2·b·in·out for each layer; backward the same for weights, and for inputs but the first."""
    asked = session()
    assert step.flops(asked.subject) == 2 * 8 * (3 * 32 * 2 + 2 * 16 * 32)
    asked.subject.recipe = Recipe(compile=True)
    assert step.flops(asked.subject) is None
    with pytest.raises(InvalidValue, match="compile=off"):
        asked.answer(inside.MEMORY, {})


def test_of_emulated_products_those_of_some_seconds_are_measured_and_of_float32_all(monkeypatch):
    seconds = {torch.float32: 0.1, torch.bfloat16: 1.0, torch.uint8: 0.1}
    monkeypatch.setattr(step, "DEPTHS", (3, 4))
    monkeypatch.setattr(step, "WIDTHS_ON_CPU", (5, 6))
    monkeypatch.setattr(step, "_seconds", lambda device, call, launches: seconds[call().dtype])
    asked = session()
    asked.report = lambda phase: None
    report = drive(step.kernels(asked), asked.subject.step)
    shapes = {kind: [row.shape for row in report.rows if row.dtype == kind] for kind in report.peaks}
    assert len(shapes["float32"]) == 8 and shapes["bfloat16"] == shapes["float32"][:4]


def test_reports_are_shown_as_tables_and_memory_as_a_picture_too(golden):
    kernels = inside.KernelReport(
        peaks={"float32": 2e9},
        bytes_per_s=1e9,
        rows=[inside.ShapeTiming("1 x 2 x 3", "float32", 0.001, 1e9, 4.0)],
        flops=10**9,
        dtype="float32",
        step_s=1.0,
        recipe="baseline",
    )
    account = inside.MemoryReport.of(
        [(kind, 10**6) for kind in ("weights", "gradients", "activations")],
        recipe="baseline",
        peak_phase="backward",
        allocated=None,
        reserved=None,
    )
    wait = inside.Place("item", "toy.py:7", "wait", "read it later", count=8)
    page = [
        *looks.kernel_sections(kernels),
        *looks.kernel_sections(replace(kernels, flops=None))[2:],
        *looks.memory_sections([account, replace(account, recipe="amp=bf16", peak=2_000_000)]),
        looks.sync_table(inside.SyncReport([wait], 4, "cpu")),
    ]
    golden("looks", terminal.text(page, 150))
    held = document.find(page, Figure, "held")
    assert "amp=bf16: 2.00 MB" in held.alt
    assert [width for width, _ in held.rows[0].pieces if width] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("recipes", "words"),
    [
        ({}, "no recipe was given. Give each a title"),
        ({"plain": {}, "mine": {"wrkers": 2}}, "unknown switch 'wrkers'"),
        ({"plain": {}, "mine": {"pin_memory": True}}, "what is set cannot act here: Pin memory"),
    ],
)
def test_recipes_are_checked_before_the_memory_of_one_is_measured(monkeypatch, recipes, words):
    monkeypatch.setattr(Plan, "open", None)
    with pytest.raises(InvalidValue, match=words):
        pk.memory(recipes, device="cpu")


@pytest.mark.parametrize("look", [pk.kernels, pk.profile])
@pytest.mark.parametrize("what", [{"recipe": Recipe(pin_memory=True)}, {"settings": {"pin_memory": True}}])
def test_a_look_leaves_no_switch_out_in_silence(monkeypatch, look, what):
    monkeypatch.setattr(Plan, "open", None)
    with pytest.raises(InvalidValue, match="cannot act here: Pin memory: needs a CUDA device"):
        look(device="cpu", **what)


@pytest.mark.parametrize(
    "look",
    [
        lambda: pk.memory({"plain": {}}, device="cpu"),
        lambda: pk.kernels(device="cpu"),
        lambda: pk.profile(device="cpu"),
    ],
)
@pytest.mark.usefixtures("data_dir")
def test_a_cell_says_that_a_look_waits_for_another_measurement(look, monkeypatch):
    def waits(plan, progress, study):
        progress.wait("perfkit run uses the cores")
        raise InvalidValue("enough")

    told = []
    monkeypatch.setattr(Plan, "open", waits)
    monkeypatch.setattr(CellOutput, "line", lambda output, now: told.append(now.phase))
    with pytest.raises(InvalidValue, match="enough"):
        look()
    assert told == ["waiting: perfkit run uses the cores"]
