"""The command line as a person uses it: a ladder, its files, export, a simulated GPU, traces."""

import json
import re
import subprocess
import sys

import pytest

from perfkit.additions.inside import looks
from perfkit.additions.simulate import article
from perfkit.additions.trace.analysis import analyse
from perfkit.studies.climb import climb
from perfkit.studies.planning import plan
from perfkit.studies.sources import Progress
from tests.support import scripts
from tests.support.cli import ROOT, perfkit
from tests.support.looks import syncs

pytestmark = pytest.mark.usefixtures("no_orphans", "zygotes_stay")

CIFAR = ("--workload", "cifar_resnet18", "--device", "cpu")


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """One run of four stages of the article's workload; most tests below look at it."""
    folder = tmp_path_factory.mktemp("cli")
    outputs = ("--json", str(folder / "out.json"), "--html", str(folder / "out.html"))
    done = perfkit("run", *CIFAR, "--stages", "data_loading,pinning,uint8_copy", *outputs)
    document = json.loads((folder / "out.json").read_text())
    stages = {stage["name"]: stage for stage in document["stages"]}
    return {"text": done.stdout, "stages": stages, "html": (folder / "out.html").read_text()}


def test_every_stage_is_measured_or_says_why_not(session):
    stages = session["stages"]
    assert list(stages) == ["baseline", "data_loading", "pinning", "uint8_copy"]
    pinning = stages["pinning"]
    assert (pinning["status"], pinning["samples_per_s"]) == ("not_applicable", None)
    assert "CUDA" in pinning["reason"] and pinning["reason"] in " ".join(session["text"].split())
    for stage in stages.values():
        if stage is not pinning:
            raw = stage["raw"]
            assert stage["status"] == "ok", stage["reason"]
            assert len(raw["step_s"]) == len(raw["data_wait_s"]) > raw["warmup_steps"] > 0
            assert stage["h2d_bytes_per_sample"] is None  # nothing is copied on a CPU
    assert not re.search(r"(?:src|href)=[\"']?https?:", session["html"])


def test_the_mechanisms_are_proven_and_exact_stages_have_the_same_losses(session):
    stages = session["stages"]

    def evidence(stage, switch):
        return next(m["evidence"] for m in stages[stage]["mechanism"] if m["switch"] == switch)

    assert evidence("baseline", "uint8_copy") == "the batch is copied as float32: 27,648 bytes per sample"
    assert evidence("uint8_copy", "uint8_copy") == "the batch is copied as uint8: 6,912 bytes per sample"
    assert evidence("data_loading", "workers") in session["text"]
    losses = [stages[name]["losses"] for name in ("baseline", "data_loading", "uint8_copy")]
    assert losses[1] == losses[0]
    assert losses[2] == pytest.approx(losses[0], rel=1e-3)


def test_a_stored_run_is_shown_and_its_export_gives_its_losses(session, tmp_path):
    stage = session["stages"]["data_loading"]
    assert json.loads(perfkit("show", stage["id"], "--json", "-").stdout)["id"] == stage["id"]
    script = perfkit("export", *CIFAR, "--stage", "data_loading", "--steps", "4").stdout
    assert "perfkit" not in script.split('"""', 2)[2]
    (tmp_path / "train.py").write_text(script)
    lines = scripts.run(tmp_path / "train.py").splitlines()
    assert [float(line.rpartition(" ")[2]) for line in lines] == stage["losses"]


@pytest.mark.parametrize("command", ["export", "profile", "memory"])
def test_a_setting_that_cannot_act_is_not_left_out_in_silence(command):
    error = perfkit(command, *CIFAR, "--set", "pin_memory=on", code=2).stderr
    assert "what is set cannot act here: Pin memory: needs a CUDA device" in error


def test_diff_shows_what_a_stage_changes_here_or_on_a_gpu():
    assert "+        num_workers=1," in perfkit("diff", "data_loading", *CIFAR).stdout
    not_here = perfkit("diff", "pinning", *CIFAR).stdout
    assert "# n/a here: Pin" in not_here and "; what it changes on a GPU\n" in not_here
    assert "+        pin_memory=True," in not_here


def test_doctor_says_which_stages_will_be_real():
    text = perfkit("doctor", "--device", "cpu").stdout
    assert re.search(r"data loading +data_loading +will be measured", text)
    assert re.search(r"pinning +pinning +n/a: Pin memory", text)


