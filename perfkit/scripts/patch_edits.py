"""The edits that set switches in the files of a script: which call, which argument, which statement."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from perfkit.recipe import Recipe, Value
from perfkit.scripts.messages import ScriptFacts
from perfkit.scripts.patch_source import COMMAND_LINE, Edit, Refused, Source, argument
from perfkit.scripts.sites import Frame, Site

Row = TypeVar("Row")

# Tables have a row for a switch, or for one of its values.
_FP32 = [f"torch.backends.{part}.fp32_precision" for part in ("cuda.matmul", "cudnn.conv", "cudnn.rnn")]
_WAYS = {
    "batch_size": ("loader", "batch_size={}"),
    "workers": ("loader", "num_workers={}"),
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
"""How a switch is written: an argument of a call, a call of the model before its optimizer is made (a
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


class Patcher:
    """Plans the edits of a script, switch by switch, at the calls that were seen."""

    def __init__(self, facts: ScriptFacts, script: str) -> None:
        self._facts = facts
        self._sites = [site for site in facts.sites if site.frames]
        files = dict.fromkeys([script, *(frame.file for site in self._sites for frame in site.frames)])
        self.sources = {path: Source(path, Path(path).read_bytes()) for path in files}
        self.edits: list[Edit] = []
        self._main = self.sources[script]
        self._options = dict(_options(self.sources.values()))

    def set(self, name: str, value: Value) -> bool:
        """Plans the edits of a switch, all or none; whether there are any.

        Raises:
            Refused: the script has to be edited by hand, and where.
        """
        plan = [*self._plan(name, value)]
        for path in {edit.path for edit in plan if "torch." in edit.text}:
            if not self.sources[path].names_torch():
                plan.insert(0, self.sources[path].line_after_imports("import torch"))
        edits = list(dict.fromkeys([*self.edits, *plan]))
        for source in self.sources.values():
            source.edited(edits)
        is_edited, self.edits = len(edits) > len(self.edits), edits
        return is_edited

    def _plan(self, name: str, value: Value) -> Iterator[Edit]:
        if self._facts.settings.get(name) == value:
            return
        if reason := self._facts.refused.get(name):
            raise Refused(reason)
        if variables := Recipe().replace(**{name: value}).environment():
            pairs = " ".join(f"{variable}={code}" for variable, code in variables.items())
            raise Refused(f"start the script with {pairs} in its environment")
        way = _row(_WAYS, name, value)
        if not way:
            raise Refused(f"the script's own code has to change: see `perfkit diff {name}`")
        role, code = way[0], way[1].format(value, device=self._facts.device)
        if role in ("line", "model") and value is True and name in self._options:
            yield _option(*self._options[name], "True")
            return
        sites = self._seen("optimizer" if role == "model" else role) if role != "line" else []
        if sites and sites[0].library:
            yield from self._of_library(sites[0], name, value)
            return
        if name in _OWN:
            self._refuse_own(_OWN[name], code)
        for line in code.splitlines() * (role == "line"):
            yield self._main.line_after_imports(line)
        for site in sites:
            match role:
                case "model":
                    yield self._on_model(site, code)
                case "backward":
                    yield from self._around_loss(site, code)
                case _:
                    yield from self._argument(*self._call(site.frames[0]), code, _ORDERS.get(role, ()))

    def _seen(self, role: str) -> list[Site]:
        """The calls of a role in the script's own code."""
        if sites := [site for site in self._sites if site.role == role]:
            return sites
        raise Refused(f"no {role} was seen in the script's own code")

    def _call(self, frame: Frame) -> tuple[Source, ast.Call]:
        source = self.sources[frame.file]
        return source, source.call_at(frame)

    def _of_library(self, site: Site, name: str, value: Value) -> Iterator[Edit]:
        """The option of the library that makes a call."""
        makers, options = _LIBRARIES.get(site.library, ((), {}))
        calls = [(source, call) for source in self.sources.values() for call in source.calls(*makers)]
        option = _row(options, name, value)
        if option and len(calls) == 1:
            yield from self._argument(*calls[0], option.format(value))
            return
        source, call = self._call(site.frames[0])
        what = option.format(value) if option else "it"
        where = f"{source.where(call)}: {site.library} makes the {site.role}"
        raise Refused(f"{where}: set {what} in its options")

    def _argument(
        self, source: Source, call: ast.Call, setting: str, order: Sequence[str] = ()
    ) -> Iterator[Edit]:
        name, code = setting.split("=", 1)
        value = argument(call, name, order)
        if value is None:
            yield source.add_keyword(call, setting)
        else:
            yield from self._changed(source, value, name, code)
        if name == "num_workers":
            yield from _persistent(source, call, code != "0")

    def _changed(self, source: Source, value: ast.expr, name: str, code: str) -> Iterator[Edit]:
        """Another value where it is set: a literal, a variable's only assignment, an option."""
        match value:
            case _ if source.code(value) == code:
                return
            case ast.Constant():
                yield source.replace(value, code)
            case ast.Attribute(value=ast.Name(), attr=attribute) if attribute in self._options:
                yield _option(*self._options[attribute], code)
            case ast.Name(id=variable) if assigned := source.value_of(variable):
                yield from self._changed(source, assigned, name, code)
            case _:
                raise Refused(f"{source.where(value)}: {name} is {source.code(value)}; make that {code}")

    def _refuse_own(self, name: str, code: str) -> None:
        """A script that sets a switch itself is edited there."""
        for source in self.sources.values():
            for node in ast.walk(source.tree):
                is_name = isinstance(node, ast.Attribute | ast.Name)
                if is_name and re.search(f"({name})$", source.code(node)):
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
                    zeroed = self._places("zero_grad", block)
                    last = max(at for at in range(end) if at not in zeroed)
                    header = header.replace(f'"{self._facts.device}"', self._device_in(source, block))
                    return source.wrap(block[min(models) : last + 1], header)
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


def _persistent(source: Source, call: ast.Call, has_workers: bool) -> Iterator[Edit]:
    """Workers outlive an epoch, as they do when they are set from outside."""
    count, own = argument(call, "num_workers"), argument(call, "persistent_workers")
    if isinstance(own, ast.Constant):
        yield source.replace(own, str(has_workers))
    elif own is None and has_workers and all(keyword.arg for keyword in call.keywords):
        code = "True" if count is None or isinstance(count, ast.Constant) else f"{source.code(count)} > 0"
        yield source.add_keyword(call, f"persistent_workers={code}")


def _options(sources: Iterable[Source]) -> Iterator[tuple[str, tuple[str, str]]]:
    """The options that files define: attribute → name, and the action of one that takes no value."""
    for source in sources:
        for call in source.calls("add_argument"):
            names = [str(arg.value) for arg in call.args if isinstance(arg, ast.Constant)]
            action = argument(call, "action")
            for name in [name for name in names if name.startswith("--")][:1]:
                yield name[2:].replace("-", "_"), (name, ast.unparse(action).strip("'") if action else "")


def _option(name: str, action: str, code: str) -> Edit:
    """An option of the script's command line, where the last one counts."""
    if action and (action, code) != ("store_true", "True"):
        raise Refused(f"start the script with {name} so that it is {code}")
    return Edit(COMMAND_LINE, 0, 0, name if action else f"{name} {ast.literal_eval(code)}")
