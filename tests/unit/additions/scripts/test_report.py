"""What watching a script has shown: one denominator for every share, and the first sentence is the largest thing."""

from types import SimpleNamespace

import msgspec
import pytest

from perfkit.additions.advice.finding import Finding, advice_table
from perfkit.additions.scripts import report
from perfkit.additions.scripts.messages import Account, Evidence, Frame, ScriptFacts, Site, Symptoms
from perfkit.additions.shared.attribution import TimedLine
from perfkit.additions.shared.trend import Trend
from perfkit.results.stats import Ratio
from perfkit.worker.messages import DeviceFacts

RUN = Account(parts={"start": 3.0, "starts of epochs": 1.0, "steps": 8.0, "evaluation": 1.0}, evaluations=2)
LINES = [
    TimedLine("data set", "t.py", 7, 0.06, [], "load()"),
    TimedLine("evaluation", "t.py", 9, 0.05, [], "check()"),
]
EVIDENCE = Evidence(steps=4, parts={"data set": 0.12, "backward": 0.08, "evaluation": 0.05}, lines=LINES)
OWN = Finding("loading_line", "24% of the run is `load()`", "do it once", "t.py:7", share=0.24)
WORKERS = Finding(
    "Loader workers", "waiting takes 51% of a step", "workers=1", share=0.4, settings={"workers": 1}
)
AMP = Finding("AMP", "products", "amp=bf16", settings={"amp": "bf16"})


def seen(*suggestions, findings=(OWN,), trend=None):
    return SimpleNamespace(
        findings=[*findings],
        suggestions=[*suggestions],
        trend=trend,
        growing="",
        is_disturbed=False,
        run=RUN,
        evidence=EVIDENCE,
        seen=SimpleNamespace(step_s=0.05, ended=True),
        step={"waiting": 1.0},
    )


def test_every_share_is_of_the_run_after_its_start():
    rows = {row[0]: row[1:] for row in next(report._run(seen())).rows}
    assert rows["steps"][1] == "80%" and rows["evaluation (2)"][1] == "10%" and rows["total"][1] == ""
    assert sum(int(share.removesuffix("%")) for _, share, _ in rows.values() if share) == 100
    loading, checking = report._lines(seen()).rows
    about = {"script": ScriptFacts(device="cpu", facts=DeviceFacts()), "cores": 2}
    ((_, share),) = Symptoms(run=RUN, evidence=EVIDENCE, **about).lines("data set")
    assert loading[2:4] == ["24%", "15.0 ms a step"] and share == pytest.approx(0.24), "as a sentence says it"
    assert pytest.approx(share) == 15 / 50 * 0.8, "its time and its share are of the same steps"
    assert checking[2:4] == ["10%", "1.00 s in all"]


def test_lines_that_were_looked_at_with_one_thread_have_the_times_of_such_steps():
    """With all threads, as others take the cores, a step took ten times as long."""
    looked = seen()
    looked.evidence = msgspec.structs.replace(EVIDENCE, one_thread=True)
    looked.seen.step_s = 0.5
    assert report._lines(looked).rows[0][2:4] == ["24%", "15.0 ms a step"]


def test_what_timed_steps_have_shown_leaves_out_what_is_not_known():
    block = SimpleNamespace(samples_per_s=64.0, samples=63, step_s=[0.5, 0.5])
    script = ScriptFacts(device="cpu", facts=DeviceFacts(), models=["A|B"], parameters=1234, step_is="a step")
    shown = SimpleNamespace(
        seen=SimpleNamespace(block=block, step_s=0.5, waiting=0.1),
        script=script,
        step={"waiting": 0.0, "forward": 0.2, "backward": 0.3},
        run=SimpleNamespace(steps=40),
        evidence=EVIDENCE,
        peak=SimpleNamespace(allocated=None),
        trace=None,
    )
    table = report._steps(shown)
    assert table.title == "2 timed steps"
    assert table.rows == [
        ["samples/s", "64.0"],
        ["step", "500 ms (a step; samples: 32)"],
        ["mean of all observed steps", "forward 200 ms, backward 300 ms"],
        ["trains", "A/B (1,234 parameters) on cpu"],
    ]
    shown.script = msgspec.structs.replace(script, loader="Rows")
    shown.peak.allocated = 2e9
    shown.trace = "a.json"
    names = dict(report._steps(shown).rows)
    assert names["waiting for data"] == "10%" and names["peak memory of the steps"] == "2.00 GB"
    assert names["profile"] == "perfkit trace a.json"


