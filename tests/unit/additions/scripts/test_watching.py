"""What watching keeps, and says, where the script takes longer to answer than there is time."""

import contextlib
import math
import time
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from perfkit.additions.advice.finding import Finding
from perfkit.additions.inside import SYNCS
from perfkit.additions.scripts import watching
from perfkit.additions.scripts.messages import Account, Evidence, Observation, ScriptFacts
from perfkit.additions.scripts.study import ScriptSession, ScriptSource
from perfkit.additions.scripts.watched import Launch
from perfkit.cli import app
from perfkit.errors import Cancelled, InvalidValue, RunFailed, TookTooLong, TrainingEnded
from perfkit.ladder.catalogue import PRESETS
from perfkit.recipe import Recipe
from perfkit.results.rounds import Pairing
from perfkit.results.run import Run
from perfkit.rules import Target
from perfkit.studies.sources import Plan, Progress
from perfkit.worker.messages import DeviceFacts, Peak, TimedSteps

TOOK_S = 500.0  # an evaluation that comes while lines are looked at, of a minute that is budgeted
ANSWERS = {
    "observe": Observation(block=TimedSteps(320, 0.1, [0.01] * 10, [0.0] * 10)),
    "account": Account(parts={"steps": 0.1}, steps=10, last=10),
    "describe": ScriptFacts(device="cpu", facts=DeviceFacts()),
    "peak": Peak(None, None, 0),
    watching.EVIDENCE: Evidence(steps=0),
    watching.STATE: 0.0,
    "run_on": True,
}


class Slow:
    """A script that answers nothing else until it has answered the question about its lines."""

    tree = SimpleNamespace(processes=list, cpu_s=lambda: 0.0)

    def __init__(self, clock):
        self.clock = clock
        self.asked, self.timeout_s, self.is_busy = [], None, False

    def ask(self, question, **_):
        self.asked.append(question)
        if question == watching.EVIDENCE:
            self.is_busy = self.timeout_s < TOOK_S
            self.clock.now += min(self.timeout_s, TOOK_S)
        if self.is_busy:
            raise TookTooLong("it took longer than its time limit")
        return ANSWERS[question]

    def written(self, stream):
        return []

    def stop(self):
        self.asked.append("stop")


