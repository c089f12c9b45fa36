"""A ladder on a virtual host: nothing is measured, every stage is computed from its plan, at once."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.ladder.stages import Stage
from perfkit.results.pairing import Role
from perfkit.results.run import Pairing, Run
from perfkit.results.store import RunStore
from perfkit.simulate import host as hosts
from perfkit.simulate.fetch import fetch_share
from perfkit.simulate.host import Outcome
from perfkit.simulate.prediction import Prediction
from perfkit.studies.record import RunBuilder, band_of_ratio
from perfkit.studies.setup import Setup


@dataclass(frozen=True)
class _Computed:
    """A stage, and what came out."""

    run: Run
    prediction: Prediction
    outcome: Outcome


def compute(
    stages: Iterable[Stage], setup: Setup, total: int, store: RunStore | None, failed: list[str]
) -> Iterator[Run]:
    """The runs of some stages on the plan's virtual host, in order; each is stored before it is yielded.

    A stage that cannot be simulated, or does not fit into the GPU's memory, does not stop the others.

    Args:
        stages: the first is the baseline of the others.
        setup: whose workload it is.
        total: stages, as far as is known.
        store: where runs are kept; None keeps none.
        failed: receives the names of stages without a result, before the next stage is drawn.
    """
    session, done = secrets.token_hex(4), list[_Computed]()
    for stage in stages:
        setup.progress.start(stage.title, total)
        builder = RunBuilder(session, stage, setup.plan, setup.description)
        if stage.reason:
            run = builder.unmeasured("not_applicable", stage.reason)
        else:
            try:
                done.append(_compute(stage, setup, builder, done))
                run = done[-1].run
            except PerfkitError as problem:
                run = builder.unmeasured("failed", str(problem))
        setup.progress.started()
        if run.status != "ok":
            failed.append(stage.name)
        if store:
            store.add(run)
        setup.progress.finish(run)
        yield run


def _compute(stage: Stage, setup: Setup, builder: RunBuilder, done: list[_Computed]) -> _Computed:
    prediction, host = setup.prediction(stage.recipe), setup.plan.host
    assert prediction
    assert host
    outcome = issue(prediction, setup)
    ceiling = hosts.run(prediction.planned.actions, stage.recipe, hosts.IDEAL, prediction.gpu.link_gbs)
    pairings = []
    rate = _rate(stage, outcome)
    for role, other in _roles(done):
        band = band_of_ratio(prediction, outcome.step_s, other.prediction, other.outcome.step_s)
        pairings.append(
            Pairing(
                [rate], other.run.raw.block_samples_per_s, against=other.run.id, role=role, interleaved=True,
                band=band, computed=True,
            )
        )  # fmt: skip
    return _Computed(builder.computed(prediction, outcome, ceiling, host, pairings), prediction, outcome)


def issue(prediction: Prediction, setup: Setup, noted: int = 0) -> Outcome:
    """A step's training on the plan's virtual host; what the queue did is kept of `noted` steps.

    Raises:
        InvalidValue: what fetching costs under this recipe is not known.
    """
    recipe, host = prediction.recipe, setup.plan.host
    assert host
    share = fetch_share(setup.description.reference, recipe)
    if share is None and host.fetch_s:
        raise InvalidValue(
            f"a virtual host does not know what fetching costs with {recipe.describe()}",
            "Leave --host out: this machine's own loader is then measured",
        )
    link = prediction.gpu.link_gbs
    return hosts.run(prediction.planned.actions, recipe, host, link, share or 1.0, noted)


def _roles(done: list[_Computed]) -> list[tuple[Role, _Computed]]:
    return [("previous", done[-1]), ("baseline", done[0])] if done else []


def _rate(stage: Stage, outcome: Outcome) -> float:
    return stage.recipe.batch_size * stage.recipe.accumulation / outcome.step_s
