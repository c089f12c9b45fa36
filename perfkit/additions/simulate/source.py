"""A simulated GPU as a source of runs, which computes them all from the plan of a step."""

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from msgspec import structs

from perfkit import lookup, workloads
from perfkit.additions.inside import MEMORY
from perfkit.additions.shared.looking import PROFILE
from perfkit.additions.simulate import article, chrome
from perfkit.additions.simulate import host as hosts
from perfkit.additions.simulate.costs import GPUS, Gpu, gpu
from perfkit.additions.simulate.prediction import Prediction
from perfkit.additions.simulate.step import Copy, StepEvents
from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import LADDER, Stage, StopRule
from perfkit.machine import cores
from perfkit.process.child import Child, call
from perfkit.recipe import Recipe
from perfkit.results import Pairing, Raw, Role, Run, RunStore
from perfkit.rules import Target
from perfkit.studies.record import begun, ended
from perfkit.studies.sources import Ladder, Plan, Progress, Request, Session, Source, Subject

_NOT_IN_THE_PLAN = ("workers", "prefetch_factor", "cpu_threads", "wait_policy", "allocator")
"""Switches that do not change the plan of a step."""
_FETCH = ("uint8_copy", "device_resize", "scaled_decode")  # switches that change the time to fetch a sample
_RECORDING = "perfkit.additions.simulate.recording"
"""The module that makes plans. It runs in separate processes, because it changes global settings of torch."""


class SimulatedSource(Source["SimulatedSession"]):
    """A GPU from its data sheet, with a virtual host."""

    refused: ClassVar[Mapping[str, str]] = lookup.toml(__package__, "refused")

    @classmethod
    def menu(cls) -> dict[str, str]:
        return {f"sim:{key}": f"simulated: {sheet.name}" for key, sheet in GPUS.items()}

    @classmethod
    def checked(cls, request: Request) -> Plan:
        """See `Source.checked`. The article's ladder at its sizes is the default."""
        name = str(request.device)
        gpu(name.partition(":")[2])
        workload = workloads.reference(request.workload or "cifar_resnet18")
        is_article = workload == article.WORKLOAD
        size, rule = catalogue.preset(request.preset or ("paper" if is_article else None), "cuda")
        ladder = article.LADDER if is_article else LADDER
        names = ladder if request.stages is None else tuple(request.stages)
        # A stage of the default ladder is kept even if it is too close to predict.
        keep = ladder if request.stages is None else ()
        if request.host:  # checks only the spelling: the workload is not yet loaded
            hosts.host(request.host, is_article=True, cores=1)
        subject = Subject(workload, size, name, request.options, host=request.host)
        also = {"amp": {"batch_size": size.largest_batch}} if is_article else {}
        return Plan(subject, Ladder(names, keep=keep, also=also), rule, cls)

    @contextlib.contextmanager
    def session(self, progress: Progress, store: RunStore | None) -> Iterator["SimulatedSession"]:
        subject = self.plan.subject
        progress.phase("loading")
        with Child(cancelled=progress.cancelled) as child:
            about = {"workload": subject.workload, "preset": subject.size.name, "code": subject.code}
            description = child.ask("describe", **about, device="cpu", options=dict(subject.options))
        yield SimulatedSession(replace(self, reported=description), progress, store)

    @property
    def is_articles(self) -> bool:
        is_its_size = self.description.options.get("image_size") == article.IMAGE_SIZE
        return is_its_size and self.plan.subject.workload == article.WORKLOAD

    @cached_property
    def sheet(self) -> Gpu:
        return gpu(self.plan.subject.device.partition(":")[2])

    @cached_property
    def host(self) -> hosts.Host:
        return hosts.host(self.plan.subject.host, self.is_articles, cores.usable_cores())

    @property
    def target(self) -> Target:
        """A CUDA device limited to what published figures support."""
        return Target(
            device="cuda",
            offers=frozenset(self.description.offers),
            convolves=self.description.convolves,
            bf16=self.sheet.architecture != "volta",
            cores=self.host.processors,
            refuses=lambda name, recipe: self.without_figures(recipe).get(name, ""),
        )

    def without_figures(self, recipe: Recipe) -> dict[str, str]:
        """The switches of a recipe that no published figures support, with the reasons."""
        refused = {}
        is_volta = self.sheet.architecture == "volta"
        if recipe.compile and recipe.compile_mode != "default":
            why = "no published figures show the gain of a compile_mode other than the default"
            refused["compile_mode"] = why
        # By default torch computes convolutions in TF32 if the GPU has it, from Ampere on.
        default = "tf32" if self.description.convolves and not is_volta else "float32"
        named = {"fp16": "float16", "bf16": "bfloat16", "default": default, "ieee": "float32", "tf32": "tf32"}
        switch = "fp32_precision" if recipe.amp == "off" else "amp"
        precision = named[getattr(recipe, switch)]
        unknown = {"bfloat16", "tf32"} if is_volta else set()  # the rules refuse these
        if precision not in {*self.sheet.anchored, *unknown}:
            refused[switch] = (
                f"this GPU is not simulated in {precision}: there is no published measurement to "
                f"check it against (precisions with one: {', '.join(sorted(self.sheet.anchored))})"
            )
        return refused


