"""The learner of the pages makes the course's edits, goes on from what was kept, and says what it did."""

import nbformat
import pytest

from docs import learner
from docs.learner import Learner
from perfkit.additions.my_train import steps
from perfkit.additions.my_train.steps import NAME, Version


def chapter(folder, name, cells, kept):
    """The text of the file in each cell of a chapter; `kept` says for each whether it is kept."""
    sources = [*cells, "print(1)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    one, texts = Learner(folder, name), []
    for cell, is_kept in zip(notebook.cells, [*kept, False], strict=True):
        one.before(cell=cell, cell_index=0)
        texts.append((folder / NAME).read_text())
        if is_kept:
            steps.save([*steps.load(folder / NAME), Version(texts[-1])], folder / NAME)
    one.finish(notebook)
    said = [
        bool(cell.outputs) and learner.NOTE in cell.outputs[0].data["text/html"] for cell in notebook.cells
    ]
    assert not any(cell.metadata for cell in notebook.cells)
    return texts, said


@pytest.mark.usefixtures("data_dir")
def test_lines_are_made_before_their_cells_and_what_is_not_kept_is_undone(tmp_path):
    mine, passive = "pk.my_train()", 'pk.my_train(wait_policy="passive")'
    (worker, same, _), said = chapter(tmp_path, "02", [passive, mine], [True, False])
    assert worker == same == steps.after("02") and said == [True, False, False]
    memory, double = 'pk.my_train(allocator="keep")', "pk.my_train(allow=['samples'])"
    (same, batch, _), said = chapter(tmp_path, "04", [memory, double], [False, False])
    assert same == worker and "batch_size=64" in batch and said == [False, True, False]
    assert (tmp_path / NAME).read_text() == steps.load(tmp_path / NAME)[-1].text == steps.after("02")
    (layout, cast, _), said = chapter(tmp_path, "06", [mine, mine], [True, False])
    assert "channels_last" in layout and "autocast" not in layout
    assert "channels_last" in cast and "autocast" in cast and said == [True, True, False]
    (whole, _), said = chapter(tmp_path, "08", ["pk.my_train(whole=True)"], [False])
    assert whole == layout and said == [False, False]


@pytest.mark.usefixtures("data_dir")
def test_a_chapter_alone_starts_from_the_file_of_those_before_it(tmp_path):
    (one, both, _), _ = chapter(tmp_path, "07", ["pk.my_train()"] * 2, [True, True])
    assert "PILToTensor" in one and "compile" not in one and both == steps.after("07")
    assert steps.load(tmp_path / NAME)[0].switches == {"wait_policy": "passive", "allocator": "keep"}


@pytest.mark.usefixtures("data_dir")
def test_an_edit_without_its_line_is_an_error(tmp_path):
    (tmp_path / NAME).write_text("pass")
    steps.save([Version("pass")], tmp_path / NAME)
    with pytest.raises(ValueError, match="no line for the edit of 03"):
        chapter(tmp_path, "03", ["pk.my_train()"], [False])