def test_a_simulated_gpu_is_labelled_everywhere_and_gates_nothing(tmp_path):
    page, host = tmp_path / "out.html", ("--device", "sim:v100", "--preset", "smoke")
    done = perfkit("run", *host, "--stages", "data_loading", "--json", "-", "--html", str(page))
    document = json.loads(done.stdout)
    assert (document["device"], document["simulated"]) == ("sim:v100", True)
    for stage in document["stages"]:
        assert (stage["status"], stage["losses"]) == ("ok", []), stage["reason"]
        assert stage["peak_memory_bytes"] > 10**7
        assert 0 < stage["utilization"] <= 1
    assert "Simulated Tesla V100-SXM2-16GB: no kernel ran" in done.stderr.replace("\n", " ")
    assert "no kernel ran" in page.read_text()
    sides = ("compare", "workers=1", "workers=4", *host, "--host", "cores=4,fetch_ms=2")
    result = json.loads(perfkit(*sides, "--json", "-").stdout)
    assert (result["simulated"], result["verdict"]) == (True, "predicted faster")
    assert result["ratio"] == pytest.approx(4, rel=0.1), "four workers on four cores, the loader decides"
    assert "refused on sim:v100" in perfkit(*sides, "--fail-if-slower", "3%", code=2).stderr


def test_the_articles_ladder():
    """Mean error at most 10%, gains within 1.25, and every figure inside its printed band."""
    runs = climb(plan(device="sim:v100"))
    errors, before = [], None
    for run in runs:
        published = next(each for each in article.ARTICLE.stages if each.stage == run.stage)
        rate = run.samples_per_s
        errors.append(abs(rate.value / published.samples_per_s - 1))
        assert rate.low <= published.samples_per_s <= rate.high, run.stage
        if before:
            gain = published.samples_per_s / before
            ratio = run.speedup("previous")
            assert 1 / 1.25 < ratio.ratio / gain < 1.25, run.stage
            assert ratio.low <= gain <= ratio.high, run.stage
        before = published.samples_per_s
    assert sum(errors) / len(errors) < 0.10
    assert runs[0].facts["pace"].startswith("the loader decides")
    assert runs[3].peak_memory_bytes == pytest.approx(11.3e9, rel=0.05)


def test_the_workload_of_the_documents_works(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "workloads.md").read_text(encoding="utf-8")
    code = re.search(r"<!-- example: my_workload.py -->\n```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_workload.py").write_text(code.group(1))
    waves = ("--workload", "my_workload:Waves")
    perfkit("run", *waves, "--stages", "data_loading,uint8_copy", "--json", "out.json", cwd=tmp_path)
    document = json.loads((tmp_path / "out.json").read_text())
    assert [stage["status"] for stage in document["stages"]] == ["ok"] * 3
    monkeypatch.syspath_prepend(tmp_path)
    perfkit("export", *waves, "--stage", "uint8_copy", "-o", "train.py", cwd=tmp_path)
    scripts.run(tmp_path / "train.py")


BEFORE = str(ROOT / "data" / "recordings" / "traces" / "photos-baseline.pt.trace.json.gz")
FIELDS = """
    schema files device shows recorded_us steps_are late_rank ranks health steps mean_step_us mean_us gpu_utilization
    tensor_core operators kernels transfers syncs idle communication
    diagnosis
""".split()


def test_a_trace_gives_tables():
    text = perfkit("trace", BEFORE).stdout
    assert all(
        title in text for title in ("What to know about the recording", "Mean step", "Operators", "Diagnosis")
    )


def test_files_are_written_even_where_nobody_reads_on(tmp_path):
    page, plain = tmp_path / "out.html", tmp_path / "out.json"
    files = ["--html", str(page), "--json", str(plain)]
    command = [sys.executable, "-m", "perfkit", "trace", BEFORE, *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # as `| head` does, at the earliest
        assert (process.stderr.read(), process.wait()) == (b"", 0)
    assert "<svg" in page.read_text()
    assert list(json.loads(plain.read_text())) == FIELDS


def test_what_is_no_trace_gets_one_line(tmp_path):
    (tmp_path / "x.json").write_bytes(b"")
    for name, words, code in (
        ("x.json", "is empty", 2),
        ("", "is empty", 2),
        ("none.json", "cannot read ", 2),
    ):
        (line,) = perfkit("trace", str(tmp_path / name), code=code).stderr.strip().splitlines()
        assert words in line


def test_a_live_profile_keeps_its_trace(tmp_path):
    out, record = tmp_path / "mine.pt.trace.json.gz", tmp_path / "p.json"
    training = ("--workload", "tests.support.toy:Toy", "--set", "workers=1", "--device", "cpu")
    text = perfkit("profile", *training, "--steps", "2", "-o", str(out), "--json", str(record)).stdout
    assert "open it in https://ui.perfetto.dev" in text
    assert list(json.loads(record.read_text())) == FIELDS
    analysis = analyse(out)
    assert (len(analysis.steps), "on cpu" in analysis.shows) == (2, True), "the trace says where it ran"


def test_a_look_inside_names_the_line_of_a_wait_and_the_roofs():
    training = {"workload": "tests.support.chatty:Chatty", "preset": "smoke", "device": "cpu"}
    places = {place.call: place for place in syncs(**training).places}
    assert places["item"].where.rpartition("/")[2].startswith("chatty.py:")
    assert places["item"].kind == "wait"
    assert looks.kernels(recipe=None, progress=Progress(), **training).peaks["float32"] > 1e8
    assert looks.memory(recipe=None, progress=Progress(), **training).parts["weights"]
