"""The panel of a script: *Continue* adds rounds to those of the same sides, where they left it undecided."""

import time
from types import SimpleNamespace

import pytest

from perfkit import lookup
from perfkit import notebook as pk
from perfkit.additions.scripts import panel as panels
from perfkit.errors import Cancelled, RunFailed, StoreError
from perfkit.show import terminal
from perfkit.show.document import Section
from perfkit.show.style import Figure
from tests.unit.additions.referee.test_referee import comparison

pytestmark = pytest.mark.usefixtures("data_dir")


class Compared:
    """In the place of measuring: remembers what it was asked, and gives what it holds."""

    def __init__(self, *results):
        self.results, self.asked = list(results), []

    def __call__(self, a, b, plan, earlier, progress, store):
        self.asked.append(SimpleNamespace(sides=(a, b), plan=plan, earlier=earlier))
        return self.results.pop(0)


@pytest.fixture
def panel(tmp_path, monkeypatch):
    monkeypatch.setattr(Figure, "svg", lambda figure: "<svg></svg>")
    (tmp_path / "train.py").touch()
    return pk.script_panel(tmp_path / "train.py", preset="smoke")


@pytest.fixture
def edited(monkeypatch):
    """Every edit adds a line."""
    edit = SimpleNamespace(diff=lambda: "+ a line", notes=list)
    monkeypatch.setattr(lookup, "load", lambda name: lambda *_: edit)


def click(panel, label, is_fine=True):
    """Clicks the button with this label, and waits for what it starts."""
    (button,) = [one for one in panel._inputs if getattr(one, "description", "") == label]
    button.click()
    until = time.monotonic() + 60
    while panel.is_busy or not (is_fine or panel.status.error.value):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not is_fine or not panel.status.error.value


def test_continue_adds_to_the_rounds_of_the_same_sides_until_they_decide(panel, monkeypatch):
    open_, decided, again = comparison(scatter=0.3), comparison(2.0), comparison(2.0)
    compared = Compared(open_, decided, again)
    monkeypatch.setattr(panels, "compare_candidates", compared)
    panel.set(workers=2)
    click(panel, "Run")
    assert "pk-off" not in panel._continue._dom_classes
    panel.set(workers=0, channels_last=True)  # which is for the next Run
    click(panel, "Continue")
    first, more = compared.asked
    assert first.earlier is None and more.earlier is open_
    assert more.sides == first.sides and first.sides[1].changes == {"workers": 2}
    assert more.plan is first.plan
    assert "pk-off" in panel._continue._dom_classes, "more rounds would change nothing"
    assert [*panel.runs] == [decided.a, decided.b]
    click(panel, "Run")
    assert compared.asked[-1].earlier is None
    assert compared.asked[-1].sides[1].changes == {"channels_last": True}


