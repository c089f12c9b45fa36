"""What people open is what was edited: every notebook is its source, clean and short."""

import itertools
import re
from pathlib import Path

import jupytext
import nbformat
import pytest

from docs import elsewhere, outputs, slides
from perfkit.additions.drills import cards
from perfkit.additions.my_train import steps
from perfkit.show import sentences
from tests.unit.show.fake_runs import disturbed, session

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
SOURCES = sorted(FOLDER.glob("src/*.py"))
PUZZLES = sorted(FOLDER.glob("src/puzzles/*.py"))
CHAPTERS = """
00_start_here 01_baseline 02_data_loading 03_pinning 04_batch_size 05_uint8_copy 06_amp 07_compile
08_the_whole_ladder 09_your_own_script 10_workbench 11_hidden_transfers 12_kernels_and_shapes 13_several_gpus
14_checking_the_articles
""".split()

each_source = pytest.mark.parametrize("source", [*SOURCES, *PUZZLES], ids=lambda path: path.stem)


def words(source):
    """Words of prose."""
    cells = jupytext.read(source).cells
    return sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")


def test_the_chapters_are_those_of_the_syllabus_and_each_has_its_notebook():
    assert [path.stem for path in SOURCES] == CHAPTERS
    notebooks = [*FOLDER.glob("*.ipynb"), *FOLDER.glob("puzzles/*.ipynb")]
    assert sorted(map(outputs.notebook_of, [*SOURCES, *PUZZLES])) == sorted(notebooks)


def test_the_course_is_short():
    assert {source.stem: words(source) for source in SOURCES if words(source) > 700} == {}
    assert sum(words(source) for source in SOURCES if source.stem[:2] not in ("10", "12", "14")) <= 7_000


@pytest.mark.parametrize("source", [*SOURCES[1:10], *SOURCES[11:14]], ids=lambda path: path.stem)
def test_a_chapter_says_what_one_can_do_after_it_and_asks_three_questions_at_its_end(source):
    cells = [cell.source for cell in jupytext.read(source).cells if cell.cell_type == "markdown"]
    assert "\n*After this you " in cells[0]
    asked = cells[-1].partition("## Check yourself\n")[2]
    assert asked.count("<summary>Answer</summary>") == 3


def test_the_first_gain_is_in_the_first_five_cells():
    cells = jupytext.read(SOURCES[0]).cells[:5]
    runs = [at for at, cell in enumerate(cells) if ".run()" in cell.source]
    before = [cell for cell in cells[: runs[1]] if cell.cell_type == "markdown"]
    assert len(runs) == 2
    assert sum(len(cell.source.split()) for cell in before) <= 300


@each_source
def test_a_notebook_is_its_source_and_its_outputs_are_those_of_its_code(source):
    made = jupytext.read(source)
    opened = nbformat.read(outputs.notebook_of(source), as_version=4)
    nbformat.validate(opened)
    own = [cell for cell in opened.cells if elsewhere.TAG not in cell.metadata.get("tags", ())]
    assert [(cell.cell_type, cell.source, cell.metadata) for cell in own] == [
        (cell.cell_type, cell.source, cell.metadata) for cell in made.cells
    ], "run `make notebooks`"
    assert "widgets" not in opened.metadata
    assert len(opened.cells) - len(own) == (2 if elsewhere.setting() else 0), "run `make notebooks`"
    assert opened.metadata.kernelspec.name == "python3"
    if source in outputs.sources():
        assert opened.metadata.get("perfkit") == outputs.state(source), "run `make outputs`"
    else:
        assert not any(cell.get("outputs") for cell in opened.cells)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_an_output_is_a_result_and_not_how_far_its_cell_had_come(source):
    cells = nbformat.read(outputs.notebook_of(source), as_version=4).cells
    texts = [
        output.get("data", {}).get("text/plain", "") for cell in cells for output in cell.get("outputs", [])
    ]
    assert [text for text in texts if re.fullmatch(r".*, \d+%", text)] == [], "run `make outputs`"


