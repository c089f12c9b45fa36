"""Launches that are watched: what is said before and after, and that nothing else is measured meanwhile."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from perfkit.additions.advice.finding import Finding
from perfkit.additions.ranks import command, watching
from perfkit.additions.ranks.lateness import Lateness, lateness
from perfkit.additions.ranks.launch import launch_of
from perfkit.additions.ranks.messages import Hello, State
from perfkit.additions.ranks.patience import RankPeer
from perfkit.additions.ranks.watching import RanksReport, alone
from perfkit.additions.scripts import command as scripts_command
from perfkit.additions.scripts.command import WatchOptions
from perfkit.additions.scripts.watched import TrainsAlone, TrainsElsewhere
from perfkit.errors import Cancelled, InvalidValue, RunFailed
from perfkit.results.schema import Mechanism
from perfkit.show import terminal
from perfkit.studies.sources import Progress
from tests.unit.additions.ranks.test_lateness import ranks


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Whoever has to wait gives up at once."""
    monkeypatch.setenv("PERFKIT_LOCKS", str(tmp_path))
    progress = Progress()
    progress.cancelled.set()
    return progress


def of_nodes(*how):
    return launch_of(["torchrun", *how, "train.py"])


@pytest.mark.parametrize("how", [("--nnodes", "2"), ("--nnodes=1:4",), ("--nnodes", "16")])
def test_launches_of_several_nodes_do_not_wait_for_each_other(how, stopped):
    with alone(launch_of(["torchrun", "train.py"]), Progress()), alone(of_nodes(*how), stopped):
        pass


@pytest.mark.parametrize("how", [(), ("--nnodes", "1"), ("--nproc-per-node", "2")])
def test_a_launch_on_one_machine_waits_for_other_measurements(how, stopped):
    with alone(of_nodes(), Progress()), pytest.raises(Cancelled), alone(of_nodes(*how), stopped):
        pass


def test_an_argument_of_the_script_does_not_tell_of_nodes(stopped):
    own = launch_of(["torchrun", "train.py", "-N", "64"])
    with alone(of_nodes(), Progress()), pytest.raises(Cancelled), alone(own, stopped):
        pass


@pytest.mark.parametrize(("whole", "said"), [(False, "about 60 s once"), (True, "train.py: until its end")])
def test_the_command_watches_alone_and_says_for_how_long(whole, said, stopped, monkeypatch, capsys):
    def watch(launch, *how):
        with pytest.raises(Cancelled), alone(launch, stopped):
            pass
        return SimpleNamespace(command="train.py", sections=list)

    monkeypatch.setattr(watching, "watch_launch", watch)
    command.RANKS.watch(["torchrun", "train.py"], WatchOptions(whole=whole))
    assert said in capsys.readouterr().err