@pytest.mark.parametrize("file", ["parcel/train.py", "parcel/train/__main__.py"])
def test_an_edited_module_is_measured_anew_and_never_continued(file, tmp_path, monkeypatch):
    """Its code was not known, so that rounds of two programs were pooled."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text("first = 1\n")
    panel = panels.ScriptPanel("parcel.train", module=True, preset="smoke")
    compared = Compared(comparison(scatter=0.3))
    monkeypatch.setattr(panels, "compare_candidates", compared)
    panel.set(workers=2)
    click(panel, "Run")
    path.write_text("second = 2\n")
    click(panel, "Continue", is_fine=False)
    assert "the code of parcel.train has changed" in panel.status.error.value
    measured = compared.asked[0].plan.source().starter.launch
    assert measured.replaced == ((path, b"first = 1\n"),), "processes that start later have it, too"


@pytest.mark.parametrize("label", ["Continue", "Run"])
@pytest.mark.parametrize("problem", [Cancelled("stopped"), RunFailed("the script failed")])
def test_other_work_and_what_ends_before_it_measures_leave_the_comparison(
    panel, edited, monkeypatch, label, problem
):
    def ending(*_, **__):
        raise problem

    open_, decided = comparison(scatter=0.3), comparison(2.0)
    monkeypatch.setattr(panels, "compare_candidates", Compared(open_))
    panel.set(workers=2)
    click(panel, "Run")
    click(panel, "Patch")
    edit, shown = panel._save.value, terminal.text(panel.sections())
    monkeypatch.setattr(panels, "watch_script", ending)
    monkeypatch.setattr(panels, "compare_candidates", ending)
    for work in ("Watch", label):
        click(panel, work, is_fine=False)
        assert [*panel.runs] == [open_.a, open_.b] and terminal.text(panel.sections()) == shown
        assert panel._save.value == edit and edit
        assert "pk-off" not in panel._continue._dom_classes
    compared = Compared(decided)
    monkeypatch.setattr(panels, "compare_candidates", compared)
    click(panel, "Continue")
    assert compared.asked[0].earlier is open_
    assert "pk-off" in panel._continue._dom_classes


def test_a_report_that_was_read_is_folded_below_the_comparison(panel, monkeypatch):
    monkeypatch.setattr(panels, "compare_candidates", Compared(comparison(2.0)))
    panel._report = [Section("What watching it has shown", ["a line"])]
    assert panel.sections() == [("What watching it has shown", ["a line"], False)]
    panel.set(workers=2)
    click(panel, "Run")
    assert panel.sections()[-1] == ("What watching it has shown", ["a line"], True)


def test_an_edit_after_which_the_losses_differ_is_shown_and_not_offered_as_a_file(panel, edited, monkeypatch):
    monkeypatch.setattr(panels, "compare_candidates", Compared(comparison(2.0, losses=1.1), comparison(2.0)))
    panel.set(workers=2)
    for is_offered in (False, True):  # compared again, they are the same
        click(panel, "Run")
        click(panel, "Patch")
        assert ("perfkit.diff" in panel._save.value) == is_offered
        assert (
            "no file to save: with these switches the losses differ" in repr(panel.sections())
        ) != is_offered
    panel.set(workers=0, channels_last=True)
    click(panel, "Patch")
    assert "perfkit.diff" in panel._save.value, "nothing is known of these"


def test_a_file_is_offered_for_the_edit_that_is_shown_and_for_no_other(panel, edited, monkeypatch):
    """New losses may speak against it, and other switches have another one."""
    monkeypatch.setattr(panels, "compare_candidates", Compared(comparison(2.0)))
    panel.set(workers=2)
    click(panel, "Patch")
    assert "perfkit.diff" in panel._save.value
    click(panel, "Run")
    assert not panel._save.value and "+ a line" not in repr(panel.sections())
    click(panel, "Patch")
    panel.set(channels_last=True)
    assert not panel._save.value and "+ a line" not in repr(panel.sections())


def test_switches_that_could_not_be_measured_are_not_judged_by_the_losses_before(panel, edited, monkeypatch):
    def failing(*_):
        raise RunFailed("the script failed", "Mend it")

    monkeypatch.setattr(panels, "compare_candidates", Compared(comparison(2.0, losses=1.1)))
    panel.set(workers=2)
    panel.run()
    panel.set(workers=0, channels_last=True)
    monkeypatch.setattr(panels, "compare_candidates", failing)
    with pytest.raises(RunFailed):
        panel.run()
    panel.patch()
    assert "perfkit.diff" in panel._save.value


def test_a_result_that_could_not_be_stored_is_shown_and_told(panel, monkeypatch):
    result = comparison(2.0)

    def compared(a, b, plan, earlier, progress, store):
        store.lost.append("as it is was measured, but not stored: the disk is full")
        return result

    monkeypatch.setattr(panels, "compare_candidates", compared)
    panel.set(workers=2)
    with pytest.raises(StoreError, match="the disk is full.*it is not kept"):
        panel.run()
    assert [*panel.runs] == [result.a, result.b]
    monkeypatch.setattr(panels, "compare_candidates", Compared(result))
    panel.run()  # what was lost before is not told again
