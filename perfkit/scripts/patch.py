"""The edit of a user's script that sets switches, and the proof that it does what they do from outside."""

import ast
import difflib
import io
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe, Value, shown, switches
from perfkit.results import parity
from perfkit.results.parity import Check
from perfkit.results.stats import Ratio
from perfkit.scripts.messages import Frame, ScriptFacts, Site
from perfkit.scripts.patch_source import Edit, Refused, Source
from perfkit.scripts.study import ScriptSource, script_plan
from perfkit.scripts.watched import Launch
from perfkit.show.document import Content, Notice
from perfkit.studies.compare import Candidate, compare
from perfkit.studies.sources import Progress

Row = TypeVar("Row")

BUDGET_S = 30.0
PRECISION = 0.03
# Tables have a row for a switch, or for one of its values.
_FP32 = [f"torch.backends.{part}.fp32_precision" for part in ("cuda.matmul", "cudnn.conv", "cudnn.rnn")]
_WAYS = {
    "batch_size": ("loader", "batch_size={}"),
    "workers=0": ("loader", "num_workers=0 persistent_workers=False"),
    "workers": ("loader", "num_workers={} persistent_workers=True"),
    "prefetch_factor": ("loader", "prefetch_factor={}"),
    "pin_memory": ("loader", "pin_memory={}"),
    "non_blocking": ("copy", "non_blocking={}"),
    "zero_grad_set_to_none": ("zero_grad", "set_to_none={}"),
    "optimizer_impl=fused": ("optimizer", "fused=True"),
    "optimizer_impl=foreach": ("optimizer", "foreach=True"),
    "optimizer_impl=loop": ("optimizer", "foreach=False"),
    "compile=True": ("model", ".compile()"),
    "channels_last=True": ("model", ".to(memory_format=torch.channels_last)"),
    "amp=bf16": ("backward", 'with torch.autocast("{device}", dtype=torch.bfloat16)'),
    "cpu_threads": ("line", "torch.set_num_threads({})"),
    "cudnn_benchmark": ("line", "torch.backends.cudnn.benchmark = {}"),
    "fp32_precision": ("line", "\n".join(f'{name} = "{{0}}"' for name in _FP32)),
}
"""How a switch is written: arguments of a call, a call of the model before its optimizer is made (a
convolution takes over the layout of its weights), a context around model and loss, statements."""
_OWN = {
    "cpu_threads": "set_num_threads",
    "cudnn_benchmark": r"cudnn\.benchmark",
    "fp32_precision": "allow_tf32|set_float32_matmul_precision|fp32_precision",
    "amp": "autocast",
}
"""The name by which a script sets such a switch itself."""
_ORDERS = {"loader": ["dataset", "batch_size"], "zero_grad": ["set_to_none"]}
"""The arguments that are given by their position."""
_TRAINING_ARGUMENTS = {
    "batch_size": "per_device_train_batch_size={}",
    "workers": "dataloader_num_workers={}",
    "prefetch_factor": "dataloader_prefetch_factor={}",
    "pin_memory": "dataloader_pin_memory={}",
    "amp=bf16": "bf16=True",
    "optimizer_impl=fused": 'optim="adamw_torch_fused"',
    "compile=True": "torch_compile=True",
}
_LIBRARIES = {
    "transformers": (("TrainingArguments", "Seq2SeqTrainingArguments"), _TRAINING_ARGUMENTS),
    "trl": (("SFTConfig",), _TRAINING_ARGUMENTS),
    "accelerate": (("Accelerator",), {"amp=bf16": 'mixed_precision="bf16"'}),
    "lightning": (("Trainer",), {"amp=bf16": 'precision="bf16-mixed"'}),
}
"""For libraries that make the calls: where their options are given, and those of switches."""


