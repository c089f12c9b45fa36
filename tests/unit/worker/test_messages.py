"""Messages between parent and child: each crosses as it is, and what is not one is refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any, get_args

import msgspec
import pytest

from perfkit.recipe import Recipe
from perfkit.simulate.queue import Launch, Link, Planned
from perfkit.simulate.step import Fetch
from perfkit.worker import messages
from perfkit.worker.messages import Answer, Block, Failure, Progress

COMMANDS = get_args(messages.AnyCommand)
VALUES: dict[Any, Any] = {
    str: "x", int: 3, float: 0.5, bool: True, dict[str, Any]: Recipe().to_dict(),
    list[dict[str, Any]]: [Recipe().to_dict()],
    Planned | None: Planned(
        actions=[Fetch(), Launch(1e-6, 2e-6, [3e-6])], link=Link(12e9, 6e9), peak_bytes=1,
        reserved_bytes=2,
    ),
}  # fmt: skip


def command(kind: Any) -> Any:
    return kind(**{field.name: VALUES[field.type] for field in msgspec.structs.fields(kind)})


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: str(kind.__name__))
def test_a_command_crosses_and_names_the_type_of_its_answer(kind: Any) -> None:
    sent = command(kind)
    line = messages.encode(sent)
    assert line.count("\n") == 1
    assert messages.decode_command(line) == sent
    assert issubclass(sent.answer, msgspec.Struct)


def test_every_command_is_known() -> None:
    own = [kind for kind in messages.Command.__subclasses__() if kind.__module__ == messages.__name__]
    assert len(COMMANDS) == len(own) == 14


@pytest.mark.parametrize("event", [Progress("warm-up", 1, 2), Failure("exception", "what", "remedy")])
def test_an_event_crosses(event: Any) -> None:
    assert messages.decode_event(messages.encode(event)) == event


def test_a_number_that_is_none_crosses_as_itself() -> None:
    event = messages.decode_event(messages.encode(Answer(Block(8, math.inf, [math.nan]))))
    assert isinstance(event, Answer)
    block = msgspec.convert(event.value, messages.MeasureBlock(8).answer)
    assert math.isnan(block.step_s[0])
    assert block.seconds == math.inf


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "{}", '{"type": "Sing"}', '{"type": "MeasureBlock", "samples": "many"}',
     '{"type": "ReadPeak", "more": 1}', '{"event": "error", "what": "a print of the workload"}'],
)  # fmt: skip
def test_what_is_no_message_is_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  json's and msgspec's own are both ValueErrors
        messages.decode_command(line)
    with pytest.raises(ValueError):  # noqa: PT011
        messages.decode_event(line)


def test_blocks_add_up() -> None:
    both = Block(8, 1.0, [0.5, 0.5], [0.1, 0.1]) + Block(4, 1.0, [1.0], [0.2])
    assert both == Block(12, 2.0, [0.5, 0.5, 1.0], [0.1, 0.1, 0.2])
    assert both.samples_per_s == 6


def test_facts_that_are_not_known_are_left_out() -> None:
    assert msgspec.to_builtins(messages.DeviceFacts(2, "2.15")) == {"threads": 2, "torch": "2.15"}


def test_importing_the_messages_does_not_import_torch() -> None:
    script = "import sys, perfkit.worker.messages, json; print(json.dumps('torch' in sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) is False
