"""A learner who makes the course's edits of `my_train.py`, so that the pages show what they gain.

What a page then shows was really measured in that run, and says that the line was put in for the page. A line
that was not kept is taken out before the next one is tried.
"""

from pathlib import Path
from typing import Any

import nbformat

from perfkit.additions.my_train import steps
from perfkit.additions.my_train.steps import NAME, Version

NOTE = f"For this page, the answer below was already in {NAME} when the cell ran."


class Learner:
    """Works on the file in a folder, in one chapter."""

    def __init__(self, folder: Path, chapter: str) -> None:
        """Goes on from the chapters before if they have been run, else from their file."""
        self.file, self.chapter, self.compared = folder / NAME, chapter, 0
        names = ["00", *dict.fromkeys(edit["chapter"] for edit in steps.edits())]
        earlier = [name for name in names if chapter.isdigit() and name < chapter]
        if earlier and not steps.load(self.file):
            last = earlier[-1]
            what = "the plain loop" if last == "00" else f"the file after {last}"
            first = Version(steps.after(last), steps.outside(last, {}), what)
            self.file.write_text(first.text, encoding="utf-8")
            steps.save([first], self.file)

    def before(self, cell: Any, **_: Any) -> None:
        """Makes the edits that a cell compares; called before each cell is run."""
        if cell.cell_type != "code" or "pk.my_train(" not in cell.source:
            return
        self.compared += 1
        edits = [edit for edit in steps.edits() if edit["chapter"] == self.chapter]
        edits = [edit for edit in edits if int(edit.get("cell", "1")) == self.compared]
        if not edits:
            return
        text = steps.load(self.file)[-1].text
        for edit in edits:
            if text.count(edit["old"]) != 1:
                raise ValueError(f"{NAME} has no line for the edit of {self.chapter}: {edit['old'].strip()}")
            text = text.replace(edit["old"], edit["new"])
        self.file.write_text(text, encoding="utf-8")
        cell.metadata["edited"] = True

    def finish(self, notebook: Any) -> None:
        """Takes out what was not kept, and says above the outputs what was done for the page."""
        if versions := steps.load(self.file):
            self.file.write_text(versions[-1].text, encoding="utf-8")
        for cell in notebook.cells:
            if cell.metadata.pop("edited", False):
                note = nbformat.v4.new_output("display_data", {"text/html": f"<p><em>{NOTE}</em></p>"})
                cell.outputs.insert(0, note)