def test_a_command_that_turns_out_to_train_in_one_process_is_watched_as_one(tmp_path, monkeypatch, capsys):
    """`perfkit watch -- python train.py` ended with the advice to type `perfkit watch train.py`."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    seen = []

    def several(launch, *how):
        what = "python train.py trains in one process, and has no ranks"
        raise TrainsAlone(what, "Watch it as one", launch.single)

    def one(launch, *how):
        seen.append((launch.program, launch.arguments, launch.module))
        return SimpleNamespace(command="train.py", sections=list)

    monkeypatch.setattr(watching, "watch_launch", several)
    monkeypatch.setattr(scripts_command.watching, "watch_script", one)
    monkeypatch.setattr(watching, "alone", lambda *given: nullcontext())
    output = SimpleNamespace(deliver=lambda *shown, verdict: None)
    scripts_command.watch("python", output, WatchOptions(), ["-u", "train.py", "--lr", "0.1"])
    assert seen == [("train.py", ("--lr", "0.1"), False)]
    assert "trains in one process, and has no ranks: it is watched as one" in capsys.readouterr().err
    with pytest.raises(InvalidValue, match="has no ranks for --set to act on. Leave it out"):
        scripts_command.watch("python", output, WatchOptions(settings=["no_sync=on"]), ["train.py"])
    assert len(seen) == 1, "it trained, and was refused with a remedy that fails"


@pytest.mark.parametrize("tries", [False, True])
def test_a_script_whose_processes_train_is_watched_with_them(tries, tmp_path, monkeypatch, capsys):
    """As one that calls `mp.spawn`: it ended with the advice to type `perfkit watch -- python train.py`."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    seen = []

    def one(launch, *how):
        raise TrainsElsewhere("train.py waits for 2 busy processes", "Watch all of them")

    def several(launch, *how):
        seen.append(launch.command)
        return SimpleNamespace(command="train.py", sections=list)

    monkeypatch.setattr(watching, "watch_launch", several)
    monkeypatch.setattr(scripts_command.watching, "watch_script", one)
    monkeypatch.setattr(watching, "alone", lambda *given: nullcontext())
    output = SimpleNamespace(deliver=lambda *shown, verdict: None)
    refused = pytest.raises(TrainsElsewhere) if tries else nullcontext()  # ranks have no suggestions to try
    with refused:
        scripts_command.watch("train.py", output, WatchOptions(tries=tries), ["--lr", "0.1"])
        assert (
            "waits for 2 busy processes. It is started again, and all of them are watched"
            in capsys.readouterr().err
        )
    assert [list(words) for words in seen] == [["python", "train.py", "--lr", "0.1"]] * (not tries)