@pytest.mark.parametrize(
    ("wanted", "made"),
    [
        ("00 02 05 14", "00 02 03 04 05 14"),  # else the file of 05 would lack the lines of 03 and 04
        ("08 02", "02 03 04 05 06 07 08"),
        ("06", "06"),  # alone it starts from the file of those before it
        ("01 09", "01 09"),
    ],
)
def test_chapters_between_two_that_are_made_are_made_too_because_the_file_grows_in_all_of_them(wanted, made):
    chosen = [source for source in SOURCES if source.stem[:2] in wanted.split()]
    assert [source.stem[:2] for source in outputs.with_those_between(chosen)] == made.split()


def test_pages_leave_out_a_warning_about_the_machine_and_nothing_else():
    warning = "W1129 20:53:12.759000 30156 torch/utils/cpp_extension.py:183] No CUDA runtime is found\n"
    assert outputs.is_of_the_machine({"text": warning})
    for said in ({"text": f"{warning}and a result\n"}, {"text": ""}, {"data": {"text/html": warning}}):
        assert not outputs.is_of_the_machine(said)


def test_a_page_that_other_programs_disturbed_is_not_taken_for_an_example():
    def page(text):
        shown = nbformat.v4.new_output("execute_result", {"text/plain": text})
        return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("run()", outputs=[shown])])

    told = sentences.notices(disturbed(session()[:2]))[-1]
    assert outputs.is_disturbed(page(f"{told}\nboth: 2.00× as fast"))
    assert not outputs.is_disturbed(page("both: 2.00× as fast"))


def test_pages_name_the_learners_file_as_the_text_does():
    text = f"Wrote /tmp/x/{steps.NAME}. See /tmp/x/runs and {outputs.ROOT}/train.py"
    plain = outputs.without_places(text, "/tmp/x")
    assert plain == f"Wrote {steps.NAME}. See data/runs and perfkit/train.py"


def test_outputs_need_no_script_and_are_small():
    texts = [outputs.notebook_of(source).read_text(encoding="utf-8") for source in SOURCES]
    assert not any(part in text for part in ("<script", "<iframe", "<svg", "widget-view") for text in texts)
    assert sum(map(len, texts)) < 8e6


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_chapter_says_at_its_top_how_long_it_takes_and_what_it_needs(source):
    top = jupytext.read(source).cells[0].source
    minutes = re.search(r"\*(\d+) minutes", top)
    assert minutes and "Needs: " in top
    if source.stem != "00_start_here":
        contents = SOURCES[0].read_text(encoding="utf-8")
        listed = re.search(rf"\({source.stem}\.ipynb\) \|.*?\| (\d+) \|", contents)
        assert listed and listed[1] == minutes[1]
        assert f"| {source.stem[:2]} " in (ROOT / "docs/teaching/answers.md").read_text(encoding="utf-8")


def test_the_climb_takes_a_learner_seventy_five_minutes_at_most():
    text = (ROOT / "docs/teaching/README.md").read_text(encoding="utf-8")
    minutes = [int(number) for number in re.search(r"^\| minutes \|(.+)\|$", text, re.M)[1].split("|")]
    tops = [re.search(r"\*(\d+) minutes", jupytext.read(source).cells[0].source) for source in SOURCES]
    assert [int(top[1]) for top in tops[1:]] == minutes[1:], "00 says how long its first speed-up takes"
    assert sum(minutes[:9]) <= 75


def minutes_by_the_rule(source):
    """A learner's minutes, by the rule of docs/teaching: to read, to measure, to write lines, to answer."""
    read, code = 0, ""
    cells = jupytext.read(source).cells
    for cell in cells:
        if cell.cell_type == "code":
            code += cell.source + "\n"
        elif not cell.source.startswith(("### ", "## The course")):  # puzzles, and the list of chapters
            text = cell.source.partition("## Check yourself")[0]
            read += len(re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL).split())
    chapter = source.stem[:2]
    measured = 0.0
    if chapter != "03":  # which has nothing to measure on a CPU
        compared = re.findall(r"pk\.my_train\((.+)\)|pk\.my_train\(\)", code) if chapter > "00" else []
        budgets = [re.search(r"budget_s=(\d+)", how) for how in compared]
        measured = code.count(".run()") / 2 + sum(int(b[1]) / 60 if b else 1 for b in budgets)
    lines = {edit.get("cell", "1") for edit in steps.edits() if edit["chapter"] == chapter}
    exercises = [cell for cell in cells if "exercise" in cell.metadata.get("tags", ())]
    answers = 0 if chapter == "00" else 3
    return read / 200 + measured + 2 * (len(lines) + len(exercises)) + answers / 2