@pytest.mark.parametrize("suggestions", [
    (WORKERS,), (AMP,), (AMP, WORKERS), (msgspec.structs.replace(AMP, measured=Ratio(1.2, 1.1, 1.3, "faster")),),
])  # fmt: skip
def test_the_first_sentence_is_the_first_row_of_what_to_try(suggestions):
    given = seen(*suggestions)
    table = advice_table(report._to_try(given))
    assert table.rows[0][0].lower() in report.first_sentence(given).lower()


def test_the_first_sentence_says_what_it_is_worth():
    assert report.first_sentence(seen(AMP)).endswith("Removing it would make the run at most 1.32× as fast.")
    assert report.first_sentence(seen(WORKERS)).endswith("With it, the run is up to about 1.67× as fast.")


def test_no_bound_is_said_to_be_certain_where_others_take_the_cores():
    """At most 2.5 was said of a data set that became 3.6 times as fast, above a note that no bound is certain."""
    given = seen()
    given.is_disturbed = True
    assert report.first_sentence(given).endswith("make the run about 1.32× as fast.")


def test_steps_that_change_are_said_before_a_switch_and_after_a_cause():
    trend = Trend("grows", 0.1, 0.2, 0.001, 0.0005, 0.0015)
    grows = str(report.SENTENCES.trend(trend))
    assert report.first_sentence(seen(WORKERS, findings=(), trend=trend)).startswith(grows)
    assert report.first_sentence(seen(WORKERS, trend=trend)).startswith("t.py:7")


def busy(share, limit="about"):
    """A switch that gives something only while other programs are busy."""
    return msgspec.structs.replace(WORKERS, cause="One compute thread", share=share, limit=limit)


def test_what_helps_against_other_programs_is_worth_something_only_as_long_as_they_run():
    given = seen(busy(0.5), findings=())
    given.is_disturbed = True
    said = report.first_sentence(given)
    assert "the run is about 2× as fast, as long as they do. Apart from backward" in said, (
        "and the dearest line"
    )
    assert "as long as" not in report.first_sentence(seen(WORKERS, findings=()))


@pytest.mark.parametrize(
    ("cause", "switch", "is_first"),
    [
        (OWN, busy(0.6), True),
        (OWN, msgspec.structs.replace(WORKERS, share=0.3), True),  # about as much
        (OWN, WORKERS, False),
        (msgspec.structs.replace(OWN, kind="waste"), WORKERS, True),
        (msgspec.structs.replace(OWN, kind="waste", share=0.01), WORKERS, False),
    ],
)
def test_a_cause_in_the_script_comes_before_some_switches_that_may_give_more(cause, switch, is_first):
    """If it is a plain waste, or gives about as much, or the switch helps against other programs alone."""
    first = report.first_sentence(seen(switch, findings=[cause]))
    assert first.startswith("t.py:7") == is_first


def test_a_cause_that_is_listed_is_never_called_none():
    """A share that a busy machine has made smaller is no reason to say that nothing was found."""
    small = msgspec.structs.replace(OWN, share=0.06)
    assert report.first_sentence(seen(findings=[small])).startswith("t.py:7")
    assert "No avoidable cost" not in report.first_sentence(seen(findings=[small]))
    assert not msgspec.structs.replace(WORKERS, share=0.06).is_worth_a_sentence, "a switch may give less"


def test_where_no_cost_is_avoidable_the_line_that_takes_longest_is_named_all_the_same():
    """It may be made cheaper by one who knows what it is for, such as an order of matrix products."""
    passes = [TimedLine(part, "t.py", 5, 3.0, [], "loss.backward()") for part in ("backward", "optimizer")]
    product = TimedLine("forward", "t.py", 8, 2.0, [], "y = a @ b @ c")
    given = seen(findings=())
    given.evidence = msgspec.structs.replace(EVIDENCE, lines=[*passes, product, *LINES])
    assert report.first_sentence(given).endswith("the line that takes longest is t.py:8: `y = a @ b @ c`.")
    given.evidence = msgspec.structs.replace(EVIDENCE, lines=passes)
    assert report.first_sentence(given).endswith("100% waiting.")


RESET = Site("compiler_reset", [Frame("/home/me/train.py", 49, 49, 4, 26)])


