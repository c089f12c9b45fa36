"""The command that looks at memory. Profiles and traces are commands of the trace addition."""

import dataclasses
from typing import Annotated

import typer

from perfkit.cli.options import Output, Stage, Texts
from perfkit.show import inside
from perfkit.studies import inspect


def memory(
    training: Stage,
    output: Output,
    other: Annotated[
        Texts, typer.Option("--compare", help="switch=value of a second recipe to show beside it; repeatable")
    ] = None,
) -> None:
    """What holds memory in a training step: by kind, by phase, by line of code."""
    second = dataclasses.replace(training, settings=[*(training.settings or []), *(other or [])])
    ledgers = [inspect.memory(**one.where()) for one in ([training, second] if other else [training])]
    output.show("memory of a step", inside.memory(ledgers), ledgers if other else ledgers[0])
