"""What goes with a line: its function or loop, unless the training is in it, too."""

import pytest

from perfkit.additions.shared.around import with_around
from perfkit.additions.shared.attribution import TimedLine
from perfkit.additions.shared.positions import Spot

SOURCE = """\
def match(boxes, anchors):
    for box in boxes:
        for anchor in anchors:
            overlap = iou(box, anchor)
            keep(overlap)

def train():
    for batch in loader:
        loss = match(batch, anchors)
        for weight in weights:
            average(weight)
        loss.backward()
"""
OWN = "own code"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return str(path)


def spots(file, *places):
    return tuple(Spot(file, line, function) for line, function in places)


@pytest.mark.parametrize(
    ("line", "around", "seconds"),
    [
        (4, "match", 9.0),  # with its inner loop, and the line that begins this
        (11, "the loop at train.py:10", 3.0),  # its function has the training in it
        (12, "", 0.0),
    ],
)
def test_a_line_goes_with_the_longest_that_is_of_its_part_alone(file, line, around, seconds):
    train = (9, "train")
    times = {
        (OWN, spots(file, train, (4, "match"))): 6.0,
        (OWN, spots(file, train, (3, "match"))): 2.0,
        (OWN, spots(file, train, (2, "match"))): 1.0,
        (OWN, spots(file, (11, "train"))): 2.0,
        (OWN, spots(file, (10, "train"))): 1.0,
        ("backward", spots(file, (12, "train"))): 5.0,
        ("forward", spots(file, (8, "train"))): 1.0,
    }
    part = "backward" if line == 12 else OWN
    own_s = sum(spent for (_, stack), spent in times.items() if stack[-1].line == line)
    found = with_around(TimedLine(part, file, line, own_s), times, {(file, 12)})
    assert (found.around, found.around_s) == (around, pytest.approx(seconds))


def test_a_loop_with_a_pass_in_it_is_the_training_s_however_short_its_passes_are(file):
    """No look had seen them, and removing the loop was to make the run 100 times as fast."""
    times = {(OWN, spots(file, (9, "train"))): 6.0, (OWN, spots(file, (8, "train"))): 3.0}
    line = TimedLine(OWN, file, 9, 6.0)
    assert with_around(line, times, {(file, 12)}).around == ""
    assert with_around(line, times, ()).around == "the loop at train.py:8"


@pytest.mark.parametrize(("own_s", "around"), [(5.0, "match"), (1.0, ""), (9.0, "")])
def test_what_is_around_is_named_if_the_line_has_a_good_part_of_it_but_not_all(file, own_s, around):
    times = {
        (OWN, spots(file, (9, "train"), (4, "match"))): own_s,
        (OWN, spots(file, (9, "train"), (2, "match"))): 9.5 - own_s,
    }
    assert with_around(TimedLine(OWN, file, 4, own_s), times, ()).around == around


def test_the_loop_may_be_around_the_calls_of_a_function(file):
    times = {
        (OWN, spots(file, (9, "train"), (4, "match"), (30, "<lambda>"))): 5.0,
        (OWN, spots(file, (9, "train"), (5, "match"))): 4.0,
    }
    found = with_around(TimedLine(OWN, file, 30, 5.0), times, ())
    assert (found.around, found.around_s) == ("the loop at train.py:3", 9.0)


def test_functions_of_the_same_name_are_told_apart(tmp_path):
    path = tmp_path / "two.py"
    path.write_text(
        "if fast:\n    def inner():\n        a()\n        b()\nelse:\n    def inner():\n        c()\n"
    )
    inner = "make.<locals>.inner"
    file = str(path)
    times = {(OWN, (Spot(file, at, inner),)): spent for at, spent in ((3, 5.0), (4, 1.0), (7, 3.0))}
    found = with_around(TimedLine(OWN, file, 3, 5.0), times, ())
    assert (found.around, found.around_s) == ("inner", 6.0)


def test_a_file_that_is_no_python_has_no_loops(tmp_path):
    template = tmp_path / "model.jinja"
    template.write_text("{% for x in y %}")
    times = {(OWN, (Spot(str(template), 1, "<template>"),)): 5.0}
    assert with_around(TimedLine(OWN, str(template), 1, 5.0), times, ()).around == ""


def test_what_is_called_in_evaluations_too_still_goes_with_its_line(file):
    times = {
        ("data set", spots(file, (4, "match"))): 5.0,
        ("data set", spots(file, (5, "match"))): 4.0,
        ("evaluation", spots(file, (5, "match"))): 7.0,
    }
    line = TimedLine("data set", file, 4, 5.0)
    assert with_around(line, times, ()).around == ""
    found = with_around(line, times, (), outside=("evaluation", "start"))
    assert (found.around, found.around_s) == ("the loop at train.py:3", 9.0), "all of its function is in it"
