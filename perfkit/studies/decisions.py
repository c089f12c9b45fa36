"""What was decided on the stages of a ladder by its user, and what later stages are built on."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from perfkit.ladder.catalogue import OPTIMIZATIONS, TOGETHER, sizing
from perfkit.process.failures import PACKAGE
from perfkit.recipe import Recipe, Value, allowed
from perfkit.results import Decision, Run, RunStore, StageDecision
from perfkit.rules import Target
from perfkit.studies.sources import Plan


def ladder_key(plan: Plan) -> str:
    """The key of a plan's ladder in the store: its subject, whatever the seed."""
    subject = plan.subject
    parts = [subject.workload, dict(subject.options), subject.size.name, subject.device, subject.host]
    return json.dumps(parts, sort_keys=True, default=repr)


def plan_key(plan: Plan) -> str:
    """The key of a plan in the store: a digest of its parts, of what stages set here, and of all code."""
    subject = plan.fixed().subject
    sizes = sizing(subject.size, Target(subject.kind))
    cards = {name: card.changes(sizes) for name, card in OPTIMIZATIONS.items()}
    parts = [asdict(part) for part in (subject, plan.ladder, plan.rule)]
    program = [(PACKAGE / name).read_text(encoding="utf-8") for name in ("train.py", "program.py")]
    content = [*parts, plan.recorded, cards, program]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=repr).encode()).hexdigest()


def decided(store: RunStore, plan: Plan) -> dict[str, StageDecision]:
    """The newest decision on each stage of a plan's ladder, by the stage's name."""
    return store.decisions(ladder_key(plan))


def decide(store: RunStore, plan: Plan, run: Run, before: Run | None, kept: bool) -> None:
    """Keeps or drops the stage of a run, with the switches that later stages start from.

    They are those of the run, or of the one `before` it; without that, of the plain loop.
    """
    below = before.recipe if before else {}
    recipe = run.recipe if kept else Recipe().to_dict() | below
    settings = {name: recipe[name] for name in OPTIMIZATIONS[run.stage].settings}
    store.decide(ladder_key(plan), run, Decision(kept, "user"), settings)


def settings(decisions: Mapping[str, StageDecision], names: Iterable[str]) -> dict[str, Value]:
    """The switches that the decisions on these stages leave: of several on a switch, the newest.

    What is kept of two of them together counts, too. A switch or value of an older version that is unknown
    now is left out.
    """
    chosen = set(names)
    switches: dict[str, Value] = {}
    for name, entry in decisions.items():  # the oldest first
        is_of_two = entry.decision.kept and name in TOGETHER and chosen.issuperset(TOGETHER[name])
        if name in chosen or is_of_two:
            switches |= allowed(entry.settings)
    return switches