@dataclass(eq=False)
class SimulatedSession(Session):
    """Computed runs; the plans of steps, and the times to fetch a sample, are made once."""

    source: SimulatedSource

    def __post_init__(self) -> None:
        self._session = secrets.token_hex(4)
        self._host = self.source.host
        self._fetching = dict(article.ARTICLE.fetch_shares) if self.source.is_articles else {}
        """The time to fetch a sample, by the switches that are on: core seconds, or the article's shares."""
        self._steps: dict[Recipe, StepEvents] = {}
        self._computed: dict[str, tuple[Run, Prediction]] = {}

    def measure(self, stages: Sequence[Stage], rule: StopRule) -> list[Run]:
        """Computes the runs of some stages; the rule is not used."""
        runs = []
        for number, stage in enumerate(stages):
            self.progress.reach(number / len(stages), stage.title)
            runs.append(self._run(stage, stages[:number]))
        return runs

    def ask_training(self, recipe: Recipe, question: str, warm: bool = True, **arguments: Any) -> Any:
        """Answers from the plan of a step. A profile is a Chrome trace that is marked as simulated."""
        prediction = self.prediction(recipe)
        if question == MEMORY:
            return prediction.memory()
        if question != PROFILE:
            raise InvalidValue(f"no step of a simulated GPU runs, to answer {question}", "Use a real device")
        if arguments.get("stacks"):
            raise InvalidValue("a simulated step has no Python frames", "Leave out stacks")
        chrome.write(Path(arguments["path"]), prediction, prediction.outcome(noted=arguments["active"]))
        return arguments["path"]

    def prediction(self, recipe: Recipe) -> Prediction:
        """A step of a recipe, planned and predicted; `RunFailed` if it does not fit into the GPU's memory.

        An `InvalidValue` is raised if it cannot be planned, or no figures support the prediction.
        """
        if reasons := self.source.without_figures(recipe):
            raise InvalidValue("; ".join(reasons.values()), "Choose another setting, such as amp=fp16")
        on_device = recipe.replace(**{name: getattr(Recipe(), name) for name in _NOT_IN_THE_PLAN})
        if on_device not in self._steps:
            self.progress.phase("planning a step")
            self._steps[on_device] = self._planned(on_device)
        fetch_s = self._fetch_s(recipe)
        return Prediction(self.source.sheet, self._steps[on_device], recipe, self._host, fetch_s)

    def _planned(self, recipe: Recipe) -> StepEvents:
        step = self._called("planned", recipe)
        if isinstance(step, str):
            what = f"a step of '{self.source.plan.subject.workload}' cannot be simulated: {step}"
            raise InvalidValue(what, "Change that, or measure it on a real device")
        return step  # type: ignore[no-any-return]

    def _called(self, function: str, recipe: Recipe) -> Any:
        subject = self.source.plan.subject
        workloads.require_unchanged(subject.workload, subject.code)
        about = self.source.description.options, recipe.to_dict()
        return call(f"{_RECORDING}:{function}", subject.workload, *about, cancelled=self.progress.cancelled)

    def _fetch_s(self, recipe: Recipe) -> float:
        """The core time to fetch a sample, in s. The first call sets the host's time for the plain recipe."""
        if self._host == hosts.IDEAL:
            return 0.0
        switches = ",".join(name for name in _FETCH if getattr(recipe, name))
        for some in ("", switches):
            if some not in self._fetching:
                self.progress.phase("measuring the time to fetch a sample")
                plain = Recipe().replace(**{name: name in some.split(",") for name in _FETCH})
                self._fetching[some] = self._called("fetch_s", plain)
        plain_s = self._fetching[""]
        if self._host.fetch_ms is None:
            self._host = structs.replace(self._host, fetch_ms=1e3 * plain_s)
        return 1e-3 * (self._host.fetch_ms or 0.0) * (self._fetching[switches] / plain_s)

    def _run(self, stage: Stage, before: Sequence[Stage]) -> Run:
        known = self._computed.get(stage.name)
        if known and known[0].recipe == stage.recipe.to_dict():
            return known[0]
        run = begun(self._session, stage, self.source.plan, self.source.description)
        if stage.reason:
            return ended(run)
        try:
            prediction = self.prediction(stage.recipe)
        except Cancelled as person:
            self.stopped = person
            return ended(run, status="cancelled", reason="stopped on request")
        except PerfkitError as problem:
            return ended(run, status="failed", reason=str(problem))
        outcome, ideal = prediction.steady, prediction.outcome(hosts.IDEAL)
        samples = stage.recipe.batch_size * stage.recipe.accumulation
        copies = (event for event in prediction.step.events if isinstance(event, Copy))
        copied = sum(copy.nbytes for copy in copies if copy.to == "device") // samples
        rate = samples / outcome.step_s
        facts = {**run.facts, "host": prediction.host.describe()}
        if outcome.data_wait_s > 0.5 * outcome.step_s:
            facts["pace"] = "the loader decides it: the rate says little about the GPU"
        raw = Raw(
            step_s=[outcome.step_s],
            data_wait_s=[outcome.data_wait_s],
            block_steps=[1],
            block_samples_per_s=[rate],
            ceiling_samples_per_s=[samples / ideal.step_s],
        )
        run = ended(
            run,
            status="ok",
            reason="",
            facts=facts,
            raw=raw,
            samples_per_step=samples,
            pairings=self._pairings(rate, prediction, before),
            peak_memory_bytes=prediction.peak[0],
            batch_bytes_per_sample=copied,
            simulated=prediction.simulated(),
        )
        self._computed[stage.name] = run, prediction
        return run

    def _pairings(self, rate: float, prediction: Prediction, before: Sequence[Stage]) -> list[Pairing]:
        """The rate with those of the stage before and of the first one."""
        earlier = [self._computed[each.name] for each in before if each.name in self._computed]
        others: dict[Role, tuple[Run, Prediction]] = {}
        if earlier:
            others = {"previous": earlier[-1], "baseline": earlier[0]}
        pairings = list[Pairing]()
        for role, (other, their) in others.items():
            rates = other.raw.block_samples_per_s
            band = prediction.band_of_gain(their)
            pairings.append(Pairing([rate], rates, against=other.id, role=role, interleaved=True, band=band))
        return pairings