@pytest.mark.parametrize(
    ("command", "alone"),
    [
        (["python", "-u", "train.py", "--lr", "1"], ("train.py", ("--lr", "1"), False)),
        (
            ["python", "-m", "json.tool", "--config", "train.py"],
            ("json.tool", ("--config", "train.py"), True),
        ),
        (["python", "-m", "torch.distributed.run", "train.py"], None),
        (["python", "-O", "-X", "dev", "-W", "ignore", "train.py", "-x"], ("train.py", ("-x",), False)),
        (["python", "-c", "import train"], None),
        (["torchrun", "train.py"], None),
    ],
)
def test_what_python_starts_by_itself_is_its_script_or_module_and_no_argument(
    command, alone, tmp_path, monkeypatch
):
    """The first word that ended in .py was run: of `python -m pkg.train --config config.py` the settings."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    found = launch_of(command).single
    assert (found and (found.program, found.arguments, found.module)) == alone


@pytest.mark.parametrize(("device", "said"), [("cpu", "the ranks are alike"), ("cuda", "is not seen")])
def test_what_is_not_seen_on_a_device_is_said(device, said):
    about = {"command": "", "ranks": 2, "nodes": 1, "cores": 2, "threads": 1, "steps": 20}
    seen = RanksReport(**about, device=device, lateness=lateness(ranks(0.8, 0.8)))
    assert said in seen.first_sentence
    assert ("alike" in seen.first_sentence) == (device == "cpu")


def test_ranks_whose_exchanges_are_not_seen_are_not_said_to_be_alike():
    """As those of FSDP2, whose collectives are called in ways of their own."""
    states = [replace(state, ddps=[]) for state in ranks(1.0, 1.0)]
    about = {"command": "", "ranks": 2, "nodes": 1, "device": "cpu", "cores": 2, "threads": 1, "steps": 20}
    seen = RanksReport(**about, lateness=lateness(states), states=states)
    assert seen.first_sentence.startswith("No exchange between the ranks was seen")
    assert "alike" in RanksReport(**about, lateness=lateness(states), states=ranks(1.0, 1.0)).first_sentence


@pytest.mark.parametrize(
    ("device", "command", "said"),
    [
        ("cpu", "accelerate launch --cpu train.py", "without GPUs, accelerate launch starts one process"),
        ("cuda", "accelerate launch train.py", "perfkit scale"),
        ("cpu", "torchrun train.py", "perfkit scale"),
    ],
)
def test_a_single_rank_is_told_and_why_accelerate_starts_no_more(device, command, said):
    about = {
        "ranks": 1,
        "nodes": 1,
        "cores": 2,
        "threads": 1,
        "steps": 20,
        "lateness": None,
        "states": [State(rank=0)],
    }
    seen = RanksReport(**about, command=command, device=device)
    assert seen.first_sentence.startswith("Only one rank trains")
    assert said in seen.first_sentence
    assert "20 steps of 1 rank on" in terminal.text(seen.sections())


def test_a_switch_that_is_not_in_effect_on_a_rank_is_no_report():
    on, off = Mechanism("no_sync", True, "it is"), Mechanism("no_sync", False, "0 of 9 passes sent nothing")
    launched = SimpleNamespace(
        ranks={}, states=[State(rank=0, mechanisms=[on]), State(rank=1, mechanisms=[off])]
    )
    with pytest.raises(RunFailed, match=r"no_sync \(rank 1: 0 of 9 passes sent nothing\)"):
        watching._result(launched, "ended", 0.0)


def test_what_a_late_rank_costs_is_told_for_shared_work_and_for_work_that_nobody_has_to_do():
    """Half of 20 ms stays with each rank if it is shared; nothing of it if it was for nothing."""
    spent = lateness(ranks(0.2, 0.9)).spent
    found = Lateness(steps=20, step_s=0.035, spent=spent, late=1, share=4 / 7, by_s=0.02)
    about = {"command": "", "ranks": 2, "nodes": 1, "cores": 8, "threads": 1, "steps": 20, "device": "cpu"}
    late = Finding("late", "rank 1 is late", "divide it", share=4 / 7)
    said = RanksReport(**about, lateness=found, findings=[late]).first_sentence
    assert "Equal ranks would be up to 1.40× as fast (2.33× if no rank does this work)." in said
    at_times = RanksReport(**about, lateness=replace(found, at_times=True), findings=[late])
    assert "if no rank" not in at_times.first_sentence


def test_ranks_of_which_one_seems_late_on_a_busy_machine_are_not_said_to_be_alike():
    about = {"command": "", "ranks": 2, "nodes": 1, "cores": 2, "threads": 1, "steps": 20, "device": "cpu"}
    seen = RanksReport(**about, lateness=lateness(ranks(0.6, 0.9)), taken=0.6)
    assert "Rank 1 waits least, and the others wait for it 30% of the time" in seen.first_sentence
    assert "other programs took 60% of the cores" in seen.first_sentence


def test_of_ranks_that_ended_without_a_word_the_first_is_named_as_a_launcher_ends_the_others():
    def ended(rank, closed_at):
        hello = Hello(rank=rank, world=2, local=2, pid=1, restart=0)
        return RankPeer(hello, SimpleNamespace(closed=True), 0.0, closed_at=closed_at)

    heard = {0: ended(0, closed_at=3.2), 1: ended(1, closed_at=3.1)}
    launched = SimpleNamespace(
        ranks=heard,
        answers={},
        states=[],
        world=2,
        problem=lambda what, remedy, rank: RunFailed(what, remedy),
    )
    assert watching.failed(launched).what.startswith("rank 1 of 2 ended without a word")


@pytest.mark.parametrize(
    ("says", "remedy"),
    [("open file failed with strerror: Permission denied", "move that file away"), ("NaN", "its own words")],
)
def test_a_rank_whose_write_the_kernel_denied_is_told_what_to_do(says, remedy):
    """torch.save writes in C++: its error does not say that perfkit keeps the user's files."""
    state = SimpleNamespace(rank=0, count=125, failure=f"the training raised RuntimeError: {says}")

    def problem(what, remedy, rank):
        failure = RunFailed(what, remedy)
        failure.output = f"[rank0]: RuntimeError: {says}"
        return failure

    launched = SimpleNamespace(ranks={}, answers={}, states=[state], world=2, problem=problem)
    assert remedy in watching.failed(launched).remedy
