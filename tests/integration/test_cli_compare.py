"""`perfkit compare`, `parity`, `doctor --noise` as a person uses them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from perfkit.recipe import Recipe
from perfkit.results import noise
from perfkit.results.store import RunStore
from perfkit.studies import here
from perfkit.studies.compare import Candidate, compare, compare_stored
from perfkit.studies.sources import plan
from tests.support.cli import ROOT, perfkit

pytestmark = pytest.mark.usefixtures("no_orphans", "data_dir", "restart")

TOY = ("--workload", "tests.support.toy:Toy", "--device", "cpu")


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Notes each new fork server that is asked for; one serves all, as a new one would import torch first."""
    restart = Mock()
    monkeypatch.setattr(here.server, "restart", restart)
    return restart


def test_two_recipes_are_compared_in_turn_and_the_result_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    fast, slow = "batch_size=64", "batch_size=8"
    done = perfkit("compare", slow, fast, *TOY, "--budget", "3", "--json", str(out))
    found = json.loads(out.read_text())
    assert found["rounds"] >= 5
    assert found["interleaved"] is True
    assert found["low"] <= found["ratio"] <= found["high"]
    # Eight times the samples a step, and nearly the same step; tests may run beside each other.
    assert found["verdict"] in ("faster", "disturbed")
    assert found["low"] > 1
    assert found["verdict"] in done.stdout
    failing = perfkit("compare", fast, slow, *TOY, "--budget", "3", "--fail-if-slower", "3%", code=1)
    assert "slower than A by more than 3.0%" in failing.stderr
    ids = re.findall(r"^ *(\d{8}-\d{6}-\w+)", perfkit("runs").stdout, re.MULTILINE)
    assert len(ids) == 4
    again = perfkit("compare", ids[-1], ids[-2], "--stored")
    assert "interleaved" in again.stdout


def test_scripts_are_compared_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the scripts import the tests' own model
    plain = tmp_path / "plain.py"
    plain.write_text(perfkit("export", "--set", "batch_size=16", *TOY).stdout)
    changed = tmp_path / "changed.py"
    update = "        optimizer.step()\n"
    assert plain.read_text().count(update) == 1
    changed.write_text(plain.read_text().replace(update, "        time.sleep(0.2)\n" + update))
    changed.write_text(changed.read_text().replace("import sys\n", "import sys\nimport time\n"))

    how = ("--budget", "3", "--fail-if-slower", "3%", "--", "1000000")
    done = perfkit("compare", str(plain), str(changed), *how, code=1)
    assert "changed.py / plain.py" in done.stdout
    assert re.search("slower|disturbed", done.stdout)
    assert "slower than A by more than" in done.stderr, "a gate does not let it pass for a busy machine"
    last = perfkit("runs").stdout.splitlines()[2].split()[0]
    shown = perfkit("show", last).stdout
    assert "changed.py 1000000" in shown
    assert "no recipe to export" in perfkit("export", "--run", last, code=2).stderr
    assert "is of a script" in perfkit("compare", last, "amp", *TOY, code=2).stderr


def test_a_script_that_cannot_be_compared_is_told(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("x = 1")
    assert "before its second training step" in perfkit("compare", str(other), str(other), code=1).stderr
    missing = perfkit("compare", str(other), str(tmp_path / "none.py"), code=2)
    assert "there is no script" in missing.stderr
    assert "Name two scripts" in perfkit("compare", str(other), "amp", code=2).stderr


def test_a_side_of_which_nothing_can_act_is_not_measured() -> None:
    done = perfkit("compare", "workers=0", "pin_memory=true", *TOY, code=1)
    assert "Pin memory: needs a CUDA device" in done.stderr


def test_noise_is_measured_kept_and_shown() -> None:
    done = perfkit("doctor", "--noise", *TOY, "--pairs", "2", "--budget", "0")
    assert "A/A noise of cpu" in done.stdout
    assert "from 2 pairs" in done.stdout
    after = perfkit("compare", "workers=0", "workers=0", *TOY, "--budget", "0", "--precision", "0.9")
    assert "A/A noise not measured" not in after.stdout


def test_pairs_of_fresh_processes_are_compared_and_kept_as_one(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, restart: Mock
) -> None:
    monkeypatch.setattr(noise, "load", lambda device, further=(): 0.03)
    found = compare(
        Candidate("small", Recipe(batch_size=8)), Candidate("large", Recipe(batch_size=64)),
        plan(TOY[1], "smoke", device="cpu"), budget_s=0.0, pairs=2,
    )  # fmt: skip
    assert restart.call_count == 2, "each pair has a fork server of its own"
    assert "10 interleaved rounds in 2 pairs of processes, A/A noise 3.0%" in found.describe()
    assert found.ratio.verdict in ("too few rounds", "disturbed"), "of two pairs"
    assert {run.id for run in RunStore().runs()} == {found.a.id, found.b.id}, "those of the first pair alone"
    stored = compare_stored(RunStore().get(found.a.id), RunStore().get(found.b.id))
    assert stored == found, "what was measured is what is stored"


def test_parity_of_a_stage_and_of_a_fault() -> None:
    done = perfkit("parity", "zero_grad_set_to_none=false", *TOY)
    assert "trains bit for bit the same" in done.stdout
    assert "✗" not in done.stdout
    wrong = ("parity", "amp=bf16", "--workload", "tests.support.toy:WrongIn16Bits", "--device", "cpu")
    assert "NOT the same training" in perfkit(*wrong, code=1).stdout


def test_attribution_measures_every_set(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    asked = ("attribute", "--stages", "zero_grad,accumulation", *TOY, "--json", str(out))
    perfkit(*asked)
    found = json.loads(out.read_text())
    assert (found["sets"], found["exact"], found["complete"]) == (3, True, True)
    product = 1.0
    for effect in found["effects"]:
        product *= effect["shapley"]
    assert product == pytest.approx(found["together"])
    assert "Name at least two" in perfkit("attribute", "--stages", "zero_grad,pinning", *TOY, code=2).stderr


def test_the_tuner_picks_only_what_it_has_measured(tmp_path: Path) -> None:
    space = ("--space", "batch_size=8,64", "--space", "zero_grad_set_to_none=false,true")
    page = tmp_path / "tried.html"
    done = perfkit("tune", *TOY, *space, "--html", str(page))
    assert "Tried" in page.read_text()
    assert "batch_size=64" in done.stdout.splitlines()[0], "eight times the samples for nearly the same step"
    assert "trains" in done.stdout
    assert re.search(r"\d MB$", done.stdout, re.MULTILINE)
    assert (
        "fits under the memory cap"
        in perfkit("tune", *TOY, *space, "--memory", "0.001", "--budget", "0.02", code=2).stderr
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("compare", "tea", "amp"), "cannot compare 'tea'"),
        (("compare", "workers=x", "amp"), "Allowed: a whole number"),
        (("compare", "amp", "pinning"), "does not apply here"),
        (("compare", "amp", "amp", "--fail-if-slower", "much"), "Write a share"),
    ],
)
def test_bad_input_gets_one_line(given: tuple[str, ...], said: str) -> None:
    assert said in perfkit(*given, *TOY, code=2).stderr
