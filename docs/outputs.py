"""Puts outputs into chapters and pages of puzzles: `python -m docs.outputs [01 02 … index]`.

Panels of the ladder play a recording; every other cell runs here, at the preset `quick`. Before a cell that
compares `my_train.py`, the chapter's line goes into the file (`docs.learner`): the climb in these pages grows
from 02 to 08 if they are made together. What needs scripts or drawing by the page, which GitHub takes away,
becomes a picture. About twenty minutes on two cores: a comparison takes one to one and a half.
"""

import base64
import hashlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image, ImageChops
from playwright.sync_api import Page, sync_playwright

from docs.colours import reduced
from docs.learner import Learner
from perfkit.additions.my_train.steps import NAME
from perfkit.ladder.catalogue import ALL_KEPT
from perfkit.recipe import Recipe
from perfkit.results import recordings
from perfkit.show.sentences import DISTURBED

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
RECORDINGS = {"03": "sim-v100"}
"""Of chapters whose stage the usual recording does not have."""
RECIPES = {"03": "device='sim:v100'"}
"""Where panels of recipes, which no recording has, get their runs; on the CPU, if a chapter is not named."""
PUZZLES = ("index", "mysteries")
"""Pages of puzzles that can be read without a kernel, too; the capstone's result is the learner's."""
CLIMB = ("02", "03", "04", "05", "06", "07", "08")
"""Chapters in which `my_train.py` grows: each goes on from the file of the one before."""
OF_THE_MACHINE = "No CUDA runtime is found"
"""A warning of torch where a CUDA toolkit is installed and no GPU is: it says nothing of the chapter."""
CONTROLS = ("10",)
"""Chapters whose panel is there for its controls: it plays no recording."""


def sources() -> list[Path]:
    """What has outputs: the chapters, then pages of puzzles."""
    return [*sorted(NOTEBOOKS.glob("src/*.py")), *(NOTEBOOKS / f"src/puzzles/{name}.py" for name in PUZZLES)]


def notebook_of(source: Path) -> Path:
    """The notebook that is made of a source."""
    return (NOTEBOOKS / source.relative_to(NOTEBOOKS / "src")).with_suffix(".ipynb")


def with_those_between(chosen: list[Path]) -> list[Path]:
    """The sources that were chosen, and the chapters of the climb that are between two of them."""
    climb = [source.stem[:2] for source in sources() if source in chosen and source.stem[:2] in CLIMB]
    needed = [name for name in CLIMB if climb and climb[0] <= name <= climb[-1]]
    return [source for source in sources() if source in chosen or source.stem[:2] in needed]


def state(source: Path) -> dict[str, str]:
    """What the outputs of a chapter depend on: they are out of date once it differs."""
    name = RECORDINGS.get(source.stem[:2], "cpu-quick")
    code = [cell.source for cell in jupytext.read(source).cells if cell.cell_type == "code"]
    recording = (ROOT / "data" / "recordings" / f"{name}.json").read_bytes()
    return {"recording": name, "sha256": hashlib.sha256("\n".join(code).encode() + recording).hexdigest()}


def execute(source: Path, page: Page) -> Any:
    """A chapter with outputs that need no kernel, no script and no drawing by the page."""
    notebook, depends_on = jupytext.read(source), state(source)
    device = RECIPES.get(source.stem[:2], "device='cpu'")
    recipe = next(run.recipe for run in recordings.find("cpu-quick") if run.stage == ALL_KEPT)
    kept = {name: here for name, (here, _) in Recipe.from_dict(recipe).diff(Recipe()).items()}
    played = None if source.stem[:2] in CONTROLS else f"recorded:{depends_on['recording']}"
    first = (
        "from functools import partial as _partial\n\nfrom perfkit import notebook as _pk\n\n"
        f"_pk.use({played!r})\n"
        f"_pk.RecipePanel = _partial(_pk.RecipePanel, {device})\n"
        f"_pk.kept = lambda: {kept}"
    )
    notebook.cells.insert(0, nbformat.v4.new_code_cell(first))
    folder = Path(os.environ["PERFKIT_DATA"])  # its `my_train.py` is no user's
    learner = Learner(folder, source.stem[:2])
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=900, store_widget_state=False, resources=where, on_cell_execute=learner.before
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})
    learner.finish(notebook)
    del notebook.cells[0]
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            data.pop("application/vnd.jupyter.widget-view+json", None)
            if data.get("text/html"):
                data["text/html"] = still(data["text/html"], page)
        if cell.cell_type == "code":
            cell.execution_count = None
            outputs = [one for one in cell.outputs if "text" in one or any(one.data.values())]
            cell.outputs = as_left_on_screen([one for one in outputs if not is_of_the_machine(one)])
    for name in ("language_info", "jupytext"):  # as `make notebooks` leaves them
        notebook.metadata.pop(name, None)
    notebook.metadata["perfkit"] = depends_on
    return notebook


