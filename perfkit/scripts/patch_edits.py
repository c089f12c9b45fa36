"""The edits that set switches in the files of a script: which call, which argument, which statement."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from perfkit.recipe import Recipe, Value
from perfkit.scripts.patch_source import COMMAND_LINE, Edit, Refused, Source, argument
from perfkit.scripts.sites import Frame, Site

Row = TypeVar("Row")

# Tables have a row for a switch, or for one of its values.
_ARGUMENTS = {
    "batch_size": ("loader", "batch_size={}"),
    "workers": ("loader", "num_workers={}"),
    "prefetch_factor": ("loader", "prefetch_factor={}"),
    "pin_memory": ("loader", "pin_memory={}"),
    "non_blocking": ("copy", "non_blocking={}"),
    "zero_grad_set_to_none": ("zero_grad", "set_to_none={}"),
    "optimizer_impl=fused": ("optimizer", "fused=True"),
    "optimizer_impl=foreach": ("optimizer", "foreach=True"),
    "optimizer_impl=loop": ("optimizer", "foreach=False"),
}
"""The call whose argument it is, and the argument."""
_ORDERS = {"loader": ["dataset", "batch_size"], "zero_grad": ["set_to_none"]}
"""The arguments that are given by their position."""
_HUGGING_FACE = {
    "batch_size": "per_device_train_batch_size={}",
    "workers": "dataloader_num_workers={}",
    "prefetch_factor": "dataloader_prefetch_factor={}",
    "pin_memory": "dataloader_pin_memory={}",
    "amp=bf16": "bf16=True",
    "amp=fp16": "fp16=True",
    "fp32_precision=tf32": "tf32=True",
    "optimizer_impl=fused": 'optim="adamw_torch_fused"',
    "compile": "torch_compile={}",
}
"""The training argument of Hugging Face's libraries."""
_TRAINING_ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "HfArgumentParser")
_ON_MODELS = {"compile": ".compile()", "channels_last": ".to(memory_format=torch.channels_last)"}
"""Calls of a model before its optimizer is made; a convolution takes over the layout of its weights."""
_FP32 = [f"torch.backends.{part}.fp32_precision" for part in ("cuda.matmul", "cudnn.conv", "cudnn.rnn")]
_LINES = {
    "cpu_threads": ("set_num_threads", ["torch.set_num_threads({})"]),
    "cudnn_benchmark": (r"cudnn\.benchmark", ["torch.backends.cudnn.benchmark = {}"]),
    "fp32_precision": ("tf32|float32|fp32", [f'{name} = "{{}}"' for name in _FP32]),
}
"""Settings of the process: how a script that has its own may write it, and the statements."""
_PRECISION = {
    "accelerate": 'mixed_precision="bf16"',
    "lightning": 'precision="bf16-mixed"',
    "pytorch_lightning": 'precision="bf16-mixed"',
}
"""The option of a library that makes the backward pass."""


