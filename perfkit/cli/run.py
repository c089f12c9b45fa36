"""`perfkit run`: measures a ladder."""

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from perfkit.cli import options
from perfkit.cli.show import show_session
from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import Budget
from perfkit.results import Run
from perfkit.show import sentences
from perfkit.studies.climb import climb
from perfkit.studies.sources import Plan, Update


@dataclass(frozen=True)
class LadderOptions:
    """The stages that are tried, those that are kept in any case, and the time that this may take."""

    stages: options.Stages = None
    keep: Annotated[str | None, typer.Option(help="stages to keep even if they are not faster: a,b")] = None
    keep_all: Annotated[bool, typer.Option("--keep-all", help="keep every stage, faster or not")] = False
    timeout: Annotated[float | None, typer.Option(help="seconds for one stage", min=1)] = None
    budget: Annotated[float | None, typer.Option(help="seconds for the whole ladder", min=1)] = None

    def plan(self, training: options.TrainingOptions) -> Plan:
        if self.keep and self.keep_all:
            raise InvalidValue("--keep-all keeps every stage, so --keep would do nothing", "Leave out one")
        plan = training.plan(options.names(self.stages))
        if (self.keep or self.keep_all) and (plan.recorded or len(plan.ladder.stages) < 2):
            decided = f"by {training.device}" if plan.recorded else "on one stage alone"
            what = f"nothing is decided {decided}, so there is nothing to keep"
            raise InvalidValue(what, "Leave out --keep and --keep-all")
        if (self.timeout or self.budget) and not plan.source().is_costly:
            what = f"nothing is measured on {training.device}, so there is no time to limit"
            raise InvalidValue(what, "Leave out --timeout and --budget")
        kept = plan.ladder.stages if self.keep_all else options.names(self.keep) or ()
        plan = replace(plan.keeping(kept), timeout_s=self.timeout)
        if self.budget is None:
            return plan
        default = plan.rule.budget
        if default is None:
            size = plan.subject.size.name
            what = f"{size} takes {plan.rule.rounds} rounds of each stage, however long that takes"
            raise InvalidValue(what, "Leave out --budget, or add --preset quick")
        stage_s = max(default.stage_s, self.budget / max(1, len(plan.ladder.stages)))
        budget = Budget(stage_s, ladder_s=self.budget, noisy_ladder_s=self.budget)
        return replace(plan, rule=replace(plan.rule, budget=budget))


def run(
    training: options.RecipeOptions,
    output: options.OutputOptions,
    ladder: LadderOptions,
    out: options.Out = None,
) -> None:
    """Climbs a ladder: each stage is measured on top of what was kept before, and kept if it is faster."""
    plan = ladder.plan(training)
    output.check_files(out)
    if out and plan.recorded:
        raise InvalidValue(f"'{plan.recorded}' is a recording already", "Copy its file, without -o")
    ended: list[Run] = []

    def show(now: Update) -> None:
        if now.run:
            ended.append(now.run)
            typer.echo(sentences.verdict(now.run), err=True)

    with options.stored() as store:
        try:
            with options.progress(show) as follow:
                runs = climb(plan, store, follow)
        except KeyboardInterrupt:
            if not ended:
                raise
            show_session(ended, output, out)
            raise KeyboardInterrupt("what was finished is kept (perfkit runs)") from None
        show_session(runs, output, out)
        if any(run.status == "failed" for run in runs):
            raise typer.Exit(1)