@dataclass(frozen=True)
class Patch:
    """What to change so that a script has switches by itself.

    `launch`: how it is started for a measuring run with the edited files, which stay as they are. `refused`:
    switches that it has already or that need an edit by hand, and which.
    """

    launch: Launch
    edited: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """Where `patch -p1` applies the diff: the script's working directory, or the next folder above it."""
        return Path(os.path.commonpath([self.launch.where.resolve(), *(path for path, *_ in self.changes())]))

    def changes(self) -> list[tuple[Path, bytes, bytes]]:
        """The files that change, before and after."""
        files = [(path, path.read_bytes(), after) for path, after in self.launch.replaced]
        return [each for each in files if each[1] != each[2]]

    def diff(self) -> str:
        """A unified diff for `git apply` or `patch -p1` in `root`; empty without edits."""
        texts, root = list[str](), self.root
        for path, *sides in self.changes():
            name = path.relative_to(root).as_posix()
            # Lines end at line feeds only, so that carriage returns and form feeds are kept.
            before, after = ([*io.StringIO(data.decode(), newline="\n")] for data in sides)
            texts += difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        return "".join(
            text if text[-1] == "\n" else f"{text}\n\\ No newline at end of file\n" for text in texts
        )

    def notes(self) -> list[Content]:
        """What a reader must know beside the diff."""
        root = self.root
        is_elsewhere = root != self.launch.where.resolve()
        where = [f"Apply it with: patch -p1 -d {shlex.quote(str(root))}"] * is_elsewhere
        return [*where, *(Notice(f"{name} is not in the patch: {why}") for name, why in self.refused.items())]


def make(launch: Launch, settings: Mapping[str, Value], progress: Progress | None = None) -> Patch:
    """Runs a script for its first steps, and edits its files, in memory, at the calls that were seen."""
    with ScriptSource(script_plan(launch), progress or Progress(), launch) as source:
        facts = source.facts
    return edit(launch, settings, facts)


def edit(launch: Launch, settings: Mapping[str, Value], facts: ScriptFacts) -> Patch:
    """The edits of a script's files; they stay as they are."""
    main = _main_file(launch, facts)
    patcher, edited, refused = _Patcher(facts, str(main)), list[str](), dict[str, str]()
    for name in (name for name in switches() if name in settings):
        try:
            patcher.set(name, settings[name])
            edited.append(name)
        except Refused as reason:
            refused[name] = str(reason)
    files = {
        Path(source.path): after
        for source in patcher.sources.values()
        if (after := source.edited(patcher.edits)) != source.data
    }
    if files:
        if launch.script:  # its folder is where it imports from, so it must be there itself
            files.setdefault(main, main.read_bytes())
            launch = replace(launch, program=str(main))
        launch = replace(launch, replaced=tuple(sorted(files.items())))
    return Patch(launch, edited, refused)


def _main_file(launch: Launch, facts: ScriptFacts) -> Path:
    """The file that is started: of a module, the outermost one that was seen."""
    if launch.script:
        return launch.script.resolve()
    outermost = [site.frames[-1].file for site in facts.sites if site.frames]
    if not outermost:
        what = f"no call of '{launch.program}' itself was seen: it trains inside a library"
        raise InvalidValue(what, "Set that library's own options")
    return Path(outermost[0])