@pytest.mark.parametrize(
    ("compiled", "steps", "sites", "says"),
    [
        (2, 61, [], "90% of the run is compilation, in 2 of 61 steps. If later steps compile, too, run it"),
        (1, 1, [], "90% of the run is compilation, in the only step that was observed. If"),
        (
            5,
            5,
            [],
            "90% of the run is compilation, in each of the 5 steps. Run it with TORCH_LOGS=recompiles",
        ),
        (2, 61, [RESET], "train.py:49: torch.compiler.reset() discards what was compiled. 90%"),
        (1, 61, [RESET], "90% of the run is compilation, in 1 of 61 steps. If"),  # nothing is compiled again
    ],
)
def test_compilation_that_takes_much_of_the_run_is_said_with_the_call_that_makes_it_come_again(
    compiled, steps, sites, says
):
    given = seen(findings=())
    given.run = Account(parts={"steps": 1.0, "compilation": 9.0}, compiled=compiled, steps=steps)
    given.script = ScriptFacts(device="cpu", facts=DeviceFacts(), sites=sites)
    assert report.first_sentence(given).startswith(says)


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        (False, "because a step takes 5.00 s. Watch it again with --budget 70."),
        (True, "let it train longer."),
    ],
)
def test_where_no_line_was_looked_at_nothing_is_said_to_be_unavoidable(ended, says):
    """Three steps of five seconds fitted: "No avoidable cost was found" was said of a Jacobian of half of the run."""
    given = seen(findings=())
    given.evidence = Evidence(steps=0)
    given.seen = SimpleNamespace(step_s=5.0, ended=ended)
    first = report.first_sentence(given)
    assert first.endswith(says) and "No avoidable" not in first
    assert str(report.SENTENCES.nothing(given)).startswith("No line was looked at")


def test_below_a_first_sentence_on_compilation_nothing_says_that_no_change_is_suggested():
    given = seen(findings=())
    assert str(report.SENTENCES.nothing(given)) == "Nothing observed suggests a change."
    given.run = Account(parts={"steps": 1.0, "compilation": 9.0}, compiled=8, steps=9)
    assert str(report.SENTENCES.nothing(given)) == "No line explains it."


def test_a_table_of_timed_steps_says_which_they_are_where_others_of_the_run_were_much_faster():
    """24 steps of 191 ms on average, next to 361 steps in 12.2 s, most of which had one compute thread."""
    block = SimpleNamespace(samples_per_s=64.0, samples=96, step_s=[0.05, 0.05, 0.5])
    script = ScriptFacts(device="cpu", facts=DeviceFacts(), step_is="a step of AdamW")
    shown = seen()
    shown.seen = SimpleNamespace(block=block, step_s=0.2, waiting=0.1)
    shown.script, shown.peak, shown.trace = script, SimpleNamespace(allocated=None), None
    shown.run = SimpleNamespace(steps=361)
    shown.evidence = msgspec.structs.replace(EVIDENCE, one_thread=True)
    table = report._steps(shown)
    assert dict(table.rows)["step"].startswith("200 ms on average, 50.0 ms in the median (a step of AdamW")
    assert table.note.endswith("The other 358 steps of the run include those that had one compute thread.")


@pytest.mark.parametrize(("cause", "holds"), [("loading_line", True), ("checkpoints", False)])
def test_shares_of_the_run_hold_for_its_own_threads_and_shares_of_looks_for_one(cause, holds):
    given = seen(findings=[msgspec.structs.replace(OWN, cause=cause)])
    given.evidence = msgspec.structs.replace(EVIDENCE, one_thread=True)
    assert ("That holds with one compute thread" in report.first_sentence(given)) == holds


def test_a_line_whose_operators_take_most_of_both_passes_is_said_where_nothing_is_known_to_be_avoidable():
    head = TimedLine("forward and backward", "t.py", 12, 0.1, text="self.head(x)")
    looked = seen(findings=())
    looked.evidence = msgspec.structs.replace(EVIDENCE, operators=[head])
    said = report.first_sentence(looked)
    assert said.endswith(
        "Of its forward and backward passes, t.py:12 takes most: `self.head(x)`, 50% of a step."
    )
    table = report._lines(looked)
    assert table.rows[-1] == ["t.py:12", "forward and backward", "40%", "25.0 ms a step", "self.head(x)"]
    assert "take in both passes" in table.note and "both passes" not in report._lines(seen()).note
    loading = TimedLine("data set", "t.py", 7, 0.11, [], "load()")
    looked.evidence = msgspec.structs.replace(EVIDENCE, operators=[head], lines=[loading])
    assert "the line that takes longest is t.py:7" in report.first_sentence(looked), "it takes even more"


def test_lines_before_the_first_step_are_in_the_table_of_lines():
    line = TimedLine("before the first step", "/me/text.py", 20, 1.5, text="index(word)")
    looked = seen()
    looked.run = msgspec.structs.replace(RUN, start_lines=[line])
    row = report._lines(looked).rows[-1]
    assert row == ["text.py:20", "before the first step", "50% of it", "1.50 s in all", "index(word)"]
