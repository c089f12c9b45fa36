"""What waits: its order, its buttons, where each recipe came from."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.notebook.queue import Measurement, Queue


def waiting(name: str, **more: Any) -> Measurement:
    return Measurement(name, ["AMP bf16"], list, **more)


@pytest.fixture
def queue() -> Queue:
    queue = Queue()
    for name in "abc":
        queue.add(waiting(name))
    return queue


def shown(queue: Queue) -> list[Any]:
    """The lines that are to be seen, in the order of the page."""
    lines = [line for line in queue._list.children if "pk-off" not in line._dom_classes]
    return sorted(lines, key=lambda line: int(line.layout.order))


def button(queue: Queue, name: str, act: str) -> Any:
    (line,) = [one for one in shown(queue) if f"<b>{name}</b>" in one.children[-1].value]
    return next(one for one in line.children if act in one._dom_classes)


def test_entries_come_in_order_and_the_buttons_move_and_remove_them(queue: Queue) -> None:
    button(queue, "c", "pk-earlier").click()
    assert queue.names == ["a", "c", "b"]
    button(queue, "a", "pk-later").click()
    button(queue, "c", "pk-earlier").click()  # it is the first already
    assert queue.names == ["c", "a", "b"]
    texts = [line.children[-1].value for line in shown(queue)]
    assert [text[:8] for text in texts] == ["1. <b>c<", "2. <b>a<", "3. <b>b<"] and "AMP bf16" in texts[0]
    gone = button(queue, "a", "pk-remove")
    gone.click()
    gone.click()  # twice, before the page has heard
    assert queue.names == ["c", "b"]
    assert [queue.take().name for _ in range(2)] == ["c", "b"]  # type: ignore[union-attr]
    assert queue.take() is None and shown(queue) == []


def test_what_is_no_longer_waiting_is_not_moved(queue: Queue) -> None:
    later = button(queue, "a", "pk-later")
    queue.take()
    later.click()
    assert queue.names == ["b", "c"]
    queue.clear()
    assert queue.names == [] and shown(queue) == []


def test_errors_stay_in_view_until_a_new_series(queue: Queue) -> None:
    queue.went_wrong("a: <no> memory")
    queue.take()
    assert "a: &lt;no&gt; memory" in queue._errors.value
    queue.forget_problems()
    assert queue._errors.value == ""


def test_names_are_text(queue: Queue) -> None:
    queue.add(waiting("<script>"))
    assert "&lt;script&gt;" in shown(queue)[-1].children[-1].value


def test_a_recipe_comes_from_the_last_one_that_was_measured() -> None:
    first = waiting("first", since="an older run")
    second = waiting("second", since=first)
    assert second.parent == "an older run", "as long as nothing was measured in between"
    first.run_id = "r1"
    assert second.parent == "r1"