class _Patcher:
    """Plans the edits of a script, switch by switch, at the calls that were seen."""

    def __init__(self, facts: ScriptFacts, script: str) -> None:
        self._facts = facts
        self._sites = [site for site in facts.sites if site.frames]
        files = dict.fromkeys([script, *(frame.file for site in self._sites for frame in site.frames)])
        self.sources = {path: Source(path, Path(path).read_bytes()) for path in files}
        self.edits: list[Edit] = []
        self._main = self.sources[script]
        words = [
            arg.value
            for _, call in self._calls("add_argument")
            for arg in call.args
            if isinstance(arg, ast.Constant)
        ]
        options = [word for word in map(str, words) if word.startswith("--")]
        self._options = {option[2:].replace("-", "_"): option for option in options}

    def set(self, name: str, value: Value) -> None:
        """Plans the edits of a switch, all or none; `Refused` where it has to be done by hand."""
        way = self._way(name, value)
        role, code = way[0], way[1].format(value, device=self._facts.device)
        sites = [site for site in self._sites if site.role == ("optimizer" if role == "model" else role)]
        if role != "line" and not sites:
            raise Refused(f"no {role} was seen in the script's own code")
        if sites and sites[0].library:
            plan = self._of_library(sites[0], name, value)
        else:
            self._refuse_own(name, role, code)
            plan = self._plan(sites, role, code)
        for path in {edit.path for edit in plan if "torch." in edit.text}:
            if not self.sources[path].names_torch():
                plan.insert(0, self.sources[path].line_after_imports("import torch"))
        edits = list(dict.fromkeys([*self.edits, *plan]))
        for source in self.sources.values():
            source.edited(edits)
        self.edits = edits

    def _way(self, name: str, value: Value) -> tuple[str, str]:
        """How a switch is written, if an edit of the calls that were seen can set it."""
        if self._facts.settings.get(name) == value:
            raise Refused(f"the script has {name}={shown(value)} already")
        if reason := self._facts.refused.get(name):
            raise Refused(reason)
        if variables := Recipe().replace(**{name: value}).environment():
            pairs = " ".join(f"{variable}={code}" for variable, code in variables.items())
            raise Refused(f"start the script with {pairs} in its environment")
        if way := _row(_WAYS, name, value):
            return way
        raise Refused(f"the script's own code has to change: see `perfkit diff {name}`")

    def _plan(self, sites: Sequence[Site], role: str, code: str) -> list[Edit]:
        match role:
            case "line":
                return [self._main.line_after_imports(line) for line in code.splitlines()]
            case "model":
                return [self._on_model(site, code) for site in sites]
            case "backward":
                return [edit for site in sites for edit in self._around_loss(site, code)]
        calls, order = (self._call(site.frames[0]) for site in sites), _ORDERS.get(role, ())
        return [edit for source, call in calls for edit in source.arguments(call, code, order, self._options)]

    def _calls(self, *names: str) -> list[tuple[Source, ast.Call]]:
        return [(source, call) for source in self.sources.values() for call in source.calls(*names)]

    def _call(self, frame: Frame) -> tuple[Source, ast.Call]:
        source = self.sources[frame.file]
        return source, source.call_at(frame)

    def _of_library(self, site: Site, name: str, value: Value) -> list[Edit]:
        """The option of the library that makes a call."""
        makers, options = _LIBRARIES.get(site.library, ((), {}))
        option, calls = (_row(options, name, value) or "").format(value), self._calls(*makers)
        if not option or len(calls) != 1:
            source, call = self._call(site.frames[0])
            where = f"{source.where(call)}: {site.library} makes the {site.role}"
            raise Refused(f"{where}: set {option or 'it'} in its options")
        source, call = calls[0]
        return [*source.arguments(call, option, (), self._options)]

    def _refuse_own(self, name: str, role: str, code: str) -> None:
        """A script that sets a switch itself, or has an option for it, is left to do so."""
        if role in ("model", "line") and (option := self._options.get(name)):
            raise Refused(f"set it with the script's option {option}")
        for source in self.sources.values():
            for node in ast.walk(source.tree) if name in _OWN else ():
                is_name = isinstance(node, ast.Attribute | ast.Name)
                if is_name and re.search(f"({_OWN[name]})$", source.code(node)):
                    raise Refused(f"{source.where(node)}: make that `{code.replace(chr(10), '; ')}`")

    def _on_model(self, site: Site, suffix: str) -> Edit:
        """A statement on a model, before the optimizer that gets its parameters is made."""
        for frame in site.frames:
            source, call = self._call(frame)
            for inner in source.calls("parameters", "named_parameters", "configure_optimizers"):
                name = source.code(inner.func).rpartition(".")[0]
                is_model = name != "self" and re.fullmatch(r"(self\.)?\w+", name)
                if is_model and call in (inner, *source.around(inner)):
                    block, at = next(source.blocks(call))
                    return source.line_before(block[at], f"{name}{suffix}")
        raise Refused(f"{source.where(call)}: add `{suffix}` to the model before this optimizer is made")

    def _around_loss(self, site: Site, header: str) -> Iterator[Edit]:
        """A context around what computes a loss, in the innermost block with a call of a model before it."""
        for frame in site.frames:
            source, call = self._call(frame)
            for block, end in source.blocks(call):
                start = max((at for at in self._places("backward", block) if at < end), default=-1)
                models = [at for at in self._places("forward", block) if start < at <= end]
                if end in models:
                    raise Refused(f"{source.where(block[end])}: compute the loss before, in `{header}:`")
                if models:
                    header = header.replace(f'"{self._facts.device}"', self._device_in(source, block))
                    return source.wrap(block[min(models) : end], header)
        raise Refused(f"{source.where(call)}: put `{header}:` around the call of the model and its loss")

    def _device_in(self, source: Source, block: Sequence[ast.stmt]) -> str:
        """The type of the device as code: the script may choose another one elsewhere."""
        for call in source.calls("to"):
            name = source.code(call.args[0]) if call.args else ""
            if name.endswith("device") and any(block is other for other, _ in source.blocks(call)):
                return f"torch.device({name}).type"
        return f'"{self._facts.device}"'

    def _places(self, role: str, block: Sequence[ast.stmt]) -> list[int]:
        """The numbers of the statements of a block that contain a call of a role."""
        frames = [frame for site in self._sites if site.role == role for frame in site.frames]
        places = [place for source, call in map(self._call, frames) for place in source.blocks(call)]
        return [at for other, at in places if other is block]


