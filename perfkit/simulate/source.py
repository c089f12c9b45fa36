"""A simulated GPU as a source of runs: nothing is measured, every stage is computed on a virtual host."""

import secrets
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from perfkit import workloads
from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.ladder import presets
from perfkit.ladder.catalogue import LADDER, optimization
from perfkit.ladder.stages import Stage
from perfkit.process.child import Child
from perfkit.recipe import Recipe
from perfkit.results.pairing import Pairing, Role
from perfkit.results.run import Raw, Run
from perfkit.rules import Target
from perfkit.simulate import article, bands, inside
from perfkit.simulate import host as hosts
from perfkit.simulate.fetch import fetch_share
from perfkit.simulate.gpus import Gpu, gpu_of
from perfkit.simulate.host import ARTICLE, Host, Outcome
from perfkit.simulate.prediction import Prediction, predict
from perfkit.studies.progress import Progress
from perfkit.studies.record import RunBuilder
from perfkit.studies.sources import Plan, ProfilerOptions, Source, StopRule
from perfkit.worker.messages import Description
from perfkit.worker.reports import KernelReport, MemoryReport, ProfileReport, SyncReport

Computed = tuple[Run, Prediction, Outcome]


class Simulated(Source):
    """Computes what a GPU and a host that are not here would do."""

    why_not = "nothing runs on a simulated GPU"
    refused = {
        "parity": "there are no numbers on a simulated device",
        "A/A noise": "two simulated runs of one recipe are equal",
        "attribution": "the model's errors of combined optimizations are not known",
        "tuning": "the winner of a prediction may be its largest error",
        "--fail-if-slower": "a prediction decides nothing",
    }
    noisy = False

    def __init__(self, plan: Plan, progress: Progress) -> None:
        super().__init__(plan, progress)
        self._predictions: dict[Recipe, Prediction] = {}
        self._computed: dict[str, Computed] = {}
        self._session = secrets.token_hex(4)

    @classmethod
    def checked(
        cls,
        device: str | None,
        workload: str | None,
        preset: str | None,
        stages: Sequence[str] | None,
        host: str | None,
        **more: Any,
    ) -> Plan:
        """See `Source.checked`."""
        where = str(device)
        if gpu_of(where) is None:
            raise InvalidValue(
                f"'{where}' is no simulated GPU", "Choose sim:v100, sim:rtx3090 or sim:rtx4090"
            )
        is_article = (hosts.host(host) or ARTICLE) == ARTICLE
        size = presets.PRESETS["paper"] if is_article and preset is None else presets.preset(preset, "cuda")
        names = tuple(stages) if stages is not None else article.LADDER if is_article else LADDER
        for name in names:
            optimization(name)
        chosen = workload or "cifar_resnet18"
        workloads.reference(chosen)
        return Plan(chosen, size, where, names, cls, host=host, **more)

    def __enter__(self) -> Self:
        plan, progress = self.plan, self.progress
        with Child(progress.phase, progress.cancelled) as child:
            self.description = child.ask(
                "describe",
                Description,
                workload=plan.workload,
                preset=plan.preset.name,
                options=dict(plan.options),
                device="cpu",
            )
        return self

    @cached_property
    def gpu(self) -> Gpu:
        """The data sheet."""
        gpu = gpu_of(self.plan.device)
        assert gpu
        return gpu

    @cached_property
    def host(self) -> Host:
        """The virtual host."""
        return hosts.host(self.plan.host) or ARTICLE

    @property
    def target(self) -> Target:
        """Where the stages run."""
        return Target(
            device="cuda",
            offers=frozenset(self.description.offers),
            convolves=self.description.convolves,
            bf16=self.gpu.architecture != "volta",
            anchored=frozenset(self.gpu.anchored),
        )

    # ------------------------------------------------------------ runs

    def measure(self, stages: Sequence[Stage], stop: StopRule) -> list[Run]:
        """See `Source.measure`; every stage is computed, and the rule to stop has no use."""
        runs: list[Run] = []
        done: list[Computed] = []
        for number, stage in enumerate(stages):
            self.progress.reach(number / len(stages), stage.title)
            builder = RunBuilder(self._session, stage, self.plan, self.description)
            known = self._computed.get(stage.name)
            if stage.reason:
                runs.append(builder.unmeasured("not_applicable", stage.reason))
                continue
            try:
                if known is None or known[0].recipe != stage.recipe.to_dict():
                    known = self._computed[stage.name] = self._compute(stage.recipe, builder, done)
                done.append(known)
                runs.append(known[0])
            except Cancelled as person:
                self.stopped = person
                runs.append(builder.unmeasured("cancelled", "stopped on request"))
            except PerfkitError as problem:
                runs.append(builder.unmeasured("failed", str(problem)))
        return runs

    def renew(self) -> None:
        """See `Source.renew`."""
        self._computed.clear()

    def _compute(self, recipe: Recipe, builder: RunBuilder, done: Sequence[Computed]) -> Computed:
        prediction, host = self._prediction(recipe), self.host
        outcome = self._issue(prediction)
        link = prediction.gpu.link_gbs
        ceiling = hosts.run(prediction.planned.actions, recipe, hosts.IDEAL, link)
        samples = recipe.batch_size * recipe.accumulation
        rate = samples / outcome.step_s
        roles: list[tuple[Role, Computed]] = [("previous", done[-1]), ("baseline", done[0])] if done else []
        pairings = [
            Pairing(
                [rate],
                run.raw.block_samples_per_s,
                against=run.id,
                role=role,
                interleaved=True,
                band=bands.of_ratio(
                    self.gpu,
                    (recipe, prediction.kernel_s / outcome.step_s),
                    (other.recipe, other.kernel_s / step.step_s),
                ),
                computed=True,
            )
            for role, (run, other, step) in roles
        ]
        planned, copied = prediction.planned, prediction.step.copied_bytes
        run = builder.build(
            {"host": host.describe()},
            raw=Raw(
                step_s=[outcome.step_s],
                data_wait_s=[outcome.data_wait_s],
                block_steps=[1],
                block_samples_per_s=[rate],
                ceiling_samples_per_s=[samples / ceiling.step_s],
            ),
            samples_per_step=samples,
            pairings=pairings,
            peak_memory_bytes=planned.peak_bytes,
            peak_reserved_bytes=planned.reserved_bytes,
            batch_bytes_per_sample=copied // samples,
            h2d_bytes_per_sample=copied // samples,
            simulated=prediction.simulated(host.name, outcome.step_s, outcome.copy_s),
        )
        return run, prediction, outcome

    def _prediction(self, recipe: Recipe) -> Prediction:
        if recipe not in self._predictions:
            self.progress.phase(f"planning a step for a {self.gpu.name}")
            described = self.description
            self._predictions[recipe] = predict(
                self.gpu, described.reference, described.options, recipe, self.progress.cancelled
            )
        return self._predictions[recipe]

    def _issue(self, prediction: Prediction, noted: int = 0) -> Outcome:
        """The training on the virtual host; what the queue did is kept of `noted` steps."""
        recipe, host = prediction.recipe, self.host
        share = fetch_share(self.description.reference, recipe)
        if share is None and host.fetch_s:
            raise InvalidValue(
                f"a virtual host does not know what fetching costs with {recipe.describe()}",
                "Name what a sample costs: --host fetch_ms=2",
            )
        link = prediction.gpu.link_gbs
        return hosts.run(prediction.planned.actions, recipe, host, link, share or 1.0, noted)

    # ------------------------------------------------------------ looking inside

    def profile(
        self, recipe: Recipe, path: Path, options: ProfilerOptions, batch_times: Path
    ) -> ProfileReport:
        """See `Source.profile`."""
        prediction = self._prediction(recipe)
        outcome = self._issue(prediction, options.active)
        inside.write_trace(path, prediction, outcome.bars, self.host.describe(), outcome.step_s)
        return ProfileReport(outcome.step_s, [], [], [])

    def memory(self, recipe: Recipe) -> MemoryReport:
        """See `Source.memory`."""
        return inside.memory(self._prediction(recipe))

    def kernels(self, recipe: Recipe) -> KernelReport:
        """See `Source.kernels`."""
        prediction = self._prediction(recipe)
        return inside.kernels(prediction, self._issue(prediction).step_s)

    def syncs(self, recipe: Recipe, steps: int) -> SyncReport:
        """See `Source.syncs`."""
        return inside.syncs(self._prediction(recipe), steps)
