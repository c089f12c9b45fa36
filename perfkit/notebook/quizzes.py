"""Questions at the end of a chapter: each answer opens on a click, without a kernel, and says why."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec.toml
from IPython.display import HTML

from perfkit.errors import one_of
from perfkit.notebook.layout import code_spans

Answer = tuple[str, str]
"""What one may believe, and why it is right or wrong."""


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One question: an answer that is right, and the usual misconceptions."""

    question: str
    right: Answer
    wrong: Annotated[tuple[Answer, ...], msgspec.Meta(min_length=2)]

    def answers(self) -> list[tuple[bool, Answer]]:
        """All of them, and whether each is right, in an order that is the same every time."""
        answers = [(True, self.right), *((False, answer) for answer in self.wrong)]
        random.Random(self.question).shuffle(answers)
        return answers


@cache
def questions() -> dict[str, list[Question]]:
    """All questions, by the number of their chapter (`02`)."""
    text = Path(__file__).with_name("quizzes.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, list[Question]])


def quiz(chapter: str) -> HTML:
    """The questions of a chapter.

    Raises:
        InvalidValue: it has none.
    """
    if chapter not in questions():
        raise one_of(chapter, list(questions()), "chapter with questions")
    asked = questions()[chapter]
    items = "".join(f'<li style="margin-bottom:1em">{_item(question)}</li>' for question in asked)
    return HTML(f'<ol class="pk-quiz" style="max-width:75ch">{items}</ol>')


def _item(question: Question) -> str:
    folded = "".join(
        f"<details><summary>{code_spans(answer)}</summary>"
        f"<p><b>{'Right.' if right else 'No.'}</b> {code_spans(reason)}</p></details>"
        for right, (answer, reason) in question.answers()
    )
    return f"<p><b>{code_spans(question.question)}</b></p>{folded}"
