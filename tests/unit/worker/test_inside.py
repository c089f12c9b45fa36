"""Memory, kernels and Nsight exports, against what can be counted by hand."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from perfkit import trace
from perfkit.errors import InvalidValue, PerfkitError, TraceError
from perfkit.process import nsys
from perfkit.program import train
from perfkit.program.recipe import Recipe
from perfkit.show import document, style, tables_inside
from perfkit.worker import kernels as shapes
from perfkit.worker import memory
from perfkit.worker.checks import inspect, specimen
from perfkit.worker.harness import Harness
from perfkit.workloads.bottlenecks import Recommender
from tests.support.toy import Blocks, Toy

CPU = torch.device("cpu")


def harness(workload: Any, **switches: Any) -> Harness:
    return Harness(train.Training(workload, Recipe(**{"batch_size": 8, **switches}), CPU))


# ---------------------------------------------------------------- memory

WEIGHTS = 4 * (16 * 32 + 32 + 32 * 2 + 2)


class Momentum(Toy):
    def optimizer(self, parameters: Any, **implementation: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **implementation)


def test_each_byte_is_of_one_kind() -> None:
    watched = harness(Momentum())
    watched.training.step(watched.batches)  # now gradients and momentum are there
    found = memory.measure(watched)
    assert sum(found.parts.values()) == found.peak
    assert found.parts["weights"] == WEIGHTS
    assert found.parts["optimizer"] == WEIGHTS
    assert found.parts["gradients"] == WEIGHTS
    assert found.parts["batch"] >= 8 * 16 * 4
    assert found.allocated is None
    assert {"forward", "backward", "optimizer"} <= set(found.phases)


class Deep(Toy):
    """Each layer keeps 256 × 16 floats; the batch is the whole data set."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            *(nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 16), nn.Tanh()) for _ in range(8)),
            nn.Linear(16, 2),
        )


def test_checkpointing_gives_activations_up() -> None:
    plain, less = (
        memory.measure(harness(Deep(), activation_checkpointing=on, batch_size=64)) for on in (False, True)
    )
    assert less.parts["activations"] < 0.5 * plain.parts["activations"]
    assert less.parts["weights"] == plain.parts["weights"]
    assert any(kind == "activations" and size == 4 * 64 * 256 for _, kind, size in plain.places)
    assert ("0.0.weight", "weights", 4 * 16 * 256) in plain.places


def test_memory_of_a_compiled_model_is_refused_in_words() -> None:
    watched = harness(Toy())
    watched.training.recipe = Recipe(compile=True)
    with pytest.raises(InvalidValue, match="compile=false"):
        memory.measure(watched)


def test_after_watching_the_program_is_as_it_was() -> None:
    before = (train.forward, torch.Tensor.backward)
    watched = harness(Blocks())
    memory.measure(watched)
    assert (train.forward, torch.Tensor.backward) == before
    assert "update" not in vars(watched.training)


# ---------------------------------------------------------------- checkpointing, ranges, placement


def losses(workload: Any, **switches: Any) -> tuple[list[float], Any]:
    made = train.Training(workload, Recipe(batch_size=8, **switches), CPU)
    batches = made.batches(train.epochs(made.loader))
    return [made.step(batches).item() for _ in range(4)], made.model


def test_checkpointing_trains_the_same_and_counts_batch_statistics_once() -> None:
    (plain, one), (again, other) = losses(Blocks()), losses(Blocks(), activation_checkpointing=True)
    assert plain == again
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize(
    "switch", [{"activation_checkpointing": True}, {"nvtx_ranges": True}, {"log_every": 2}]
)
def test_a_switch_is_proven_by_what_was_built_not_by_the_recipe(switch: dict[str, Any]) -> None:
    (name,) = switch
    for built in (switch, {}):
        watched = harness(Blocks(), **built)
        for claimed in (switch, {}):
            training = watched.training
            real, training.recipe = training.recipe, Recipe(batch_size=8, **built)
            made = specimen(training, watched.source)
            training.recipe = Recipe(batch_size=8, **claimed)
            (check,) = (one for one in inspect(made) if one.switch == name)
            assert check.ok is (built == claimed), check
            training.recipe = real


def test_an_embedding_on_the_host_feeds_a_model_elsewhere() -> None:
    """`meta` stands for the device: shapes and places are real, values are not."""
    elsewhere = torch.device("meta")
    model = train.make_model(Recommender(50), Recipe(embedding_device="cpu"), elsewhere)
    assert model.embedding.weight.device.type == "cpu"
    assert {p.device.type for p in model.head.parameters()} == {"meta"}
    batch = (torch.zeros(3, 20, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    inputs, targets = train.to_device(batch, Recommender(50), Recipe(embedding_device="cpu"), elsewhere)
    assert (inputs.device.type, targets.device.type) == ("cpu", "meta")
    assert model(inputs).device.type == "meta"


def test_the_table_of_the_recommender_is_trained_by_sparse_gradients() -> None:
    made = train.Training(Recommender(50), Recipe(batch_size=4), CPU)
    inputs, targets = next(made.batches(iter(made.loader)))
    train.forward(made.model, made.workload, made.recipe, CPU, inputs, targets)[1].backward()
    assert made.model.embedding.weight.grad.is_sparse


# ---------------------------------------------------------------- kernels


def test_flops_of_a_step_are_those_of_its_products() -> None:
    """Forward 2·b·in·out for each layer; backward the same for weights, and for inputs but the first."""
    found = shapes.work(harness(Toy()))
    assert found.flops == 2 * 8 * (3 * 32 * 2 + 2 * 16 * 32)
    assert found.bytes > 0
    assert shapes.work(harness(Toy(), amp="bf16")).dtype == "bfloat16"


def test_layers_with_unlucky_sizes_are_listed_with_the_cost_of_padding() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3), nn.Linear(64, 10), nn.Linear(16, 24))
    found = {row.layer: row for row in shapes.misaligned(model)}
    assert set(found) == {"0", "2"}
    assert found["0"].padded == [8, 64]
    assert found["0"].more_flops == pytest.approx(8 / 3 - 1)
    assert found["2"].more_flops == pytest.approx(16 / 10 - 1)