def _row(table: Mapping[str, Row], name: str, value: Value) -> Row | None:
    return table.get(f"{name}={value}", table.get(name))


def verify(
    result: Patch,
    launch: Launch,
    settings: Mapping[str, Value],
    budget_s: float = BUDGET_S,
    progress: Progress | None = None,
) -> Check:
    """Measures the patched script against the script of `launch` with the switches set from outside.

    Both train the same: their losses are equal, and no difference in speed is measured. `budget_s`: seconds
    of rounds.
    """
    changes = {name: settings[name] for name in result.edited}
    outside, inside = Candidate("set from outside", changes=changes), Candidate("patched")
    plan = script_plan(launch, more={inside.title: result.launch})
    comparison = compare(
        outside, inside, plan, budget_s, PRECISION, pairs=1, ceiling=False, progress=progress
    )
    # From outside the model's call is compiled, in the patch the model: other kernels, other rounding.
    is_amp = changes.get("amp", "off") != "off"
    losses = parity.losses(comparison.b.losses, comparison.a.losses, "tolerance", is_amp)
    return verdict(comparison.ratio, comparison.rounds, losses)


_WIDE = 0.1
"""An interval whose half width is more than this part of the ratio says nothing of a patch's speed."""


def verdict(ratio: Ratio, rounds: int, losses: Check) -> Check:
    """Whether a patch does what its switches do from outside: `ratio` of samples/s, and the losses."""
    speed = f"{ratio.ratio:.3g} times ({ratio.low:.3g} to {ratio.high:.3g}, {rounds} rounds) as fast"
    ok = losses.ok and ratio.verdict not in ("faster", "slower")
    start = "verified" if ok else "NOT verified"
    if ok and (ratio.verdict != "no measurable difference" or ratio.half_width > _WIDE):
        why = (
            "other programs ran"
            if ratio.verdict == "disturbed"
            else "the rounds are too few for their scatter (raise --budget)"
        )
        start, speed = "trains the same", f"its speed is not known, as {why}: {speed}"
    text = f"losses {losses.evidence}; {speed} as with the switches set from outside"
    return Check("patch", ok, f"{start}: {text}")
