"""Slides to teach from, in one file: `python -m docs.slides [FILE]`.

They are made of what is there: the pictures in the notebooks, and the questions and wrong answers of
`docs/teaching/answers.md`. Each chapter has its goal, its picture, the question, the result, the drills,
and the wrong answers, with what to say as notes.
"""

import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

ROOT = Path(__file__).parents[1]
CHAPTERS = ("00", "01", "02", "03", "04", "05", "06", "07", "08")
_ROW = re.compile(r"^\| (\d\d) ([^|]+) \| ([^|]+) \| ([\d +]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)
_IMAGE = re.compile(r'<img[^>]*src="data:image/[^>]*>')


class Lesson(NamedTuple):
    """A row of `docs/teaching/answers.md`."""

    chapter: str
    title: str
    goal: str
    minutes: str
    """For guess, run and talk, such as `1 + 3 + 8`."""
    question: str
    wrong: str
    elsewhere: str
    """What to do if the result is n/a."""


def lessons() -> list[Lesson]:
    """What a teacher needs for each chapter."""
    text = (ROOT / "docs" / "teaching" / "answers.md").read_text(encoding="utf-8")
    return [Lesson(*(part.strip() for part in row)) for row in _ROW.findall(text)]


def chapter(lesson: Lesson) -> Iterator[str]:
    """The slides of a chapter."""
    (path,) = (ROOT / "notebooks").glob(f"{lesson.chapter}_*.ipynb")
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    lanes = [image for cell in cells if "pk.lanes(" in cell.source for image in images(cell)]
    results = [image for cell in cells if ".run()" in cell.source for image in images(cell)]
    guess, run, talk = lesson.minutes.split(" + ")
    where = f"<p class='chapter'>{lesson.chapter} · {escaped(lesson.title)}</p>"
    yield slide(
        f"{where}<h1>{escaped(lesson.title[0].upper() + lesson.title[1:])}</h1>"
        f"<p>The goal: {escaped(lesson.goal)}.</p>",
        f"Guess {guess}, run {run}, talk {talk} minutes.",
    )
    for picture in lanes[:1]:
        yield slide(f"{where}<h2>Before and after: what closed the gap?</h2>{picture}")
    yield slide(
        f"{where}<h2 class='big'>{escaped(lesson.question[0].upper() + lesson.question[1:])}</h2>"
        "<p class='act'>Write your answer down. Then press Run.</p>",
        f"If a panel says n/a: {escaped(lesson.elsewhere)}.",
    )
    if results:
        yield slide(f"{where}<h2>A recorded result. Yours?</h2>{results[-1]}")
    for cell in cells:
        if "pk.drill(" in cell.source:
            yield from drill(where, cell)
    said = wrong_answers(lesson.wrong)
    items = "".join(f"<li>“{escaped(claim)}”</li>" for claim, _ in said)
    notes = " ".join(f"“{claim}”: {answer}." for claim, answer in said)
    yield slide(f"{where}<h2>True or false, and why?</h2><ul>{items}</ul>", escaped(notes))
    if lesson.chapter != "00":
        yield slide(f"{where}<h2>Done?</h2><p><code>pk.checkpoint(&quot;{lesson.chapter}&quot;)</code></p>")


def drill(where: str, cell: Any) -> Iterator[str]:
    """A card: its picture with the questions as notes, then the answer."""
    pictures = images(cell)
    if len(pictures) != 2:
        return
    asked, answer = pictures
    three = "What limits this step? What would you try first? How many times as fast could it be at most?"
    yield slide(f"{where}<h2>{three}</h2>{asked}", "Everybody answers before anybody presses a button.")
    yield slide(f"{where}<h2>What was measured</h2>{answer}")


def wrong_answers(text: str) -> list[tuple[str, str]]:
    """The claims of a cell of the table, each with what to say."""
    parts = re.findall(r'"([^"]+)":? ([^"]+)', text)
    return [(claim, answer.strip(" .")) for claim, answer in parts]


def images(cell: Any) -> list[str]:
    """The pictures that a cell's outputs have."""
    found = list[str]()
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if "image/png" in data:
            found.append(f'<img alt="" src="data:image/png;base64,{data["image/png"]}">')
        found += _IMAGE.findall(data.get("text/html", ""))
    return [re.sub(r' (width|height|style)="[^"]*"', "", image) for image in found]


def slide(body: str, notes: str = "") -> str:
    """One slide."""
    aside = f"<aside><p>{notes}</p></aside>" if notes else ""
    return f"<section>{body}{aside}</section>"


def escaped(text: str) -> str:
    """Markdown of one line as HTML: emphasis and code."""
    safe = html.escape(text)
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", re.sub(r"`([^`]+)`", r"<code>\1</code>", safe))


def deck() -> str:
    """All slides as one page."""
    first = slide(
        "<h1>Where does a training step spend its time?</h1>"
        "<p>Look at the step, name the gap, change one line, look again.</p>",
        "Ask: how busy is your GPU while it trains, and how do you know? Collect answers, do not judge them.",
    )
    chosen = [lesson for lesson in lessons() if lesson.chapter in CHAPTERS]
    slides = [first, *(one for lesson in chosen for one in chapter(lesson))]
    page = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    return page.replace("SLIDES", "\n".join(slides))


def main() -> None:
    """Writes the file."""
    file = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "slides.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = deck()
    file.write_text(text, encoding="utf-8")
    sys.stdout.write(f"wrote {file}: {text.count('<section>')} slides\n")


if __name__ == "__main__":
    main()
