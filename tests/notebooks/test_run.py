"""Every notebook, top to bottom, without a click; then its exercises, as they are and with their answers."""

import os
import re
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

from perfkit.additions.my_train import steps
from perfkit.workloads import files
from perfkit.workloads.photos import Photos
from tests.support import forks, zygotes

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = [pytest.mark.usefixtures("no_orphans"), pytest.mark.timeout(600)]


def text(cell):
    """What a cell shows, as one text."""
    shown = []
    for output in cell.get("outputs", []):
        shown.append(output.get("text", ""))
        shown += [str(part) for kind, part in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(shown)


def exercises(notebook):
    """Exercises with their checks and answers, as cells of the notebook: the answer follows the check."""
    cells = notebook.cells
    tags = [cell.metadata.get("tags", []) for cell in cells]
    starts = [at for at, own in enumerate(tags) if "exercise" in own]
    checks = [at for at, own in enumerate(tags) if "check" in own]
    pairs = zip(starts, checks, strict=True)
    return [(cells[start], cells[check], cells[check + 1]) for start, check in pairs]


def answered(exercise, answers):
    """The exercise with its answer: each group of lines marked `# edit` becomes a group between empty lines."""
    (answer,) = re.findall(r"<summary>Answer</summary>\n\n```python\n(.*?)\n```", answers.source, re.DOTALL)
    groups = iter(answer.split("\n\n"))
    lines = []
    was_marked = False
    for line in exercise.source.splitlines():
        is_marked = "# edit" in line
        if is_marked and not was_marked:
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + part for part in next(groups).splitlines()]
        elif not is_marked:
            lines.append(line)
        was_marked = is_marked
    assert next(groups, None) is None, "the answer has more parts than the loop has marked lines"
    return "\n".join(lines)


ANEW = """
import sys
from ipywidgets import Widget
from perfkit.process import zygote
Widget.close_all()
zygotes = dict(zygote._zygotes)
for name in [name for name in sys.modules if name.partition(".")[0] in ("perfkit", "tests")]:
    del sys.modules[name]
from perfkit.process import zygote
zygote._zygotes.update(zygotes)
%reset -f
__spec__ = None
from perfkit.additions.my_train import steps
from perfkit.additions.ranks import scaling
from perfkit.additions.scripts import watched
from perfkit.process import zygote
from tests.support import scripts
from tests.support.zygotes import forking
zygote.subprocess = forking()
scaling.LAUNCHES = 1
steps.after = lambda chapter, after=steps.after: after(chapter).replace("(96)", "(32)")
watched.subprocess = scripts.forking()
del forking, scaling, scripts, steps, watched, zygote
"""
"""Leaves nothing in a kernel that a notebook could miss in a new one, but the processes that have imported torch.

Scripts and zygotes are forked: the command line's tests start them, and ranks, as a person does. A learner's own
loop has smaller pictures."""

SMALLER = {
    'Panel("compile"': 'Panel("compile", workload="tests.support.toy:Toy"',
    'Panel("amp")': 'Panel("amp", options={"image_size": 24})',
    'Panel("amp_fewer_threads")': 'Panel("amp_fewer_threads", options={"image_size": 24})',
    "T.Resize(96), T.CenterCrop(96)": "T.Resize(32), T.CenterCrop(32)",
    "budget_s=15": "budget_s=4",
    "budget_s=9": "budget_s=2",
    "budget_s=5": "budget_s=3",
    ", budget_s=120": "",
    "--budget 120": "--budget 1",
    "batch, context = 8, 128": "batch, context = 8, 32",
    '"width": 128, "layers": 4': '"width": 128, "layers": 1',
    "min_run_time=1)": "min_run_time=0.1)",
}
"""Compiling a chapter's own model takes a minute, and so do 16 bits where they are emulated. Ranks are launched
once, and watched for some seconds: in a single one a busy machine takes too few steps. A smaller GPT is as good
for whatever does not measure it."""


def write_smaller_photo(file, number, ground):
    """Half as high and wide, and made in no time: most of a step is decoding, and perfkit's own take 15 ms each."""
    grain = Image.merge("RGB", [Image.effect_noise((250, 188), 20 + number % 20)] * 3)
    Image.blend(Image.new("RGB", grain.size, ground), grain, 0.5).save(file, "JPEG", quality=90)


def make_smaller_photos():
    """Makes the photos that chapters train on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_photo", write_smaller_photo)
        for count in (Photos.presets["smoke"]["count"], steps.PHOTOS):
            files.photo_folder(count)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """Executes notebooks one after the other in one kernel, as each new one would import torch three times."""
    folder = tmp_path_factory.mktemp("notebooks")
    client = NotebookClient(
        nbformat.v4.new_notebook(),
        timeout=500,
        kernel_name="python3",
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )

    def execute(notebook):
        """Runs all cells; a cell that fails, such as one whose panel fails, raises."""
        anew = nbformat.v4.new_code_cell(ANEW)
        client.nb = nbformat.v4.new_notebook(cells=[anew, *notebook.cells], metadata=notebook.metadata)
        client.execute(cleanup_kc=False)
        for cell in notebook.cells:  # what a thread or a callback has printed
            assert "Traceback" not in text(cell), f"{cell.source}\n{text(cell)}"
        left = {file.name for file in folder.iterdir()}
        assert left <= {"my_train.py"}, "a notebook leaves nothing else beside it"

    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="perfkit-data-", ignore_cleanup_errors=True) as data,
    ):
        own = {"PYTHONPATH": path, "PERFKIT_DATA": data, forks.ADDRESS: forks.start(**zygotes.SET)}
        for name, value in {**own, **zygotes.SET}.items():
            patch.setenv(name, value)
        make_smaller_photos()
        yield execute
        client._cleanup_kernel()


def runs_from_top_to_bottom(path, kernel):
    """Runs a chapter, then its exercises."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for part, smaller in SMALLER.items():
            cell.source = cell.source.replace(part, smaller)
    found = exercises(notebook)
    again = [nbformat.v4.new_code_cell(check.source) for _, check, _ in found]
    for (exercise, _, answers), check in zip(found, again, strict=True):
        notebook.cells += [nbformat.v4.new_code_cell(answered(exercise, answers)), check]
    kernel(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code" and re.search(r"pk\.puzzle\(.*\)\.check\(", cell.source):
            assert "still the starter" in text(cell)
    assert all("Your turn" in text(check) for _, check, _ in found)
    assert all("Right" in text(check) for check in again)


@pytest.mark.parametrize("path", NOTEBOOKS[::2], ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, kernel):
    """The others: `test_run_others.py`."""
    runs_from_top_to_bottom(path, kernel)


@pytest.mark.parametrize(
    ("cells", "error"),
    [
        (
            ["from perfkit import notebook as pk",
             "pk.StagePanel('amp', workload='tests.support.toy:RaisingData').run()"],
            "sample 7 is broken",
        ),
        (["pk"], "'pk' is not defined"),
    ],
)  # fmt: skip
def test_a_cell_that_fails_fails_and_one_notebook_leaves_nothing_to_the_next(cells, error, kernel):
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    with pytest.raises(CellExecutionError, match=error):
        kernel(notebook)
    outputs = [output.output_type for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs.count("error") <= 1, "it is told once"