def is_disturbed(notebook: Any) -> bool:
    """Whether other programs disturbed what a page shows: a reader would take it for an example."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.get("data", {}).get("text/plain", "") for output in outputs]
    return any(f"Disturbed ({DISTURBED}):" in text for text in shown)


def is_of_the_machine(output: Any) -> bool:
    """Whether all that an output says is a warning about this machine."""
    lines = output.get("text", "").splitlines()
    return bool(lines) and all(OF_THE_MACHINE in line for line in lines)


def as_left_on_screen(outputs: list[Any]) -> list[Any]:
    """Outputs in which what commands print is one text, without what they have wiped out meanwhile."""
    found: list[Any] = []
    for output in outputs:
        before = found[-1] if found else None
        if before and "text" in output and "text" in before and output.name == before.name:
            before.text += output.text
        else:
            found.append(output)
    for output in found:
        if "text" in output:
            output.text = screen(output.text)
    return found


def screen(text: str) -> str:
    """The lines that a terminal shows at the end: a progress bar writes its own anew, and goes."""
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if "\x1b[1A\x1b[2K" in line and lines:  # up by a line, which is erased
            lines.pop()
        *_, last = line.split("\r")
        lines.append(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", last).rstrip())
    return "\n".join(lines)


def still(html: str, page: Page) -> str:
    """The same with a picture in the place of each drawing and of each page in a frame."""
    page.set_content(f"<body style='background:#fff;font-family:sans-serif'>{html}</body>")
    page.wait_for_timeout(500)  # pages in frames draw themselves
    unfold = "open => document.querySelectorAll('details').forEach(part => { part.open = open })"
    page.evaluate(unfold, True)
    while (drawing := page.locator("svg, iframe").first).count():
        picture = Image.open(io.BytesIO(drawing.screenshot())).convert("RGB")
        # A frame is as high as the largest page that it may have to hold.
        *_, bottom = ImageChops.invert(picture).getbbox() or (0, 0, 0, picture.height)
        file = io.BytesIO()
        reduced(picture.crop((0, 0, picture.width, bottom)), 64).save(file, "png", optimize=True)
        text = drawing.get_attribute("aria-label") or drawing.get_attribute("title") or "picture"
        drawing.evaluate(
            "(old, [src, alt]) => { const image = new Image(old.getBoundingClientRect().width);"
            " Object.assign(image, { src, alt }); old.replaceWith(image) }",
            [f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}", text],
        )
    page.evaluate(unfold, False)
    return page.evaluate("document.body.innerHTML")  # type: ignore[no-any-return]


def without_places(text: str, data: str) -> str:
    """A page without the folders of the machine that made it; the learner's file has its plain name."""
    return text.replace(f"{data}/{NAME}", NAME).replace(data, "data").replace(str(ROOT), "perfkit")


def chosen(names: list[str]) -> list[Path]:
    """The sources that were named, chapters by their first digits; without names, those out of date."""
    if names:
        return [source for source in sources() if {source.stem, source.stem[:2]} & set(names)]
    stored = {source: nbformat.read(notebook_of(source), as_version=4) for source in sources()}
    return [source for source, page in stored.items() if page.metadata.get("perfkit") != state(source)]


def main() -> None:
    """Executes the pages that were named, or that are out of date, and those of the climb between them."""
    os.environ.pop("PERFKIT_PRESET", None)
    disturbed = list[str]()
    with tempfile.TemporaryDirectory(prefix="perfkit-outputs-") as data, sync_playwright() as playwright:
        os.environ["PERFKIT_DATA"] = data
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 860, "height": 800}, device_scale_factor=1.5)
        for source in with_those_between(chosen(sys.argv[1:])):
            path = notebook_of(source)
            notebook = execute(source, page)
            if is_disturbed(notebook):
                disturbed.append(path.name)
                continue
            text = nbformat.writes(notebook) + "\n"
            path.write_text(without_places(text, data), encoding="utf-8")
            sys.stdout.write(f"wrote {path.name}\n")
    if disturbed:
        sys.exit(f"Other programs disturbed {', '.join(disturbed)}: close them, then make these again.")


if __name__ == "__main__":
    main()
