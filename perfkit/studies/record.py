"""The `Run` of a side, with remarks about the quality of its data."""

import datetime
import itertools
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import structs, to_builtins

from perfkit import machine
from perfkit.ladder.catalogue import Stage
from perfkit.machine import cores
from perfkit.results import AGAIN, Pairing, Raw, Role, Run, with_rate_of
from perfkit.studies.sides import MeasuredSides, Side
from perfkit.studies.sources import Plan
from perfkit.worker.messages import Description, TimedSteps, TrainingReport


def begun(session_id: str, stage: Stage, plan: Plan, description: Description) -> Run:
    """The run of a stage, before anything is measured."""
    now = datetime.datetime.now(datetime.UTC)
    device = {name: str(value) for name, value in to_builtins(description.facts).items()}
    return Run(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        session=session_id,
        created=now.isoformat(timespec="seconds"),
        stage=stage.name,
        title=stage.title,
        workload=plan.subject.workload,
        code=plan.subject.code,
        options=description.options,
        preset=plan.subject.size.name,
        device=plan.subject.device,
        seed=plan.subject.seed,
        recipe=stage.recipe.to_dict(),
        status="not_applicable" if stage.reason else "ok",
        reason=stage.reason,
        machine={**machine.facts(), "device": device, "conditions": {"before": cores.read_conditions()}},
        not_applied=dict(stage.not_applied),
    )


def reported(run: Run, trained: TrainingReport) -> Run:
    """A run with what its training reported once it was warm."""
    return structs.replace(
        run,
        recipe=trained.recipe,
        samples_per_step=trained.samples_per_step,
        losses=trained.losses,
        startup_s=trained.startup_s if trained.startup_s >= 0 else None,  # a clock was set back
        batch_bytes_per_sample=trained.batch_bytes_per_sample,
        mechanism=trained.mechanisms,
        facts={**run.facts, **trained.facts},
    )


def ended(run: Run, **fields: Any) -> Run:
    """A run with its outcome, and with the present conditions of the machine."""
    conditions = {**run.machine["conditions"], "after": cores.read_conditions()}
    return structs.replace(run, machine={**run.machine, "conditions": conditions}, **fields)


class Record:
    """The runs of one measurement: begun with it, and complete when it has ended."""

    def __init__(self, session: str, plan: Plan, description: Description, measured: MeasuredSides) -> None:
        self._measured = measured
        self._precision = plan.rule.precision
        self._begun = {side: begun(session, side.stage, plan, description) for side in measured.sides}

    def runs(self) -> list[Run]:
        """A run for each side, in their order; the rate of all but the first is by its ratio to that."""
        first, *others = [self._run(side) for side in self._measured.sides]
        return [first, *(with_rate_of(run, first) for run in others)]

    def _run(self, side: Side) -> Run:
        run = self._begun[side]
        if side.stage.reason:
            return ended(run)
        if side.failure:
            return ended(run, status="failed", reason=str(side.failure))
        if not self._measured.round_count_of(side):
            return ended(run, status="cancelled", reason="stopped before its first round")
        return self._completed(side)

    def _completed(self, side: Side) -> Run:
        first = self._measured.reports(side)[0]
        run = reported(self._begun[side], first)
        raw = _raw(side, self._measured)
        facts = dict(run.facts)
        compile_s = None
        if first.compile_counters.graphs:
            facts["compile cache"] = "warm" if first.compile_counters.cache_hits else "cold"
            step_s = float(np.median(raw.step_s[raw.warmup_steps :]))
            compile_s = max(0.0, raw.step_s[0] - step_s)
        run = ended(
            run,
            facts=facts,
            raw=raw,
            pairings=list(self._pairings(side)),
            compile_s=compile_s,
            peak_memory_bytes=side.peak.allocated if side.peak else None,
            peak_reserved_bytes=side.peak.reserved if side.peak else None,
        )
        remarks = dict.fromkeys(_remarks(run, side, self._measured))
        busiest = None if run.disturbed is None else self._measured.busiest
        return structs.replace(run, warnings=list(remarks), busiest=busiest)

    def _pairings(self, side: Side) -> Iterator[Pairing]:
        """The rounds of a side with those of the first one, on which all others are built."""
        first = self._measured.sides[0]
        common = self._measured.with_first(side)
        if side is first or not (first.is_open and common.own_samples_per_s):
            return
        roles: list[Role] = ["baseline"] if side.stage.name == AGAIN else ["previous", "baseline"]
        for role in roles:
            yield Pairing(
                **structs.asdict(common), against=self._begun[first].id, role=role, precision=self._precision
            )


def _raw(side: Side, measured: MeasuredSides) -> Raw:
    warm, *further = (report.warmup for report in measured.reports(side))
    parts = measured.common_rounds(side, side)
    rounds = list(itertools.chain.from_iterable(parts))
    slices = [round_.slices[side] for round_ in rounds]
    total = sum(slices, start=TimedSteps(0, 0.0))
    utilization = [round_.utilization[side] for round_ in rounds]
    return Raw(
        step_s=[*warm.step_s, *total.step_s],
        data_wait_s=[*warm.data_wait_s, *total.data_wait_s],
        device_step_s=total.device_step_s,
        warmup_steps=len(warm.step_s),
        further_warmup_s=[warmup.step_s for warmup in further],
        block_samples_per_s=[steps.samples_per_s for steps in slices],
        block_steps=[len(steps.step_s) for steps in slices],
        disturbed=[round_.others_share[side] for round_ in rounds],
        incarnations=[len(part) for part in parts],
        ceiling_samples_per_s=[steps.samples_per_s for steps in side.on_cached_batch],
        gpu_utilization_nvml=list(itertools.chain.from_iterable(utilization)),
    )


def _remarks(run: Run, side: Side, measured: MeasuredSides) -> Iterator[str]:
    """What makes these numbers doubtful, each with what to do."""
    pairing = run.pairing("previous") or run.pairing("baseline")
    yield from side.remarks
    ratios = pairing.clean_and_disturbed if pairing else None
    if ratios:
        clean, disturbed = (f"{ratio.ratio:.2f}× ({ratio.low:.2f}–{ratio.high:.2f})" for ratio in ratios)
        yield f"undisturbed and disturbed rounds disagree: {clean} and {disturbed}"
    if measured.in_turns and len(measured.sides) > 1:
        yield "the sides took turns, because they do not fit into memory together, so this takes longer"
    if run.is_slower_on_cached_batch:
        yield "it was slower on a cached batch, so the machine was not steady: run it again"
    if side.peak and side.peak.recompiles:
        yield "the model was recompiled while it was measured: keep its input shapes the same"
    for conditions in run.machine["conditions"].values():
        yield from cores.quality_warnings(conditions, run.machine["device"].get("uuid"))