@pytest.fixture
def script(data_dir, monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(watching, "time", clock)
    monkeypatch.setattr(watching.cores, "taken_share", lambda *_: 0.0)
    return Slow(clock)


def watched(script, whole):
    answers = watching.asked(script, 60.0, Progress(), after=0, whole=whole)
    script.stop()
    return watching.watched(answers, "python train.py", Target("cpu"))


def test_a_look_that_takes_too_long_is_given_up_and_what_was_seen_before_stays(script):
    seen = watched(script, whole=False)
    assert script.asked == ["observe", "account", "describe", "peak", watching.EVIDENCE, "stop"]
    assert seen.run.steps == 10 and not seen.seen.ended
    (warning,) = seen.warnings
    assert "no time was left to measure the lines, later steps, hidden waits, a profile" in warning


def test_a_whole_run_is_awaited_whatever_is_under_way_in_it(script):
    seen = watched(script, whole=True)
    assert "run_on" in script.asked and seen.seen.ended
    assert SYNCS not in script.asked, "it has come to its end"


def test_a_script_that_ends_in_the_first_half_of_its_later_steps_has_shown_them(script):
    answers = watching.asked(script, 60.0, Progress(), after=0, whole=True)
    assert answers.has_ended and "later steps" not in answers.missing


@pytest.mark.parametrize(("compiled", "threads"), [(0, 1), (1, 0)])
def test_a_script_that_is_compiled_is_looked_at_with_its_own_threads(compiled, threads, script, monkeypatch):
    """For another number of threads torch compiles again: such a look tells nothing of one thread."""
    asked = {}
    monkeypatch.setattr(watching.cores, "taken_share", lambda *_: 0.9)
    monkeypatch.setitem(ANSWERS, "account", replace(ANSWERS["account"], compiled=compiled))
    ask = script.ask
    monkeypatch.setattr(script, "ask", lambda question, **how: asked.update({question: how}) or ask(question))
    watching.asked(script, 60.0, Progress(), after=0, whole=False)
    assert asked[watching.EVIDENCE]["threads"] == threads


@pytest.mark.parametrize(("taken", "longer"), [(0.0, 1), (0.2, 1.25), (0.9, 2), (1.0, 2)])
def test_a_script_whose_cores_others_take_is_looked_at_for_longer(taken, longer, script, monkeypatch):
    """It does less meanwhile, and few looks say little."""
    asked = {}
    monkeypatch.setattr(watching.cores, "taken_share", lambda *_: taken)
    ask = script.ask
    monkeypatch.setattr(script, "ask", lambda question, **how: asked.update({question: how}) or ask(question))
    watching.asked(script, 60.0, Progress(), after=0, whole=False)
    assert asked[watching.EVIDENCE]["seconds"] == pytest.approx(longer * 60 * watching.LIMIT.looking)


class Answering:
    """Answers in turn; an answer that is an error is raised."""

    timeout_s = None

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def ask(self, question, **_):
        self.asked.append(question)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def answers(script):
    return watching.Answers(
        script, ANSWERS["observe"], ANSWERS["account"], ANSWERS["describe"], ANSWERS["peak"], taken=0.0
    )


def test_questions_are_asked_in_turn_until_the_script_has_ended():
    script = Answering(1, TrainingEnded("it has ended"))
    asked = answers(script)
    assert [asked.ask(name, f"question of {name}", math.inf) for name in "abc"] == [1, None, None]
    assert (asked.has_ended, asked.is_busy, asked.missing) == (True, False, ["b", "c"])
    assert script.asked == ["question of a", "question of b"] and script.timeout_s is None


def test_a_script_that_still_answers_a_question_is_asked_no_other():
    script = Answering(TookTooLong("it took longer than its time limit"))
    asked = answers(script)
    assert [asked.ask(name, f"question of {name}", math.inf) for name in "ab"] == [None, None]
    assert (asked.has_ended, asked.is_busy, asked.missing) == (False, True, ["a", "b"])
    assert script.asked == ["question of a"] and script.timeout_s is None


def test_what_cannot_be_over_in_time_is_not_begun_and_says_nothing_of_the_script():
    """A question may take twenty steps of 10 ms."""
    asked = answers(Answering(1))
    assert asked.ask("a", "question of a", time.monotonic() + 0.05) is None
    assert (asked.has_ended, asked.is_busy, asked.missing) == (False, False, ["a"])
    assert asked.ask("b", "question of b", math.inf) == 1


def test_a_script_that_fails_in_time_is_a_failure():
    with pytest.raises(RunFailed, match="it broke"):
        answers(Answering(RunFailed("it broke"))).ask("a", "question of a", math.inf)


def test_a_script_that_fails_as_its_time_runs_out_is_a_failure(script):
    """It is not still answering, and its traceback is what there is to report."""

    def ask(question):
        script.clock.now = 100.0
        raise RunFailed("it broke")

    script.ask = ask
    with pytest.raises(RunFailed, match="it broke"):
        answers(script).ask("a", "question of a", 60.0)


def run(status="ok", reason="", pairings=()):
    about = {"session": "s", "created": "", "stage": "s", "workload": "train.py", "device": "cpu"}
    how = {"status": status, "reason": reason, "pairings": list(pairings)}
    return Run(id="r", **about, recipe=Recipe().to_dict(), **how)


def failed(reason):
    return run("failed", reason)


PLAIN = run()
FASTER = run(pairings=[Pairing([120.0] * 9, [100.0] * 9, against="r", role="baseline", interleaved=True)])
UNSTARTED = run("cancelled", "stopped before its first round")


class Trying:
    """A session of given runs: that of the unchanged script, then those of what is tried."""

    def __init__(self, *runs, stopped=None):
        self.runs, self.stopped = list(runs), stopped
        plan = Plan(None, None, PRESETS["quick"].rule, None)
        self.source = SimpleNamespace(plan=plan, target=Target("cpu"), baseline=Recipe)
        self.rules = []

    def measure(self, stages, rule):
        self.rules.append(rule)
        return self.runs


@pytest.fixture
def seen(script):
    """What watching has shown: three switches to try, and a warning."""
    tried = {"Loader workers": {"workers": 2}, "Optimizer": {"optimizer_impl": "foreach"}, "Compile": {}}
    ideas = [Finding(name, "", "", settings=settings) for name, settings in tried.items()]
    return replace(watched(script, whole=False), suggestions=ideas, warnings=["a warning"])


OF_WORKERS = "trying Loader workers gave no result: "
OF_OPTIMIZER = "trying Optimizer gave no result: "


@pytest.mark.parametrize(
    ("runs", "stopped", "measured", "said"),
    [
        ([PLAIN, FASTER, FASTER], None, {"Loader workers", "Optimizer"}, []),
        ([PLAIN, failed("no memory"), FASTER], None, {"Optimizer"}, [OF_WORKERS + "no memory"]),
        (
            [failed("it ended"), failed("it ended"), run()],
            None,
            set(),
            [OF_WORKERS + "it ended", OF_OPTIMIZER + "it ended"],
        ),
        (
            [PLAIN, FASTER, UNSTARTED],
            Cancelled("stopped on request"),
            {"Loader workers"},
            [
                "trying switches ended early: stopped on request",
                OF_OPTIMIZER + "stopped before its first round",
            ],
        ),
        (
            [PLAIN, FASTER, FASTER],
            TrainingEnded("it ended"),
            {"Loader workers", "Optimizer"},
            ["trying switches ended early: it ended"],
        ),
    ],
)
def test_a_switch_whose_try_gives_no_result_stays_a_suggestion_and_its_reason_is_said(
    runs, stopped, measured, said, seen
):
    result = watching._tried(Trying(*runs, stopped=stopped), seen)
    assert {idea.cause for idea in result.suggestions} == {idea.cause for idea in seen.suggestions}
    assert {idea.cause for idea in result.suggestions if idea.measured} == measured
    assert result.warnings == ["a warning", *said]


def test_each_switch_that_is_tried_has_the_time_that_is_promised(seen):
    source = Trying(PLAIN, FASTER, FASTER)
    watching._tried(source, seen)
    (rule,) = source.rules
    assert rule.budget.seconds(2) == 2 * watching.TRY_S


def test_ctrl_c_while_switches_are_tried_is_raised(tmp_path, seen, monkeypatch):
    (tmp_path / "train.py").touch()
    facts = ScriptFacts(device="cpu", facts=DeviceFacts())

    @contextlib.contextmanager
    def session(source, progress, store):
        yield ScriptSession(source.knowing(facts), progress)

    def tried(session, result):
        assert session.source.plan.timeout_s == 4 * watching.TRY_S
        session.stopped = KeyboardInterrupt()
        return result

    monkeypatch.setattr(ScriptSource, "session", session)
    monkeypatch.setattr(ScriptSession, "take", lambda session: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(watching, "asked", lambda *_: SimpleNamespace(facts=facts))
    monkeypatch.setattr(watching, "watched", lambda *_: seen)
    monkeypatch.setattr(watching, "_tried", tried)
    progress = Progress()
    with pytest.raises(KeyboardInterrupt):
        watching.watch_script(Launch(str(tmp_path / "train.py")), progress, tries=True)
    assert progress.found is seen, "what was seen before is not lost"


@pytest.mark.parametrize("tries", [True, False])
def test_ctrl_c_while_switches_are_tried_shows_what_was_seen(tries, tmp_path, monkeypatch, seen):
    """A minute of watching was lost with half a minute of trying."""
    (tmp_path / "train.py").touch()

    def stopped(launch, progress, *how):
        progress.found = seen if tries else None
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "watch_script", stopped)
    options = ["--try"] if tries else []
    done = CliRunner().invoke(app, ["watch", str(tmp_path / "train.py"), *options])
    assert done.exit_code == 130
    assert ("a warning" in done.output) == tries


def test_nothing_is_started_where_nothing_is_suggested(seen):
    source = Trying(PLAIN)
    result = watching._tried(source, replace(seen, suggestions=[]))
    assert not source.rules
    assert result.warnings == ["a warning", "nothing was tried, as no switch is suggested"]


def test_a_folder_is_no_script_and_of_many_scripts_the_most_alike_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValue, match=r"^'\.' is a folder. Name the script in it"):
        Launch(".")
    for number in range(300):
        (tmp_path / f"table_{number}.py").touch()
    (tmp_path / "train.py").touch()
    with pytest.raises(InvalidValue) as refused:
        Launch("trian.py")
    text = str(refused.value)
    assert "Did you mean 'train.py'? Allowed: train.py, table_" in text
    assert text.count(".py") == 14 and f", … in {tmp_path}, or a module with -m" in text
