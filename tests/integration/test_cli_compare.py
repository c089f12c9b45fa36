"""`perfkit compare`, `parity`, `doctor --noise`, `tune` as a person uses them."""

import json
import re

import pytest

from perfkit.results.store import RunStore
from tests.support import scripts
from tests.support.cli import ROOT, perfkit
from tests.unit.additions.referee.test_behaviour import IMAGES

pytestmark = pytest.mark.usefixtures("no_orphans", "zygotes_stay", "data_dir")

TOY = ("--workload", "tests.support.toy:Toy", "--device", "cpu")


def test_two_recipes_are_compared_in_turn_and_a_gate_fails():
    sides = ("compare", "batch_size=64", "batch_size=8")
    done = perfkit(*sides, *TOY, "--budget", "3", "--json", "-", "--fail-if-slower", "3%", code=1)
    result = json.loads(done.stdout)
    assert result["rounds"] >= 5 and result["interleaved"] is True
    assert result["low"] <= result["ratio"] <= result["high"] < 1, "an eighth of the samples, nearly the step"
    assert result["verdict"] == "slower"
    assert "slower than A by more than 3.0%" in done.stderr
    assert len(RunStore().runs()) == 2


def test_scripts_are_compared_as_they_stand(tmp_path, monkeypatch):
    scripts.fork(monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the scripts import the tests' own model
    plain, changed = tmp_path / "plain.py", tmp_path / "changed.py"
    perfkit("export", "--set", "batch_size=16", *TOY, "-o", str(plain))
    text, update = plain.read_text(), "        optimizer.step()\n"
    assert text.count(update) == 1
    slower = text.replace(update, "        time.sleep(0.2)\n" + update)
    changed.write_text(slower.replace("import sys\n", "import sys\nimport time\n"))
    how = ("--budget", "20", "--fail-if-slower", "3%", "--", "1000000")
    done = perfkit("referee", plain.name, changed.name, *how, code=1, cwd=tmp_path)
    assert "changed.py / plain.py" in done.stdout
    assert "Verdict: slower: 0." in done.stdout, "a gate does not let it pass for a busy machine"
    last = RunStore().runs()[0].id
    assert "changed.py 1000000" in perfkit("show", last).stdout
    assert "or settings such as" in perfkit("compare", last, "amp", *TOY, code=2).stderr


def test_a_cheat_is_named_and_can_be_allowed(tmp_path, monkeypatch):
    scripts.fork(monkeypatch)
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(IMAGES)
    new.write_text(IMAGES.replace("out = model(x)", "x, y = x[:8], y[:8]; out = model(x)"))
    how = ("referee", str(old), str(new), "--preset", "smoke", "--budget", "0", "--json", "-")
    refused = json.loads(perfkit(*how, code=4).stdout)
    assert (refused["outcome"], refused["exit_code"]) == ("trains differently", 4)
    assert [difference["name"] for difference in refused["differences"]] == ["samples", "losses"]
    assert set(refused["observed"]["b"]["trained"]) == {8}
    passed = json.loads(perfkit(*how, "--allow", "samples", "--fail-if-slower", "99%").stdout)
    assert (passed["outcome"], passed["exit_code"]) == ("not slower", 0)
    assert [difference["allowed"] for difference in passed["differences"]] == [True, True]


SHORT = """
import time, torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for number in range(60):
    model(torch.randn(16, 8)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.03)
    if number % 20 == 19:
        with torch.no_grad():
            model.eval()(torch.randn(16, 8))
        model.train()
"""


def test_whole_runs_are_compared_to_their_end(tmp_path, monkeypatch):
    scripts.fork(monkeypatch)
    slow, plain = SHORT.replace("0.03", "0.2"), SHORT.replace("time.sleep(0.03)", "")
    fewer = plain.replace("range(60)", "range(50)")
    for name, text in {"slow.py": slow, "plain.py": plain, "fewer.py": fewer}.items():
        (tmp_path / name).write_text(text)

    def referee(old, new, code):
        done = perfkit("referee", old, new, "--whole", "--json", "-", code=code, cwd=tmp_path)
        return json.loads(done.stdout)

    # By twelve seconds, which is more than two starts differ on a busy machine.
    kept = referee("slow.py", "plain.py", 0)
    assert (kept["outcome"], kept["is_whole"], kept["differences"]) == ("faster", True, [])
    assert [kept["observed"][side]["run_steps"] for side in "ab"] == [60, 60]
    assert len(kept["observed"]["a"]["evaluations"]) == 3, "all of the run was seen"
    less = referee("plain.py", "fewer.py", 4)
    assert [(one["name"], one["evidence"]) for one in less["differences"] if one["name"] == "samples"] == [
        ("samples", "it trains on 784 samples in all, not 944")
    ]


def test_a_script_that_cannot_be_compared_is_told(tmp_path, monkeypatch):
    scripts.fork(monkeypatch)
    other = tmp_path / "other.py"
    other.write_text(IMAGES.replace("range(1000)", "range(1)") + "raise ValueError('file 13 is corrupt')\n")
    failed = json.loads(perfkit("referee", str(other), str(other), "--json", "-", code=1).stdout)
    (tmp_path / "folder.py").mkdir()
    refused = perfkit("referee", str(other), str(tmp_path / "folder.py"), code=2).stderr
    assert "folder.py' is a folder. Name the script in it" in refused
    assert "Name two scripts" in perfkit("referee", str(other), code=2).stderr
    assert failed["outcome"] == "failed" and "13 steps: the training raised ValueError" in failed["reason"]


def test_noise_is_measured_kept_and_shown():
    done = perfkit("doctor", "--noise", *TOY, "--budget", "0")
    noise = RunStore().spread("cpu").sd
    told = " ".join(done.stdout.split())
    assert f"A/A noise of cpu: {noise:.2%} (standard deviation), from " in told
    assert "what is usual elsewhere counts like 4 more" in told


def test_parity_of_a_stage_and_of_a_fault():
    done = perfkit("parity", "baseline", *TOY)
    assert "trains bit for bit the same" in done.stdout
    assert "✗" not in done.stdout
    wrong = ("parity", "amp=bf16", "--workload", "tests.support.toy:WrongIn16Bits", "--device", "cpu")
    assert "NOT the same training" in perfkit(*wrong, code=1).stdout


def test_the_tuner_picks_only_what_it_has_measured(tmp_path):
    page = tmp_path / "tried.html"
    done = perfkit("tune", *TOY, "--space", "batch_size=8,64", "--html", str(page))
    assert "Tried" in page.read_text()
    assert "batch_size=64" in done.stdout.splitlines()[0], "eight times the samples for nearly the same step"
    assert "trains" in done.stdout
    assert re.search(r"\d MB$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "tea", "amp"), "unknown stage 'tea'. Allowed: baseline"),
        (("compare", "workers=x", "amp"), "Allowed: a whole number"),
        (("compare", "amp"), "Name two: A and B"),
        (("referee", "none.py", "--set", "workers=2"), "unknown script"),
        (("referee", "--set", "workers=2", "train.py", "config.py"), "unknown script 'train.py'"),
        (("compare", "amp", "amp", "--fail-if-slower", "much"), "Write a share"),
        (("watch", "none.py"), "unknown script"),
        (("watch", "--try", "--", "torchrun", "train.py"), "without --try and --after"),
        (
            ("watch", "--set", "workers=2", "--", "torchrun", "train.py"),
            "--set workers=2 -- torchrun train.py",
        ),
        (("watch", "--set", "workers=2", "train.py"), "perfkit referee --set workers=2 train.py"),
        (("watch", "--set", "no_sync=on", "train.py"), "unknown switch 'no_sync'"),
        (("run", "--stages", "pining"), "Did you mean 'pinning'"),
        (("run", "--stages", ","), "unknown stage ','. Allowed: baseline, allocator"),
        (("run", "--keep", ""), "unknown stage ''. Allowed: baseline, allocator"),
        (("run", "--option", "delay=1"), "unknown option of this workload 'delay'"),
        (("profile", "--stage", "pinning"), "does not apply here"),
        (("profile", "-o", "x.txt"), ".json"),
    ],
)
def test_bad_input_gets_one_line(arguments, words):
    toy = () if arguments[0] in ("watch", "referee") else TOY
    (line,) = perfkit(*arguments, *toy, code=2).stderr.strip().splitlines()
    assert words in line
