"""The command line as a person uses it; the README's example in processes of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import ROOT, perfkit, perfkit_alone

pytestmark = pytest.mark.usefixtures("no_orphans")

ESTIMATE = {"value", "low", "high"}
FIELDS = """
    name recipe status reason samples_per_s step_s data_wait_s data_wait_share ceiling_samples_per_s
    pipeline_efficiency peak_memory_bytes h2d_bytes_per_sample startup_s compile_s speedup_vs_previous
    speedup_vs_baseline mechanism losses warnings raw
""".split()
RATIO = {"ratio", "low", "high", "verdict"}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run of five stages of the article's workload; everything below looks at it."""
    folder = tmp_path_factory.mktemp("cli")
    outputs = ("--json", str(folder / "out.json"), "--html", str(folder / "out.html"))
    stages = "data_loading,pinning,uint8_copy,device_resize,amp"
    named = ("--workload", "cifar_resnet18", "--stages", stages, "--device", "cpu")
    done = perfkit("run", *named, *outputs)
    return {
        "text": done.stdout,
        "json": json.loads((folder / "out.json").read_text()),
        "html": (folder / "out.html").read_text(),
    }


def test_the_json_has_the_promised_fields(session: dict[str, Any]) -> None:
    document = session["json"]
    assert {"schema", "machine", "workload", "preset", "stages"} <= set(document)
    assert document["workload"]["name"].endswith("CifarResNet18")
    stages = {stage["name"]: stage for stage in document["stages"]}
    assert list(stages) == ["baseline", "data_loading", "pinning", "uint8_copy", "device_resize", "amp"]
    for stage in document["stages"]:
        assert set(stage) >= set(FIELDS)
    for name in ("baseline", "data_loading", "uint8_copy", "device_resize", "amp"):
        stage = stages[name]
        assert stage["status"] == "ok", stage["reason"]
        assert set(stage["samples_per_s"]) == set(stage["step_s"]) == ESTIMATE
        assert (
            len(stage["raw"]["step_s"]) == len(stage["raw"]["data_wait_s"]) > stage["raw"]["warmup_steps"] > 0
        )
        assert all(set(mechanism) == {"switch", "ok", "evidence"} for mechanism in stage["mechanism"])
        assert len(stage["losses"]) == 4
        assert stage["h2d_bytes_per_sample"] is None  # nothing is copied on a CPU
    assert set(stages["amp"]["speedup_vs_baseline"]) == RATIO
    assert stages["baseline"]["speedup_vs_previous"] is None


def test_a_stage_that_cannot_apply_is_never_counted_as_measured(session: dict[str, Any]) -> None:
    pinning = next(stage for stage in session["json"]["stages"] if stage["name"] == "pinning")
    assert pinning["status"] == "not_applicable"
    assert "CUDA" in pinning["reason"]
    assert pinning["samples_per_s"] is None
    assert pinning["raw"]["step_s"] == []
    assert "n/a" in session["text"]


def test_the_mechanisms_are_proven_with_evidence(session: dict[str, Any]) -> None:
    stages = {stage["name"]: stage for stage in session["json"]["stages"]}

    def evidence(stage: str, switch: str) -> str:
        return next(m["evidence"] for m in stages[stage]["mechanism"] if m["switch"] == switch)

    assert evidence("baseline", "uint8_copy") == "the batch is copied as float32: 27,648 bytes per sample"
    assert evidence("uint8_copy", "uint8_copy") == "the batch is copied as uint8: 6,912 bytes per sample"
    assert evidence("device_resize", "uint8_copy") == "the batch is copied as uint8: 3,072 bytes per sample"
    assert evidence("amp", "amp") == "logits are bfloat16"
    assert "1 worker" in evidence("data_loading", "workers")
    said = "copied as uint8: 6,912 bytes per sample (was: the batch is copied as float32: 27,648"
    assert said in session["text"]


def test_stages_that_are_bitwise_the_same_have_the_same_losses(session: dict[str, Any]) -> None:
    stages = {stage["name"]: stage for stage in session["json"]["stages"]}
    assert stages["data_loading"]["losses"] == stages["baseline"]["losses"]
    assert stages["uint8_copy"]["losses"] == pytest.approx(stages["baseline"]["losses"], rel=1e-3)


def test_the_report_is_one_file_that_needs_no_network(session: dict[str, Any]) -> None:
    assert session["html"].startswith("<!doctype html>") or session["html"].startswith("<!DOCTYPE html>")
    assert not re.search(r"(?:src|href)=[\"']?https?:", session["html"])


def test_runs_lists_and_show_prints(session: dict[str, Any]) -> None:
    run_id = session["json"]["stages"][0]["id"]
    assert run_id in perfkit("runs", "--limit", "100").stdout
    shown = perfkit("show", run_id).stdout
    assert "samples in a batch" in shown
    assert json.loads(perfkit("show", run_id, "--json", "-").stdout)["id"] == run_id
    perfkit("show", "nothing", code=2)


def test_the_export_of_a_measured_stage_gives_its_losses(session: dict[str, Any], tmp_path: Path) -> None:
    stage = next(stage for stage in session["json"]["stages"] if stage["name"] == "data_loading")
    script = perfkit(
        "export", "--stage", "data_loading", "--workload", "cifar_resnet18", "--steps", "4"
    ).stdout
    assert "perfkit" not in script.split('"""', 2)[2]
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "train.py"], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    losses = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]
    assert losses == stage["losses"]


def test_diff_shows_what_a_stage_changes() -> None:
    text = perfkit("diff", "data_loading", "--workload", "cifar_resnet18").stdout
    assert "+        num_workers=1," in text
    not_here = perfkit("diff", "pinning", "--workload", "cifar_resnet18").stdout
    assert "# n/a here: Pin" in not_here
    assert "# What it changes on a GPU" in not_here
    assert "+        pin_memory=True," in not_here


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--stages", "pining"), "Did you mean 'pinning'"),
        (("run", "--device", "tpu"), "Allowed: cuda, mps, cpu"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    done = perfkit(*arguments, code=2)
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_doctor_says_which_stages_will_be_real() -> None:
    text = perfkit("doctor").stdout
    assert "will be measured" in text
    assert "n/a" in text


def test_the_workload_of_the_documents_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "workloads.md").read_text(encoding="utf-8")
    code = re.search(r"<!-- example: my_workload.py -->\n```python\n(.*?)```", page, re.DOTALL)
    assert code
    (tmp_path / "my_workload.py").write_text(code.group(1))
    stages = ("--workload", "my_workload:Waves", "--stages", "data_loading,uint8_copy,amp")
    perfkit_alone("run", *stages, "--json", "out.json", cwd=tmp_path)
    document = json.loads((tmp_path / "out.json").read_text())
    assert [stage["status"] for stage in document["stages"]] == ["ok"] * 4
    script = perfkit_alone(
        "export", "--workload", "my_workload:Waves", "--stage", "uint8_copy", cwd=tmp_path
    ).stdout
    (tmp_path / "train.py").write_text(script)
    subprocess.run([sys.executable, "train.py"], check=True, capture_output=True, cwd=tmp_path)
