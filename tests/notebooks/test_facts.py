"""What the course says and code can check: the sums of chapter 14, and facts behind the answers of quizzes."""

import inspect
import math
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jupytext
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torch.utils.data import dataloader as loaders

import perfkit
from perfkit.additions.lanes import panel
from perfkit.results import recordings
from perfkit.results.stats import Ratio
from perfkit.studies.sources import Progress

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "notebooks" / "src"


def prose(chapter):
    """The text of a chapter in one line."""
    cells = jupytext.read(SOURCES / f"{chapter}.py").cells
    return " ".join(" ".join(cell.source.split()) for cell in cells if cell.cell_type == "markdown")


@pytest.fixture(scope="module")
def scope():
    """What the cells of chapter 14 have computed; it measures nothing."""
    values = {}
    for cell in jupytext.read(SOURCES / "14_checking_the_articles.py").cells:
        if cell.cell_type == "code":
            exec(cell.source.replace("plt.show()", "plt.close()"), values)
    return values


def test_the_placement_fix_is_worth_what_the_rows_say(scope):
    before, after = scope["totals"]
    steady, later = scope["steady_totals"]
    touched, fixed = scope["touched"]
    assert [round(value, 1) for value in (before, after)] == [26.6, 14.5]
    assert [round(value, 2) for value in (steady, later, touched, fixed)] == [8.08, 4.79, 2.91, 0.83]
    assert round(before / after, 2) == 1.83 and round(steady / later, 2) == 1.69
    assert round(scope["alone"], 2) == 1.35
    assert round(touched / steady, 2) == 0.36 and round(1 - later / steady, 2) == 0.41
    assert "1.69" in prose("14_checking_the_articles")
    for chapter in ("11_hidden_transfers", "14_checking_the_articles"):
        assert all(figure in prose(chapter) for figure in ("26.6 to 14.5 ms", "1.83", "1.35"))


def test_kernels_take_as_long_in_every_stage_at_the_rate_and_not_at_the_printed_step(scope):
    kernels = scope["kernels_ms"]
    assert all(24 < kernels[name] < 28 for name in ("baseline", "8 workers", "pinned, 1,200/s"))
    assert kernels["pinned, 46 ms"] > 42
    assert math.isclose(kernels["8 workers"] + 10, 37, abs_tol=0.1)
    assert round(scope["rest_ms"]["pinned, 1,200/s"]) == 2


def test_the_slides_rows_for_m_are_of_one_kind(scope):
    speedups = [round(fp32 / fp16, 2) for *_, fp32, fp16, _ in scope["rows"]]
    assert speedups == [5.02, 5.04, 1.05, 1.01]


def test_the_slides_log_of_workers():
    batch, reader, rate = (0.4842, 0.5069, 0.4977), (0.23764, 0.25629, 0.25142), (8.2615, 7.8912, 8.0372)
    assert round(1 / (1 - sum(reader) / sum(batch)), 1) == 2.0
    assert round((17.1497 + 16.8328 + 17.0885) / sum(rate), 1) == 2.1
    check = (SOURCES / "14_checking_the_articles.py").read_text(encoding="utf-8")
    assert "2.0 explains nearly all of the 2.1 that the slides measured" in check
    assert round(100 * (72.81 / 31.65 - 1)) == 130 and "Right: 130%" in check


def test_without_workers_there_is_no_thread_that_pins():
    """03: the training process pins each batch itself."""
    assert "pin_memory" in inspect.getsource(loaders._SingleProcessDataLoaderIter._next_data)
    thread = "_pin_memory_thread"
    assert thread not in inspect.getsource(loaders._SingleProcessDataLoaderIter)
    assert thread in inspect.getsource(loaders._MultiProcessingDataLoaderIter)


class Augmented(Dataset[torch.Tensor]):
    """Samples that may draw a random number, as `RandomCrop` does."""

    def __init__(self, is_random):
        self.is_random = is_random

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([index, torch.rand(()).item() if self.is_random else 0.0])


@pytest.mark.parametrize("is_random", [False, True])
def test_workers_change_losses_only_if_the_data_set_draws_random_numbers(is_random):
    """02: in the first epoch the order of samples stays; random numbers come from the worker's own generator."""

    def epoch(workers):
        generator = torch.Generator().manual_seed(3)
        torch.manual_seed(3)
        data = Augmented(is_random)
        loader = DataLoader(data, 4, shuffle=True, generator=generator, num_workers=workers)
        return torch.cat(list(loader))

    plain, parallel = epoch(0), epoch(1)
    assert torch.equal(plain[:, 0], parallel[:, 0])
    assert torch.equal(plain, parallel) is not is_random


