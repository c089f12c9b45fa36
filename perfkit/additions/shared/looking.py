"""Code shared by the additions that look at the steps of one recipe, in a new process."""

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfkit import machine
from perfkit.recipe import Recipe
from perfkit.studies import planning, staging
from perfkit.studies.planning import Where
from perfkit.studies.sources import Plan, Progress, Session

LOOK = "a look at its steps"  # a study that a source may refuse
PROFILE = "perfkit.additions.shared.tracing:profile"  # a question to a training; see `Procedures.answer`
Chosen = Recipe | str | None  # a recipe; or a stage, on top of the default ladder below it; or the plain loop


def planned(workload: str | None, recipe: Chosen, where: Where, study: str = LOOK) -> Plan:
    """The plan of a look. Refuses a recipe that cannot act there, as far as the workload's class tells."""
    switches = recipe.to_dict() if isinstance(recipe, Recipe) else {}
    stage = recipe if isinstance(recipe, str) else "baseline"
    choices: dict[str, Any] = {**where, "settings": {**switches, **(where.get("settings") or {})}}
    plan = planning.plan(workload, stages=[stage], **choices).trying(below=True)
    source = plan.source()
    source.require(study)
    staging.acting(source)
    return plan


@contextlib.contextmanager
def prepared(
    workload: str | None, recipe: Chosen, where: Where, progress: Progress | None = None, study: str = LOOK
) -> Iterator[tuple[Session, Recipe]]:
    """A session that has loaded a workload, and a recipe that can act there; `study` as for `Plan.open`."""
    with planned(workload, recipe, where, study).open(progress, study) as session:
        yield session, staging.acting(session.source).recipe


def new_trace() -> Path:
    """The path for a new trace that stays, in the folder of the runs."""
    folder = machine.data_folder() / "runs" / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}.pt.trace.json.gz"


def profiled(session: Session, recipe: Recipe, steps: int, path: Path, stacks: bool = False) -> Path:
    """Profiles some steps of a recipe, after five that are skipped or discarded."""
    session.ask_training(recipe, PROFILE, path=str(path), wait=1, warmup=4, active=steps, stacks=stacks)
    return path
