"""A job: what was asked for stays as it was, and it ends in one way, which is told once."""

import threading
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from perfkit.errors import Cancelled, RunFailed
from perfkit.results.parity import Parity
from perfkit.studies.job import Job, PlanAnswer, Stopped, answer_after
from tests.unit.show.fake_runs import session

PLAN = SimpleNamespace(recorded="", ladder=SimpleNamespace(recipes=(), stages=("data_loading",)))
OTHER_PLAN = SimpleNamespace(**{**vars(PLAN), "recorded": "with other code"})
BASE, STAGE = session()[:2]
MORE = [replace(run, id=f"{run.id} more") for run in (BASE, STAGE)]
FAILED = replace(STAGE, id="failed", status="failed", reason="out of memory")
CANCELLED = replace(STAGE, id="cancelled", status="cancelled")
NOT_HERE = replace(STAGE, id="not here", status="not_applicable")


def followed(work, **more):
    """A job and the states that it has told, one after the other."""
    states = []

    def changed(job, run):
        if job.state not in states[-1:]:
            states.append(job.state)

    return Job(work, changed=changed, **more), states


def test_its_runs_come_as_they_end():
    came = []

    def work(job):
        for run in session()[:2]:
            job.progress.finish(run)
            came.append([each.title for each in job.runs])

    job, states = followed(work)
    assert job.state == "idle"
    job.run()
    assert came == [["baseline"], ["baseline", "data loading"]]
    assert states == ["running", "done"]
    assert job.ended.is_set() and job.problem is None


def test_stopped_before_it_begins_it_has_ended_and_never_begins():
    """A panel whose thread could not start stayed busy for ever."""
    job, states = followed(lambda job: pytest.fail("it began"))
    job.stop()
    assert job.ended.is_set() and states == ["stopped"]
    with pytest.raises(Stopped):
        job.run()
    assert states == ["stopped"]


@pytest.mark.parametrize("notices", [True, False], ids=["the work raises", "the work comes back"])
def test_stopped_it_raises_with_what_was_finished_whatever_the_work_does(notices):
    def work(job):
        job.progress.finish(session()[0])
        job.stop()
        if notices:
            raise Cancelled("a process was ended")

    job, states = followed(work)
    with pytest.raises(Stopped, match="what was finished is kept") as stopped:
        job.run()
    assert [run.title for run in stopped.value.finished] == ["baseline"]
    assert states == ["running", "stopping", "stopped"]


@pytest.mark.parametrize(
    ("problem", "state"), [(RunFailed("it"), "failed"), (KeyboardInterrupt(), "stopped")]
)
def test_what_goes_wrong_is_raised_even_if_telling_its_end_fails(problem, state):
    def work(job):
        raise problem

    def changed(job, run):
        if job.ended.is_set() or job.state not in ("running", "stopping"):
            raise ZeroDivisionError("while drawing")

    job = Job(work, changed=changed)
    with pytest.raises(type(problem)):
        job.run()
    assert (job.state, job.ended.is_set()) == (state, True)


def test_a_press_of_the_stop_button_while_its_end_is_told_leaves_it_ended():
    def changed(job, run):
        if job.state == "done":
            raise KeyboardInterrupt

    job = Job(lambda job: None, changed=changed)
    with pytest.raises(KeyboardInterrupt):
        job.run()
    assert job.ended.is_set() and job.state == "done"


def test_it_is_waited_for_and_what_is_stopped_later_has_ended_already():
    go = threading.Event()
    job = Job(lambda job: go.wait(60))
    thread = threading.Thread(target=job.run)
    thread.start()
    assert not job.ended.is_set()
    go.set()
    assert job.ended.wait(60)
    job.stop()
    thread.join(60)
    assert job.state == "done"


def test_a_job_that_continues_an_answer_knows_it():
    answer = PlanAnswer(PLAN, session()[:2])
    assert not answer.can_continue
    assert Job(lambda job: None, answer.plan, before=answer).before is answer


@pytest.mark.parametrize(
    ("returned", "finished", "is_stopped", "left"),
    [
        (MORE, MORE, False, "a new one"),
        ([MORE[0], NOT_HERE], [], False, "a new one"),
        ([], [], False, "as it was"),  # it raised before anything was measured
        ([], [BASE, STAGE], True, "as it was"),
        ([BASE, STAGE], [BASE, STAGE], True, "as it was"),  # no further round
        (MORE, MORE, True, "with further rounds"),
        ([], MORE, False, "with further rounds"),  # the kernel was interrupted
        ([*MORE, FAILED], [], False, "with further rounds"),  # one that had no rounds before
        ([], MORE[:1], True, "as it was"),  # on the way through a ladder
        ([MORE[0], FAILED], [], False, "as it was"),
        ([MORE[0], CANCELLED], [], True, "as it was"),
    ],
)
@pytest.mark.parametrize("is_same", [True, False])
def test_what_a_job_leaves_of_the_answer_before(returned, finished, is_stopped, left, is_same):
    """What is known of its programs stays if the same was asked for, by Continue or by Run."""
    before = PlanAnswer(PLAN, [BASE, STAGE], ("no picture",), Parity("AMP", "bitwise", [], False, {}))
    job = Job(lambda job: None, PLAN if is_same else OTHER_PLAN)
    job.runs = tuple(finished)
    if is_stopped:
        job.stop()
    answer = answer_after(before, job, returned)
    if left == "as it was":
        assert answer is before
        return
    assert [*answer.runs] == [*(returned or finished)]
    known = (before.notices, before.proof) if is_same and left == "with further rounds" else ((), None)
    assert (answer.notices, answer.proof) == known
