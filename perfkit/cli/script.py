"""Commands that write the training program of a recipe."""

import sys
from typing import Annotated

import typer

from perfkit.cli.options import Out, Stage, Training, check_writable, write
from perfkit.errors import InvalidValue
from perfkit.results.store import RunStore
from perfkit.studies import rungs


def export(
    training: Stage,
    steps: Annotated[int, typer.Option(min=1, help="steps that the script trains")] = 8,
    run_id: Annotated[str | None, typer.Option("--run", help="the recipe of this stored run instead")] = None,
    ranks: Annotated[int, typer.Option(min=1, help="processes that train together")] = 1,
    out: Out = None,
) -> None:
    """Writes the standalone training script of a recipe; it does not need perfkit."""
    check_writable(out)
    settings = training.switches() | ({"ranks": ranks} if ranks > 1 else {})
    text = _stored(run_id) if run_id else _script(training, settings, steps)
    if out:
        write(out, text)
    else:
        sys.stdout.write(text)


def _stored(run_id: str) -> str:
    text = next(iter(rungs.scripts([RunStore().get(run_id)]).values()), None)
    if text is None:
        why = "It was not measured, or it was a script already (see perfkit show ID)"
        raise InvalidValue(f"run '{run_id}' has no recipe to export", why)
    return text


def _script(training: Stage, settings: dict[str, object], steps: int) -> str:
    name = training.stage or "baseline"
    plan = training.plan([name], settings=settings, below=True)
    described, stages = rungs.resolve(plan)
    if stages[-1].reason:
        raise InvalidValue(f"stage '{name}' does not apply here: {stages[-1].reason}", "Choose another")
    return rungs.script(stages[-1].recipe, described, plan.device, training.seed, steps)


def diff(stage: Annotated[str, typer.Argument(help="an optimization")], training: Training) -> None:
    """Shows what a stage changes in the training script: here, and on a GPU if that differs."""
    for title, text in rungs.stage_diffs(training.plan([stage], below=True)):
        sys.stdout.write(f"# {title}\n{text}")