@pytest.mark.parametrize("has_own", [False, True])
def test_persistent_workers_change_later_orders_unless_the_sampler_has_its_own_generator(has_own):
    """02: an iterator draws the seed of its workers from the loader's generator, and persistent workers keep theirs."""

    def orders(workers):
        torch.manual_seed(3)
        data = Augmented(is_random=False)
        own = torch.Generator().manual_seed(3) if has_own else None
        sampler = RandomSampler(data, generator=own)
        loader = DataLoader(data, 4, sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
        return [torch.cat(list(loader))[:, 0] for _ in range(2)]

    (first, later), (same, other) = orders(0), orders(1)
    assert torch.equal(first, same)
    assert torch.equal(later, other) is has_own


def test_gradients_are_none_by_default():
    """05: the tip of the walk-through has expired."""
    assert inspect.signature(torch.optim.Optimizer.zero_grad).parameters["set_to_none"].default is True


@pytest.mark.parametrize(("dynamic", "most"), [(None, 2), (False, 8)])
def test_a_length_that_changes_becomes_dynamic_and_compiles_no_more(dynamic, most):
    """07 and its puzzle: only with `dynamic=False` each new shape is compiled, up to eight."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph, _):
        graphs.append(1)
        return graph.forward

    double = torch.compile(lambda tokens: tokens * 2, backend=backend, dynamic=dynamic)
    for length in (8, 11, 13, 17, 19, 23, 29, 31, 37, 41):
        double(torch.ones(4, length))
    assert len(graphs) == most


def test_a_model_can_compile_itself_in_place():
    """07: the check of the exercise takes both ways."""
    model = torch.nn.Linear(2, 2)
    assert model._compiled_call_impl is None
    model.compile(backend="eager")
    assert not isinstance(model, torch._dynamo.OptimizedModule) and model._compiled_call_impl


def test_autocast_leaves_most_operators_in_the_type_of_their_input():
    """06: products in 16 bits, losses in 32, and the rest in whatever comes."""
    inputs = torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        product = torch.nn.Linear(8, 8)(inputs)
        assert product.dtype == product.relu().dtype == torch.bfloat16
        assert inputs.relu().dtype == torch.float32
        assert torch.nn.functional.mse_loss(product, product).dtype == torch.float32


def test_sparse_gradients_need_an_optimizer_that_takes_them():
    """11: a table on the host."""
    for kind, takes in ((torch.optim.SGD, True), (torch.optim.SparseAdam, True), (torch.optim.AdamW, False)):
        table = torch.nn.Embedding(10, 4, sparse=True)
        optimizer = kind(table.parameters(), lr=0.1)
        table(torch.tensor([1, 2])).sum().backward()
        if takes:
            optimizer.step()
        else:
            with pytest.raises(RuntimeError, match="sparse"):
                optimizer.step()


def test_partial_sums_may_be_rounded_to_16_bits_by_default():
    """06: sums inside a product are *normally* kept in float32."""
    assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert "normally kept in float32" in prose("06_amp")


def test_the_profiler_has_the_columns_that_the_cheat_sheet_names():
    source = inspect.getsource(torch.autograd.profiler_util)
    sheet = (ROOT / "docs" / "cheat_sheet.md").read_text(encoding="utf-8")
    for column in ('f"Self {device_name}"', 'f"{device_name} total"'):
        assert column in source
        assert column[2:-1].replace("{device_name}", "CUDA") in sheet


def gain(picture):
    """How many times as many samples/s the second side of a recorded picture has."""
    before, after = panel.recorded(picture).sides
    return after.samples / after.step_ms / (before.samples / before.step_ms)


def test_what_the_simulation_overstates_and_understates_is_said_next_to_its_pictures():
    """04 and 06: the walk-through measured 1.32 times for the batch, 1.48 for AMP with twice the batch."""
    assert round(gain("sim-v100-batch_size"), 2) == 1.08 and "predicts 1.08 times" in prose("04_batch_size")
    assert gain("sim-v100-amp-alone") > 1.7 and "overstates it" in prose("06_amp")
    assert round(512 / 0.324 / 1200, 2) == 1.32 and round(2477 / 1670, 2) == 1.48


def test_in_the_simulation_the_host_waits_for_a_pageable_copy_and_is_ahead_of_a_pinned_one():
    """03: orange before, grey after."""
    before, after = (
        {bar.kind for bar in side.rows["host"]} for side in panel.recorded("sim-v100-pinning").sides
    )
    assert "ahead" not in before and "ahead" in after


def test_the_limit_of_pinning_follows_from_bytes_and_bandwidth():
    size = 32 * 3 * 224 * 224 * 4
    assert round(size / 1e6, 1) == 19.3 and round(size / 1.9e9 * 1e3) == 10
    left_ms = size / 12e9 * 1e3
    assert round(left_ms, 1) == 1.6 and round(37 - 10 + left_ms, 1) == 28.6 and round(37 / 28.6, 1) == 1.3
    assert round(37 / 27, 2) == 1.37 < round(1200 / 865, 2) == 1.39
    assert "37 ÷ 28.6, about 1.3 times" in prose("03_pinning")
    left_s = 32 / 1200 * (1 - 0.9237)
    assert round(left_s * 1e3) == 2 and round(size / left_s / 1e9, 1) == 9.5, "14: what pinning left"
    assert "9.5 GB/s" in prose("14_checking_the_articles") and "derives about 9.5" in prose("03_pinning")


@pytest.mark.usefixtures("data_dir")
def test_the_plot_of_workers_has_the_rates_of_the_recorded_ladder():
    """02: one machine and recipe have one rate, in the plot, the table and the picture above it."""
    v100 = perfkit.plan(device="sim:v100", host="article")
    pair = perfkit.compare("baseline", "workers=8", v100)
    recorded = {run.stage: run.samples_per_s.value for run in recordings.find("sim-v100")}
    assert pair.a.samples_per_s.value == pytest.approx(recorded["baseline"], rel=1e-3)
    assert pair.b.samples_per_s.value == pytest.approx(recorded["data_loading"], rel=1e-3)
    source = (SOURCES / "02_data_loading.py").read_text(encoding="utf-8")
    assert 'perfkit.plan(device="sim:v100", host="article")' in source


def test_the_exposed_part_of_the_buckets_is_that_of_the_picture():
    """13: the cell computes what the picture at the top shows."""
    (code,) = [
        cell.source
        for cell in jupytext.read(SOURCES / "13_several_gpus.py").cells
        if "def exposed_ms" in cell.source
    ]
    names = {}
    exec(code, names)
    for side, bucket_mb in zip(panel.recorded("buckets").sides, (100, 25), strict=True):
        drawn = max(bar.end_ms for bar in side.rows["exchange"]) - names["BACKWARD_MS"]
        assert names["exposed_ms"](bucket_mb) == pytest.approx(drawn)


def test_ignore_index_is_the_mean_over_real_tokens_and_a_batch_of_padding_is_nan():
    """11 and its puzzle: the idiom and the version by hand give the same, without a wait."""
    logits, targets = torch.randn(12, 5), torch.tensor([1, 2, 0, 0, 3, 4] * 2)
    mask = targets > 0

    def by_hand(mask):
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        return (losses * mask).sum() / mask.sum()

    loss = torch.nn.functional.cross_entropy
    with perfkit.detect_syncs() as places:
        idioms = loss(logits, targets, ignore_index=0), loss(logits, targets.masked_fill(~mask, -100))
    assert not places and all(torch.allclose(one, by_hand(mask)) for one in idioms)
    assert loss(logits, targets * 0, ignore_index=0).isnan() and by_hand(mask & ~mask).isnan()


def test_a_worker_is_two_batches_ahead_by_default():
    """02: so eight workers are up to sixteen ahead."""
    assert DataLoader(Augmented(False), num_workers=1).prefetch_factor == 2


def test_bytes_are_a_quarter_of_floats_but_for_the_label():
    pixels = 3 * 96 * 96
    assert (4 * pixels + 8, pixels + 8) == (110_600, 27_656)
    assert "the label's 8 bytes stay" in prose("05_uint8_copy")


def test_convolutions_are_tf32_by_default_and_products_are_not():
    """06, and the card of channels_last; asked in a process in which nothing has been set."""
    ask = "from torch import backends as on; print(on.cudnn.allow_tf32, on.cuda.matmul.allow_tf32)"
    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["True", "False"]


def test_on_a_gpu_the_optimizers_default_is_foreach(monkeypatch):
    """The puzzle of the fused optimizer: on a machine without a GPU, the CPU stands for a device that has it."""
    optimizers = inspect.getmodule(torch.optim.Optimizer)
    assert "cuda" in optimizers._get_foreach_kernels_supported_devices()
    monkeypatch.setattr(optimizers, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    assert optimizers._default_to_fused_or_foreach(parameters, differentiable=False) == (False, True)


@pytest.mark.parametrize(("verdict", "words"), [
    ("faster", "after 200 steps"),
    ("undecided", "not known yet, because the gain is undecided"),
    ("no measurable difference", "never, because it is not faster"),
    ("slower", "never, because it is not faster"),
])  # fmt: skip
def test_when_compiling_pays_for_itself_follows_from_the_verdict(verdict, words, capsys):
    """07: an undecided gain is not none."""
    cells = jupytext.read(SOURCES / "07_compile.py").cells
    (code,) = [cell.source for cell in cells if cell.cell_type == "code" and "compile_s" in cell.source]
    before = SimpleNamespace(step_s=SimpleNamespace(value=0.1))
    ratio = Ratio(2.0, 1.9, 2.1, verdict)
    after = SimpleNamespace(compile_s=10.0, speedup=lambda role: ratio)
    exec(code, {"panel": SimpleNamespace(runs=[before, after])})
    assert capsys.readouterr().out == f"compiling took 10.0 s; when does it pay for itself? {words}\n"


def test_the_mean_under_a_mask_divides_by_what_is_not_masked():
    """The cheat sheet."""
    sheet = (ROOT / "docs" / "cheat_sheet.md").read_text(encoding="utf-8")
    lines = [line for line in sheet.splitlines() if line.startswith(("masked = ", "mean = masked"))]
    names = {"torch": torch, "x": torch.tensor([1.0, 2.0, 6.0]), "mask": torch.tensor([True, False, True])}
    exec("\n".join(lines), names)
    assert len(lines) == 2 and names["mean"] == names["x"][names["mask"]].mean()


def printed(chapter, part, scope, capsys):
    """What the code cell with this part prints."""
    cells = jupytext.read(SOURCES / f"{chapter}.py").cells
    (code,) = [cell.source for cell in cells if cell.cell_type == "code" and part in cell.source]
    exec(code, scope)
    return capsys.readouterr().out


def test_on_equal_samples_the_small_batches_are_ahead(capsys):
    """04: after equal steps, the large ones seem to be."""
    runs = {run.stage: run for run in recordings.find("cpu-quick")}
    small, large = runs["baseline"], runs["batch_size"]
    both = SimpleNamespace(runs=[small, large])
    lines = printed("04_batch_size", "small, large =", {"panel": both}, capsys).splitlines()
    assert lines[1].startswith("samples 65 to 128: loss ") and len(lines) == len(small.losses) // 2
    for line, loss in zip(lines, large.losses, strict=False):
        few = float(line.split("loss ")[1].split()[0])
        assert few < loss and line.endswith(f"{loss:.2f} in one of 64")
    assert large.losses[3] < small.losses[3]
    unlike = SimpleNamespace(runs=[small, SimpleNamespace(losses=[])])
    assert printed("04_batch_size", "small, large =", {"panel": unlike}, capsys) == "", "it did not train"


class Counted(TorchDispatchMode):
    """Counts tensors that operators read and write."""

    def __init__(self):
        super().__init__()
        self.operators = self.tensors = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.operators += 1
        self.tensors += 1 + sum(isinstance(one, torch.Tensor) for one in args)
        return operator(*args, **(kwargs or {}))


def test_the_chain_that_is_fused_has_four_operators_and_nine_tensors():
    """07: and its convolution is one operator."""
    cells = jupytext.read(SOURCES / "07_compile.py").cells
    (code,) = [cell.source for cell in cells if cell.cell_type == "code" and "def small_ones" in cell.source]
    scope = {"torch": torch, "nn": torch.nn}
    exec(code.partition("\n\nfor function")[0], scope)
    found = []
    for name in ("small_ones", "convolution"):
        with Counted() as counted:
            scope[name](scope["x"], scope["y"])
        found.append((counted.operators, counted.tensors))
    assert found == [(4, 9), (1, 3)]
    assert "four operators, which read or write nine tensors in all" in prose("07_compile")


@pytest.mark.parametrize(("reads", "waits"), [(True, 15), (False, 1)])
def test_a_loop_that_reads_its_loss_waits_in_each_step(reads, waits):
    """11: its picture has two steps of a device, or of the thread that stands in for one."""
    script = runpy.run_path(str(ROOT / "data" / "scripts" / "hidden_waits.py"))
    device = script["Device"]()
    script["train"](device, reads, steps=14)
    assert [kind for _, _, kind, *_ in device.host].count("wait") == waits
    rows = device.two_steps()
    assert [bar[3] for bar in rows["kernels"]] == [10, 11]
    picture = panel.made({"loop": rows}, None, {}, Progress())
    assert picture.sides[0].shown == ["host", "kernels"] and picture.sides[0].steps == 2