@pytest.mark.parametrize("source", SOURCES[:9], ids=lambda path: path.stem)
def test_the_minutes_of_a_chapter_are_those_of_the_rule(source):
    text = (ROOT / "docs/teaching/README.md").read_text(encoding="utf-8")
    listed = re.search(r"^\| minutes \|(.+)\|$", text, re.M)[1].split("|")
    assert int(listed[int(source.stem[:2])]) == pytest.approx(minutes_by_the_rule(source), abs=1.5)


@pytest.mark.parametrize("source", SOURCES[2:8], ids=lambda path: path.stem)
def test_the_answer_of_a_stage_is_its_line_of_my_train(source):
    """What a chapter says, what `restore` writes and what the starter has are one text."""
    chapter = source.stem[:2]
    prose = "\n".join(cell.source for cell in jupytext.read(source).cells if cell.cell_type == "markdown")
    answers = re.findall(r"<summary>Answer</summary>\n\n```python\n(.*?)\n```", prose, re.DOTALL)
    stripped = [line.strip() for answer in answers for line in answer.splitlines() if line]
    assert stripped
    after = [line.strip() for line in steps.after(chapter).splitlines()]
    assert all(any(line in one for one in after) for line in stripped)
    for edit in steps.edits():
        if edit["chapter"] == chapter:
            assert edit["new"] in steps.after(chapter)


def test_each_version_of_my_train_is_a_program_that_names_its_photos():
    for chapter in ("00", "02", "03", "04", "05", "06", "07"):
        compile(steps.after(chapter), steps.NAME, "exec")
    start = steps.after("00")
    assert len(start.splitlines()) <= 36 and f"photo_folder({steps.PHOTOS})" in start


@pytest.mark.parametrize("plan", ["90-minutes", "half-a-day"])
def test_a_plan_for_a_room_adds_up(plan):
    text = (ROOT / "docs" / "teaching" / f"{plan}.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d+):(\d+) \| (\d+) \|", text, re.M)
    rows = [(int(h) * 60 + int(m), int(n)) for h, m, n in listed]
    for (start, minutes), (following, _) in itertools.pairwise(rows):
        assert start + minutes == following
    assert f"Sum: {sum(minutes for _, minutes in rows)} minutes" in text


@pytest.mark.parametrize("plan", ["90-minutes", "half-a-day"])
def test_a_chapter_s_guess_run_and_talk_and_its_drills_fit_into_the_plan(plan):
    """The drills of 08 are homework."""
    text = (ROOT / "docs" / "teaching" / f"{plan}.md").read_text(encoding="utf-8")
    minutes = {lesson.chapter: sum(map(int, lesson.minutes.split("+"))) for lesson in slides.lessons()}
    assert sorted(minutes) == [source.stem[:2] for source in SOURCES]
    planned = re.findall(r"^\| \d+:\d+ \| (\d+) \|[^|]*\[(\d\d)\]", text, re.M)
    assert len(planned) >= 4
    for available, chapter in planned:
        asked = sum(card.chapter == chapter for card in cards.asked() if chapter != "08")
        assert minutes[chapter] + 2 * asked <= int(available), chapter


def test_slides_have_for_each_chapter_a_question_two_wrong_answers_and_need_no_network():
    deck = slides.deck()
    assert not re.search(r"(src|href)=.https?:", deck)
    for lesson in slides.lessons()[:9]:
        assert len(slides.wrong_answers(lesson.wrong)) == 2 and lesson.elsewhere
        assert len(list(slides.chapter(lesson))) >= 4
    assert deck.count("<img") >= 20


def test_what_a_command_prints_is_stored_as_a_terminal_leaves_it():
    bar = "begins\r\n\x1b[?25l\r\x1b[2Kround 1 \x1b[90m━━\x1b[0m\r\x1b[2Kround 2 \x1b[90m━━\x1b[0m\r\n\x1b[?25h\r\x1b[1A\x1b[2K"
    parts = [
        nbformat.v4.new_output("stream", name="stdout", text=text)
        for text in (bar, "\x1b[1mend\x1b[0m  \r\n")
    ]
    (left,) = outputs.as_left_on_screen(parts)
    assert left.text == "begins\nend\n"
