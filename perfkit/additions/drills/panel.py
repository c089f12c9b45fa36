"""A drill in a notebook: a picture, three questions and the measured answer; and the score of all drills."""

from collections.abc import Mapping
from importlib import resources

import ipywidgets as widgets
from IPython.display import display
from msgspec import structs

from perfkit.additions.drills import cards, score
from perfkit.additions.drills.cards import LIMITS, Card
from perfkit.additions.drills.score import Given
from perfkit.additions.lanes.figures import Lanes
from perfkit.errors import PerfkitError
from perfkit.notebook.panel import STYLE, VIEW
from perfkit.notebook.pieces import alert, heading, row, text
from perfkit.notebook.shown import Shown, in_colab
from perfkit.show import html, terminal
from perfkit.show.document import Bullets, Content, Section
from perfkit.show.style import Figure

LIMIT, FIRST = "1. What limits this step?", "2. What would you try first?"
BOUND = "3. How many times as fast could the step be if all gaps between kernels closed?"
_OWN = resources.files("perfkit.additions.drills").joinpath("drills.css").read_text("utf-8")
_SLIDER = resources.files("perfkit.additions.drills").joinpath("slider.html").read_text("utf-8")
_BUTTON = resources.files("perfkit.additions.drills").joinpath("button.html").read_text("utf-8")


def drill(number: int) -> "Drill":
    """A card: two steady steps as lanes, and three questions about them. The cards are numbered from 1."""
    return Drill(cards.card(number))


def drills() -> Shown[dict[int, Given]]:
    """Your points on all cards so far, and how well you estimate bounds."""
    given = score.load()
    return Shown(given, score.contents(given))


class Drill:
    """A card in a cell. Only the first answer to a card counts."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.title = f"Drill {card.number} of {len(cards.asked())}: read the timeline"
        options = "".join(f", {name}={value}" for name, value in card.asked.options.items())
        self.about = f"Two steps of a loop: {card.asked.recipe.describe()}{options}. {card.recorded.source}."
        self.chosen: dict[str, str] = {}  # the answers to the questions with buttons
        self.bound = widgets.BoundedFloatText(
            value=3.0, min=1.0, max=9.0, step=0.1, description="times as fast", _dom_classes=["pk-bound"]
        )
        # While the kernel is busy, the page holds back a widget's changes, but not the clicks of its buttons.
        # This button belongs to the page: pressing it is a change, and brings along the bound that it shows.
        self.pressed = widgets.Text(_dom_classes=["pk-pressed", "pk-off"])
        self.pressed.observe(lambda change: self.answer(change["new"]), "value")
        self.error, self.result = text("pk-error"), text("pk-result")
        everything = [
            widgets.HTML(f"{STYLE}<style>{_OWN}</style>"),
            heading(self.title),
            widgets.HTML(f"<p>{self.about}</p>"),
            widgets.HTML(f'<div class="pk-wide" tabindex="0">{self._picture.svg()}</div>'),
            *self._question(LIMIT, LIMITS),
            *self._question(FIRST, {name: name for name in card.asked.tries}),
            text("pk-asked", f"<p>{BOUND}</p>"),
            row([text("pk-slider", _SLIDER), self.bound]),
            row([text("pk-answer", _BUTTON), self.pressed]),
            self.error,
            self.result,
        ]
        self.widget = widgets.VBox(everything, _dom_classes=["pk-panel", "pk-drill"])

    def answer(self, told: str) -> None:
        """Shows what was measured and keeps the first answer; `told`: the bound on the page, and the time."""
        if bound := told.partition(" ")[0]:
            self.bound.value = float(bound)
        missing = [question for question in (LIMIT, FIRST) if question not in self.chosen]
        self.error.value = alert(f"Not answered yet: {' '.join(missing)}") if missing else ""
        if not missing:
            given = Given(self.chosen[LIMIT], self.chosen[FIRST], self.bound.value)
            try:
                score.keep(self.card.number, given)
            except PerfkitError as problem:
                self.error.value = alert(f"Your answer is not kept: {problem}")
            shown = html.fragment(self._answer(given))
            self.result.value = f'<div class="pk-wide" role="status" tabindex="0">{shown}</div>'

    @property
    def _picture(self) -> Figure:
        """The picture without the answer."""
        side = self.card.recorded.lanes.sides[0]
        return Lanes([structs.replace(side, title="this loop", ceiling_ms=None)]).figure()

    def _answer(self, given: Given | None) -> list[Content]:
        return [*score.told(self.card, given), self.card.recorded.lanes.figure()]

    def _question(self, question: str, answers: Mapping[str, str]) -> list[widgets.Widget]:
        """A question with a button for each answer. The chosen button has a mark in its label."""
        buttons = {name: widgets.Button(description=words) for name, words in answers.items()}

        def choose(chosen: widgets.Button) -> None:
            for name, button in buttons.items():
                is_chosen = button is chosen
                button.description = f"✓ {answers[name]}" if is_chosen else answers[name]
                button.button_style = "info" if is_chosen else ""
                if is_chosen:
                    self.chosen[question] = name

        for button in buttons.values():
            button.on_click(choose)
        return [text("pk-asked", f"<p>{question}</p>"), row([*buttons.values()])]

    def _ipython_display_(self) -> None:
        """Displays the widget, and for a page without a kernel the same with a folded answer."""
        asked = Bullets([LIMIT, f"{FIRST} {', '.join(self.card.asked.tries)}", BOUND])
        still = [
            Section(self.title, [self.about, self._picture, asked]),
            Section("Answer", self._answer(None), folded=True),
        ]
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        data: dict[str, object] = {VIEW: view, "text/plain": repr(self)}
        if not in_colab():  # Colab might show the page instead of the widget
            data["text/html"] = html.fragment(still)
        display(data, raw=True)

    def __repr__(self) -> str:
        return terminal.text([self.title, self.about, Bullets([LIMIT, FIRST, BOUND])])