def test_the_views_show_what_was_measured() -> None:
    row = {"shape": "1 x 2 x 3", "kind": "matmul", "dtype": "float32", "seconds": 0.001, "flops_per_s": 1e9,
           "flops_per_byte": 4.0}  # fmt: skip
    work = {"flops": 10**9, "bytes": 10**8, "dtype": "float32", "why": ""}
    found = {
        "peaks": {"float32": 2e9}, "bytes_per_s": 1e9, "rows": [row], "work": work, "misaligned": [],
        "step_s": 1.0, "mfu": 0.5, "light_share": 0.6, "recipe": "baseline",
    }  # fmt: skip
    sections = tables_inside.kernels(found)
    assert ["copying", "1.0 GB/s"] in document.table(sections, "roofs").rows
    assert document.table(sections, "by shape").rows[0][-1] == "50%"
    assert ["MFU (FLOP/s / measured peak)", "50.0%"] in document.table(sections, "a step of").rows
    assert style.to_svg(document.figure(sections, "roofline").draw())
    unknown = {**found, "work": {"flops": None, "bytes": None, "dtype": "", "why": "because"}, "mfu": None}
    assert ["FLOPs", "n/a: because"] in document.table(tables_inside.kernels(unknown), "a step of").rows


# ---------------------------------------------------------------- Nsight Systems

SCHEMA = """
CREATE TABLE StringIds (id INTEGER, value TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME
  (start INTEGER, end INTEGER, nameId INTEGER, correlationId INTEGER, globalTid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
  (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER,
   demangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER,
   blockX INTEGER, blockY INTEGER, blockZ INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY
  (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, bytes INTEGER,
   copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER);
INSERT INTO StringIds VALUES
  (1, 'sgemm<kernel>'), (2, 'cudaLaunchKernel_v7000'), (3, 'cudaMemcpyAsync_v3020');
INSERT INTO TARGET_INFO_GPU VALUES (0, 'Fake GPU', 1000, 10);
"""
THREAD = (7 << 24) | 42


def export(path: Path) -> Path:
    """Two steps of 1 ms: a pageable copy of 0.2 ms, then a kernel of 0.5 ms."""
    with sqlite3.connect(path) as base:
        base.executescript(SCHEMA)
        for step in (0, 1):
            at = 10_000_000 + step * 1_000_000
            base.execute(
                "INSERT INTO NVTX_EVENTS VALUES (?, ?, 'step', NULL, ?)", (at, at + 1_000_000, THREAD)
            )
            for name, start, end in ((3, 50_000, 260_000), (2, 270_000, 280_000)):
                row = (at + start, at + end, name, 10 * step + name, THREAD)
                base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", row)
            copy = (at + 60_000, at + 260_000, 0, 7, 10 * step + 3, 4096, 1, 0, 2)
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?,?,?,?,?)", copy)
            kernel = (at + 300_000, at + 800_000, 0, 7, 10 * step + 2, 1, 8, 1, 1, 128, 1, 1)
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?,?,?,?,?,?)", kernel)
    return path


def test_an_nsys_export_is_read_into_the_same_tables(tmp_path: Path) -> None:
    made = nsys.convert(export(tmp_path / "x.sqlite"), tmp_path / "x.json.gz")
    found = trace.analyse(made)
    assert found.device["name"] == "Fake GPU"
    assert len(found.steps) == 2
    (kernel,) = found.kernels
    assert (kernel.name, kernel.calls, kernel.total_us) == ("sgemm<kernel>", 2, pytest.approx(1000))
    (copy,) = found.transfers
    assert (copy.direction, copy.bytes) == ("HtoD", 8192)
    assert found.gpu_utilization == pytest.approx(0.5, abs=0.01)
    assert [path.name for path in tmp_path.glob("*.part")] == []


@pytest.mark.parametrize("content", [b"", b"no database", None])
def test_what_is_no_export_is_refused_in_words(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "x.sqlite"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(TraceError, match="nsys"):
        nsys.convert(file, tmp_path / "x.json.gz")
    assert not (tmp_path / "x.json.gz").exists()


def test_without_nsys_the_command_is_shown_and_the_reason_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = nsys.program("photos", {"image_size": 32}, Recipe().to_dict(), "cuda", 0)
    asked = nsys.command(told, tmp_path / "out")
    assert asked[:2] == ["nsys", "profile"]
    assert "--capture-range=cudaProfilerApi" in asked
    assert json.loads(asked[-1])["options"] == {"image_size": 32}
    with pytest.raises(PerfkitError, match="not installed"):
        nsys.record(asked, tmp_path / "out")