class Patcher:
    """Plans the edits of a script that trains on a device, switch by switch, at the calls that were seen."""

    def __init__(self, sites: Sequence[Site], script: str, device: str) -> None:
        self._device = device
        self._sites = [site for site in sites if site.frames]
        files = dict.fromkeys([script, *(frame.file for site in self._sites for frame in site.frames)])
        self.sources = {path: Source(path, Path(path).read_bytes()) for path in files}
        self.edits: list[Edit] = []
        self._main = self.sources[script]
        self._options = dict(_options(self.sources.values()))

    def set(self, name: str, value: Value) -> list[str]:
        """Plans the edits of a switch, all or none; returns them in words, nothing if the script has it."""
        edits = list(dict.fromkeys([*self.edits, *self._plan(name, value)]))
        for source in self.sources.values():
            source.edited(edits)
        new, self.edits = edits[len(self.edits) :], edits
        return [edit.words for edit in new if edit.words]

    def _plan(self, name: str, value: Value) -> Iterator[Edit]:
        if variables := Recipe().replace(**{name: value}).environment():
            pairs = " ".join(f"{variable}={code}" for variable, code in variables.items())
            raise Refused(f"start the script with {pairs} in its environment")
        role, setting = _row(_ARGUMENTS, name, value) or ("backward", "")
        libraries = {site.library for site in self._sites if site.role == role}
        option = _row(_HUGGING_FACE, name, value)
        if option and not libraries.isdisjoint({"transformers", "trl"}):
            yield from self._training_argument(*option.format(value).split("=", 1))
        elif setting:
            keyword, code = setting.format(value).split("=")
            for site in self._seen(role):
                yield from self._argument(*self._call(site.frames[0]), keyword, code, _ORDERS.get(role, ()))
        elif name in _LINES:
            yield from self._after_imports(name, value)
        elif name not in ("amp", "optimizer_impl", *_ON_MODELS):
            raise Refused(f"the script's own code has to change: see `perfkit diff {name}`")
        elif value in (False, "off", "default"):
            raise Refused("take it out of the script")
        elif value is True and name in self._options:
            yield _option(*self._options[name], str(value))
        elif name == "amp":
            yield from self._amp(value)
        else:
            yield from self._on_models(_ON_MODELS[name])

    def _seen(self, role: str) -> list[Site]:
        """The calls of a role in the script's own code."""
        sites = [site for site in self._sites if site.role == role]
        if not sites:
            raise Refused(f"no {role} was seen in the script's own code")
        if library := sites[0].library:
            source, call = self._call(sites[0].frames[0])
            option = _PRECISION.get(library, "it") if role == "backward" else "it"
            raise Refused(f"{source.where(call)}: {library} makes the {role}: set {option} in its options")
        return sites

    def _call(self, frame: Frame) -> tuple[Source, ast.Call]:
        source = self.sources[frame.file]
        return source, source.call_at(frame)

    # ------------------------------------------------------------ arguments and options

    def _training_argument(self, keyword: str, code: str) -> Iterator[Edit]:
        calls = [
            (source, call) for source in self.sources.values() for call in source.calls(*_TRAINING_ARGUMENTS)
        ]
        if len(calls) != 1:
            places = " and ".join(source.where(call) for source, call in calls) or "the script"
            raise Refused(f"{places}: set {keyword}={code} in the training arguments")
        source, call = calls[0]
        if source.calls("HfArgumentParser"):
            yield _option(f"--{keyword}", "", code)
        else:
            yield from self._argument(source, call, keyword, code)

    def _argument(
        self, source: Source, call: ast.Call, name: str, code: str, order: Sequence[str] = ()
    ) -> Iterator[Edit]:
        value = argument(call, name, order)
        if value is None:
            yield source.add_keyword(call, name, code)
        else:
            yield from self._changed(source, value, name, code)

    def _changed(self, source: Source, value: ast.expr, name: str, code: str) -> Iterator[Edit]:
        """Another value where it is set: a literal, a variable's only assignment, an option."""
        if source.code(value) == code:
            return
        match value:
            case ast.Constant():
                yield source.replace(value, name, code)
            case ast.Attribute(value=ast.Name(), attr=attribute) if attribute in self._options:
                yield _option(*self._options[attribute], code)
            case ast.Name(id=variable) if assigned := source.value_of(variable):
                yield from self._changed(source, assigned, name, code)
            case _:
                raise Refused(f"{source.where(value)}: {name} is {source.code(value)}; make that {code}")

    def _after_imports(self, name: str, value: Value) -> Iterator[Edit]:
        """Statements at the top of the main file, unless the script has such a setting itself."""
        pattern, templates = _LINES[name]
        lines = [template.format(value) for template in templates]
        for source in self.sources.values():
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Assign | ast.Expr) and re.search(pattern, source.code(node)):
                    raise Refused(f"{source.where(node)}: make that `{'; '.join(lines)}`")
        for line in lines:
            yield self._main.line_after_imports(line)

    # ------------------------------------------------------------ the model

    def _on_models(self, suffix: str) -> Iterator[Edit]:
        """A statement on each model, before the optimizer that gets its parameters is made."""
        for site in self._seen("optimizer"):
            source, call, model = self._model(site, suffix)
            block, at = next(source.blocks(call))
            yield source.line_before(block[at], f"{model}{suffix}")

    def _model(self, site: Site, suffix: str) -> tuple[Source, ast.Call, str]:
        """The call in whose arguments a model's parameters are, and the model's name there."""
        for frame in site.frames:
            source, call = self._call(frame)
            for inner in source.calls("parameters", "named_parameters", "configure_optimizers"):
                name = source.code(inner.func).rpartition(".")[0]
                is_model = name != "self" and re.fullmatch(r"(self\.)?\w+", name)
                if is_model and call in (inner, *source.around(inner)):
                    return source, call, name
        raise Refused(f"{source.where(call)}: add `{suffix}` to the model before this optimizer is made")

    def _amp(self, value: Value) -> Iterator[Edit]:
        if value != "bf16":
            raise Refused("only bf16 is set by lines around model and loss: see `perfkit diff amp_fp16`")
        header = f'with torch.autocast("{self._device}", dtype=torch.bfloat16)'
        for source, call in self._frames("forward"):
            for outer in source.around(call):
                if isinstance(outer, ast.With) and "autocast" in source.code(outer).partition("\n")[0]:
                    raise Refused(f"{source.where(outer)}: make that `{header}:`")
        for site in self._seen("backward"):
            source, statements = self._model_to_loss(site, header)
            yield from source.wrap(statements, header)

    def _frames(self, role: str) -> list[tuple[Source, ast.Call]]:
        """All calls under way in the user's files when one of a role was made."""
        return [self._call(frame) for site in self._sites if site.role == role for frame in site.frames]

    def _model_to_loss(self, site: Site, header: str) -> tuple[Source, list[ast.stmt]]:
        """The statements before a backward pass, in the innermost block that has a call of a model too."""
        for frame in site.frames:
            source, call = self._call(frame)
            for block, end in source.blocks(call):
                start = max((at for at in self._places("backward", block) if at < end), default=-1)
                models = [at for at in self._places("forward", block) if start < at <= end]
                if end in models:
                    raise Refused(f"{source.where(block[end])}: compute the loss before, in `{header}:`")
                if models:
                    return source, block[min(models) : end]
        raise Refused(f"{source.where(call)}: put `{header}:` around the call of the model and its loss")

    def _places(self, role: str, block: Sequence[ast.stmt]) -> list[int]:
        """The numbers of the statements of a block that contain a call of a role."""
        blocks = [place for source, call in self._frames(role) for place in source.blocks(call)]
        return [at for other, at in blocks if other is block]


def _row(table: Mapping[str, Row], name: str, value: Value) -> Row | None:
    return table.get(f"{name}={value}", table.get(name))


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
    text = name if action else f"{name} {ast.literal_eval(code)}"
    return Edit(COMMAND_LINE, 0, 0, text, f"command line: {text}")
