"""A recording as a source of runs: the stored run of each stage, instead of a measurement."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property

from perfkit.errors import InvalidValue, one_of
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import NOT_STAGES
from perfkit.recipe import Recipe, allowed
from perfkit.results import AGAIN, Run, RunStore, recordings
from perfkit.rules import Target
from perfkit.studies.sources import Ladder, Plan, Progress, Request, Session, Source, Study, Subject
from perfkit.worker.messages import Description, DeviceFacts

_AS_IT_IS = "a recording has only the stages and switches that it was recorded with"


class RecordedSource(Source):
    """Shows the runs of a recording; nothing is measured, and nothing is stored."""

    @classmethod
    def menu(cls) -> dict[str, str]:
        return {f"{recordings.PREFIX}{name}": f"recorded: {name}" for name in recordings.available()}

    @classmethod
    def checked(cls, request: Request) -> Plan:
        name = (request.device or "").removeprefix(recordings.PREFIX)
        runs = recordings.find(name)
        first = runs[0]
        if request.host:
            raise InvalidValue(f"'{name}' was recorded on its own host", "Leave out --host")
        if request.workload or request.preset or request.options:
            options = ", ".join(f"{key}={value}" for key, value in first.options.items())
            what = f"the recording '{name}' is of {first.workload} ({options}), preset {first.preset or '–'}"
            remedy = "Leave out workload, preset and options to replay it, or choose a different device"
            raise InvalidValue(what, remedy)
        known = tuple(run.stage for run in runs if run.stage not in NOT_STAGES)
        stages = known if request.stages is None else tuple(request.stages)
        for stage in stages:
            if stage not in known:
                raise one_of(stage, known, f"stage of the recording '{name}'")
        size, rule = catalogue.PRESETS.get(first.preset, catalogue.PRESETS["quick"])
        size = replace(size, name=first.preset, batch_size=Recipe.from_dict(first.recipe).batch_size)
        subject = Subject(first.workload, size, first.device, first.options, first.seed)
        return Plan(subject, Ladder(stages), rule, cls, recorded=name)

    def session(self, progress: Progress, store: RunStore | None) -> AbstractContextManager[Session]:
        return nullcontext(Session(self, progress, store))

    @cached_property
    def description(self) -> Description:
        return Description(dict(self.plan.subject.options), [], DeviceFacts())

    @cached_property
    def _runs(self) -> list[Run]:
        return recordings.find(self.plan.recorded)

    @property
    def target(self) -> Target:
        last = [run for run in self.stored() if run.stage not in NOT_STAGES][-1]
        defaults = allowed(last.recipe)
        return Target(self.plan.subject.kind, defaults=defaults, refuses=lambda name, recipe: _AS_IT_IS)

    def require(self, study: str) -> None:
        """Refuses every study except the ladder, which is replayed."""
        if study != Study.LADDER:
            what = f"'{self.plan.recorded}' is a recording. It can be shown, but not measured"
            remedy = "perfkit run, perfkit show and the panels show it; for this, choose a different device"
            raise InvalidValue(what, remedy)

    def stored(self) -> list[Run]:
        """The runs that the plan asks for, in its order."""
        plan, runs = self.plan, self._runs
        if plan.ladder.settings or plan.ladder.changes or plan.ladder.recipes:
            raise InvalidValue(_AS_IT_IS, "Leave them as they are, or choose a different device")
        first = runs[0]
        stages = {run.stage: run for run in runs}
        for name in plan.ladder.stages:
            if name not in stages:
                raise one_of(name, list(stages), f"stage of the recording '{plan.recorded}'")
        rows = [stages[name] for name in plan.ladder.stages if name != first.stage]
        if plan.ladder.below:
            return [rows[0].previous(runs) or first, *rows] if rows else [first]
        if stages.keys() <= {first.stage, *plan.ladder.stages, *NOT_STAGES}:
            return runs  # the whole ladder, in its own order
        return [first, *rows, *(run for run in runs if run.stage == AGAIN)]
