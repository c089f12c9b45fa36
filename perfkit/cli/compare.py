"""`perfkit compare`: which of two recipes is faster."""

from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from perfkit.cli import options
from perfkit.cli.command import complain
from perfkit.errors import InvalidValue
from perfkit.results import Comparison, stats
from perfkit.show import units
from perfkit.studies import compare as comparing
from perfkit.studies.sources import Study


def compare(
    sides: Annotated[
        options.Texts,
        typer.Argument(
            metavar="A B", help="each is a stage or settings (workers=2,amp=bf16); B is compared with A"
        ),
    ] = None,
    *,
    training: options.TrainingOptions,
    gate: options.GateOptions,
    output: options.OutputOptions,
    more: Annotated[
        bool, typer.Option("--more", help="add rounds to the newest stored comparison of the two")
    ] = False,
) -> None:
    """Is B faster than A? Measures both in turn until the interval is narrow enough."""
    names = sides or []
    if len(names) != 2:
        what = f"compare was given {units.plural(len(names), 'side')}"
        raise InvalidValue(what, "Name two: A and B, such as baseline and workers=2,amp=bf16")
    plan = training.plan().until(gate.seconds, gate.precision).fixed()
    if gate.budget is not None and not plan.source().is_costly:
        what = f"nothing is measured on {training.device}, so there is no time to limit"
        raise InvalidValue(what, "Leave out --budget")
    a, b = (comparing.candidate(side, plan) for side in names)
    store_context = options.stored() if gate.limit is None or more else options.stored_if_possible()
    with store_context as store:
        with options.progress() as follow:
            if gate.limit is not None:
                plan.source().require(Study.GATE)
            earlier = comparing.earlier_comparison(a, b, plan, store) if store and more else None
            study = partial(comparing.compare_candidates, a, b, plan, earlier, follow, store)
            result, verdict = options.until_stopped(follow, study)
        if verdict is not None:
            kept = "is kept: go on with --more" if store else "is not stored"
            typer.echo(f"stopped; what was measured {kept}", err=True)
        elif gate.limit is not None:
            verdict = _exit_code(result, gate.limit)
        output.deliver(f"{b.title} against {a.title}", [result.describe()], record(result), verdict=verdict)


def record(result: Comparison) -> dict[str, Any]:
    """A comparison as `--json` writes it."""
    return {
        "schema": 1,
        "simulated": bool(result.a.simulated),
        "band": result.pairing.band,
        "a": result.a.recipe,
        "b": result.b.recipe,
        "rounds": result.rounds,
        "incarnations": result.incarnations,
        "interleaved": result.pairing.interleaved,
        "noise": result.pairing.known_spread.sd,
        **msgspec.to_builtins(result.ratio),
    }


def _exit_code(result: Comparison, limit: float) -> int:
    """The exit code of a gate, after reporting why it is not passed."""
    gate = result.gate(limit)
    if gate == "passes":
        return 0
    if gate == "slower":
        complain(f"B is slower than A by more than {limit:.1%}")
        return 1
    answer = f"it is {result.ratio.low:.3f} to {result.ratio.high:.3f} times as fast as A"
    if result.rounds < stats.MIN_ROUNDS:
        answer += f", from {units.plural(result.rounds, 'round')}, but a verdict needs {stats.MIN_ROUNDS}"
    elif result.pairing.has_spoiled_turns:
        answer += ", but other programs disturbed the sides, which took turns"
    complain(f"Cannot tell whether B is more than {limit:.1%} slower: {answer}. Add rounds with --more")
    return 3
