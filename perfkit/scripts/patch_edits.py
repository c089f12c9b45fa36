"""The edits that set switches in the files of a script: which call, which argument, which statement."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from perfkit.recipe import Recipe, Value
from perfkit.scripts.patch_source import Edit, Refused, Source, argument
from perfkit.scripts.sites import Frame, Site

_ROLES = dict.fromkeys(("batch_size", "workers", "prefetch_factor", "pin_memory"), "loader") | {
    "non_blocking": "copy",
    "zero_grad_set_to_none": "zero_grad",
    "channels_last": "forward",
    "amp": "backward",
    "optimizer_impl": "optimizer",
    "compile": "forward",
    "compile_mode": "forward",
    "fp32_precision": "backward",
    "cudnn_benchmark": "backward",
    "cpu_threads": "",
}
"""Switch → the call that it is about; a library that makes this call has its own option for the switch."""
_OPTIONS = {
    "": {"channels_last=True": "--channels-last", "compile=True": "--compile"},
    "timm": {
        "workers": "--workers {}",
        "batch_size": "--batch-size {}",
        "amp=bf16": "--amp --amp-dtype bfloat16",
        "amp=fp16": "--amp --amp-dtype float16",
        "compile=True": "--torchcompile inductor",
    },
    "transformers": {
        "batch_size": "per_device_train_batch_size={}",
        "workers": "dataloader_num_workers={}",
        "prefetch_factor": "dataloader_prefetch_factor={}",
        "pin_memory": "dataloader_pin_memory={}",
        "amp=bf16": "bf16=True",
        "amp=fp16": "fp16=True",
        "fp32_precision=tf32": "tf32=True",
        "optimizer_impl=fused": 'optim="adamw_torch_fused"',
        "compile": "torch_compile={}",
        "compile_mode": 'torch_compile_mode="{}"',
    },
    "lightning": {
        "amp=bf16": 'precision="bf16-mixed"',
        "amp=fp16": 'precision="16-mixed"',
        "amp=off": 'precision="32-true"',
        "cudnn_benchmark": "benchmark={}",
    },
    "skorch": {
        "workers": "iterator_train__num_workers={}",
        "pin_memory": "iterator_train__pin_memory={}",
        "batch_size": "batch_size={}",
    },
    "accelerate": {"amp": 'mixed_precision="{}"', "amp=off": 'mixed_precision="no"'},
}
"""By library: switch, or switch=value → the argument of its constructor, or a script's own options for it."""
_CONSTRUCTORS = {
    "transformers": ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "HfArgumentParser"),
    "lightning": ("Trainer", "Fabric"),
    "skorch": ("NeuralNet", "NeuralNetClassifier", "NeuralNetRegressor"),
    "accelerate": ("Accelerator",),
}
_SAME_OPTIONS = {"trl": "transformers", "pytorch_lightning": "lightning"}
_LOADER_ORDER = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
)
_WITH_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context")
_FLAGS = ("compile", "channels_last")
_IMPLEMENTATIONS = {"fused": ("fused", "True"), "foreach": ("foreach", "True"), "loop": ("foreach", "False")}
_FP32 = [f"torch.backends.{part}.fp32_precision" for part in ("cuda.matmul", "cudnn.conv", "cudnn.rnn")]
_LINES = {
    "cpu_threads": ("set_num_threads", ["torch.set_num_threads({})"]),
    "cudnn_benchmark": (r"cudnn\.benchmark", ["torch.backends.cudnn.benchmark = {}"]),
    "fp32_precision": ("tf32|float32|fp32", [f'{name} = "{{}}"' for name in _FP32]),
}
"""Settings of the process: how a script that has its own may write it, and the statements."""


class Patcher:
    """Plans the edits of a script that trains on a device, switch by switch, at the calls that were seen."""

    def __init__(
        self,
        settings: Mapping[str, Value],
        sites: Sequence[Site],
        script: str,
        arguments: Sequence[str],
        device: str,
    ) -> None:
        self._settings, self._device = settings, device
        self._sites = [site for site in sites if site.frames]
        files = dict.fromkeys([script, *(frame.file for site in self._sites for frame in site.frames)])
        self.sources = {path: Source(path, Path(path).read_bytes()) for path in files}
        self.arguments = [*arguments]
        self.edits: list[Edit] = []
        self._main = self.sources[script]
        self._options = dict(_options(self.sources.values()))
        self._words: list[str] = []

    def set(self, name: str, value: Value) -> list[str]:
        """Plans the edits of a switch; returns them in words, nothing if the script has it already.

        Raises:
            Refused: the edit is left to the user; nothing of it is planned.
        """
        edits, arguments, self._words = [*self.edits], self.arguments, []
        try:
            self._plan(name, value)
            for source in self.sources.values():
                source.edited(self.edits)
        except Refused:
            self.edits, self.arguments = edits, arguments
            raise
        return self._words

    def _plan(self, name: str, value: Value) -> None:
        if variables := Recipe().replace(**{name: value}).environment():
            pairs = " ".join(f"{variable}={code}" for variable, code in variables.items())
            raise Refused(f"start the script with {pairs} in its environment")
        if name not in _ROLES:
            raise Refused(f"the script's own code has to change: see `perfkit diff {name}`")
        for site in (Site("", []), *self._sites):
            library = _SAME_OPTIONS.get(site.library, site.library)
            rows = _OPTIONS.get(library, {})
            row = rows.get(f"{name}={value}", rows.get(name, "")).format(value)
            if row.startswith("--"):
                if self._by_own_options(row):
                    return
            elif row and site.role == _ROLES[name]:
                self._configure(library, *row.split("=", 1))
                return
        flag = self._main.value_of(name) if name in _FLAGS else None
        if isinstance(flag, ast.Constant):
            self._change(self._main, flag, name, str(value))
        elif name in _LINES:
            self._after_imports(name, value)
        elif _ROLES[name] == "loader":
            self._loader(name, value)
        else:
            getattr(self, f"_{name}")(value)

    def _calls(self, role: str) -> list[tuple[Source, ast.Call, Site]]:
        """The calls of a role in the script's own code."""
        sites = [site for site in self._sites if site.role == role]
        if not sites or sites[0].library:
            reason = f"{sites[0].library} makes the call" if sites else "no such call was seen"
            raise Refused(f"no {role} in the script's own code: {reason}")
        return [(*self._call(site.frames[0]), site) for site in sites]

    def _call(self, frame: Frame) -> tuple[Source, ast.Call]:
        source = self.sources[frame.file]
        return source, source.call_at(frame)

    def _add(self, source: Source, node: ast.AST, words: str, *edits: Edit) -> None:
        if "torch." in words:
            source.last_import()
        new = [edit for edit in edits if edit not in self.edits]
        if new:
            self.edits += new
            self._words.append(f"{source.where(node)}: {words}")

    # ------------------------------------------------------------ arguments and options

    def _by_own_options(self, row: str) -> bool:
        """Plans options of the script's command line, if it has all of them."""
        known = {name: option for option in self._options.values() for name in option.names}
        pairs = re.findall(r"(--\S+)(?: ([^-]\S*))?", row)
        if any(name not in known for name, _ in pairs):
            return False
        for name, code in pairs:
            self._set_option(known[name], code or "True")
        return True

    def _set_option(self, option: "Option", code: str) -> None:
        arguments = option.set_in(self.arguments, code)
        if arguments != self.arguments:
            self.arguments = arguments
            self._words.append(f"command line: {option.name}{'' if option.action else f' {code}'}")

    def _configure(self, library: str, name: str, code: str) -> None:
        """Plans an argument of the call that configures a library."""
        names = _CONSTRUCTORS[library]
        calls = [(source, call) for source in self.sources.values() for call in source.calls(*names)]
        if len(calls) != 1:
            places = " and ".join(source.where(call) for source, call in calls) or "the script"
            raise Refused(f"{places}: set {name}={code} where {library} is configured")
        source, call = calls[0]
        if source.calls("HfArgumentParser"):
            self._set_option(Option([f"--{name}"], ""), code.strip('"'))
        else:
            self._set_argument(source, call, name, code)

    def _set_argument(
        self, source: Source, call: ast.Call, name: str, code: str, order: Sequence[str] = ()
    ) -> None:
        value = argument(call, name, order)
        if value is None:
            self._add(source, call, f"{name}={code}", source.add_keyword(call, name, code))
        else:
            self._change(source, value, name, code)

    def _change(self, source: Source, value: ast.expr, name: str, code: str) -> None:
        """Plans another value where it is set: a literal, a variable's only assignment, an option."""
        if ast.unparse(value) == ast.unparse(ast.parse(code, mode="eval")):
            return
        match value:
            case ast.Constant() | ast.Attribute(value=ast.Name(id="torch")):
                self._add(source, value, f"{name}={code}", source.replace(value, code))
            case ast.Call(func=ast.Name(id="int"), args=[inner]):
                self._change(source, inner, name, code)
            case ast.Attribute(value=ast.Name(), attr=attribute) if attribute in self._options:
                self._set_option(self._options[attribute], code.strip('"'))
            case ast.Name(id=variable) if assigned := source.value_of(variable):
                self._change(source, assigned, name, code)
            case _:
                raise Refused(f"{source.where(value)}: {name} is {source.code(value)}; make that {code}")

    def _loader(self, name: str, value: Value) -> None:
        """Plans an argument of the call that makes the loader, or of one that hands `**kwargs` on to it."""
        site = next((site for site in self._sites if site.role == "loader" and site.library), None)
        keyword, order = "num_workers" if name == "workers" else name, () if site else _LOADER_ORDER
        source, call = self._call(site.frames[0]) if site else self._calls("loader")[0][:2]
        where = source.where(call)
        if name == "prefetch_factor" and not (
            self._settings.get("workers") or argument(call, "num_workers", order)
        ):
            raise Refused(f"{where}: set workers too, without which it is an error")
        if site and argument(call, keyword) is None:
            raise Refused(f"{where}: set {keyword}={value} where {site.library} makes the loader")
        for partner in _WITH_WORKERS if name == "workers" and not value else ():
            if isinstance(argument(call, partner), ast.Constant):
                raise Refused(f"{where}: make num_workers=0, and take out {partner}")
        if argument(call, keyword, order) is None and any(part.arg is None for part in call.keywords):
            for frame in self._calls("loader")[0][2].frames[1:2]:
                outer, handing_on = self._call(frame)
                if argument(handing_on, keyword):
                    source, call, order = outer, handing_on, ()
        self._set_argument(source, call, keyword, repr(value), order)

    def _non_blocking(self, value: Value) -> None:
        for source, call, _ in self._calls("copy"):
            self._set_argument(source, call, "non_blocking", str(value))

    def _zero_grad_set_to_none(self, value: Value) -> None:
        for source, call, _ in self._calls("zero_grad"):
            self._set_argument(source, call, "set_to_none", str(value), ("set_to_none",))

    def _optimizer_impl(self, value: Value) -> None:
        if value == "default":
            raise Refused("take `fused` and `foreach` out of the call that makes the optimizer")
        keyword, code = _IMPLEMENTATIONS[str(value)]
        for source, call, _ in self._calls("optimizer"):
            self._set_argument(source, call, keyword, code)
            if other := argument(call, "foreach" if keyword == "fused" else "fused"):
                self._change(source, other, "the other implementation", "None")

    def _after_imports(self, name: str, value: Value) -> None:
        """Plans statements at the top of the main file, unless the script has such a setting itself."""
        pattern, templates = _LINES[name]
        lines = [template.format(value) for template in templates]
        for source in self.sources.values():
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Assign | ast.Expr) and re.search(pattern, source.code(node)):
                    raise Refused(f"{source.where(node)}: make that `{'; '.join(lines)}`")
        last = self._main.last_import()
        for line in lines:
            self._add(self._main, last, line, self._main.line_after(last, line))

    # ------------------------------------------------------------ the model

    def _compile(self, value: Value) -> None:
        if not value:
            raise Refused("remove the call of compile")
        mode = self._settings.get("compile_mode", "default")
        self._on_models(".compile()" if mode == "default" else f'.compile(mode="{mode}")')

    def _compile_mode(self, value: Value) -> None:
        if not self._settings.get("compile"):
            raise Refused(f'give mode="{value}" to the call of compile')

    def _channels_last(self, value: Value) -> None:
        suffix = ".to(memory_format=torch.channels_last)"
        if not value:
            raise Refused(f"remove {suffix} of the model and of its inputs")
        self._on_models(suffix)
        for source, call, site in self._calls("forward"):
            for name in site.images:
                image = argument(call, name, [*map(str, range(len(call.args)))])
                if image is None:
                    raise Refused(f"{source.where(call)}: add {suffix} to the images that the model gets")
                self._add(source, call, f"{source.code(image)}{suffix}", source.append(image, suffix))

    def _on_models(self, suffix: str) -> None:
        """Plans a statement on each model, before the optimizer that gets its parameters is made."""
        for _, _, site in self._calls("optimizer"):
            source, call, model = self._model(site, suffix)
            block, at = next(source.blocks(call))
            line = f"{model}{suffix}"
            self._add(source, block[at], line, source.line_before(block[at], line))

    def _model(self, site: Site, suffix: str) -> tuple[Source, ast.Call, str]:
        """The call in whose arguments a model's parameters are, and the model's name there."""
        called = {ast.unparse(call.func) for _, call, _ in self._calls("forward")}
        for frame in site.frames:
            source, call = self._call(frame)
            for inner in source.calls("parameters", "named_parameters", "configure_optimizers"):
                name = source.code(inner.func).rpartition(".")[0]
                is_model = re.fullmatch(r"(self\.)?\w+", name) and (name != "self" or name in called)
                if is_model and call in (inner, *source.around(inner)):
                    return source, call, name
        raise Refused(f"{source.where(call)}: add `{suffix}` to the model before this optimizer is made")

    def _amp(self, value: Value) -> None:
        if value != "bf16":
            scaling = "fp16 needs a gradient scaler in the loop: use bf16, or see `perfkit diff amp_fp16`"
            raise Refused("leave out the script's autocast" if value == "off" else scaling)
        header = f'with torch.autocast("{self._device}", dtype=torch.bfloat16)'
        for source, call in self._frames("forward"):
            for outer in source.around(call):
                if isinstance(outer, ast.With) and "autocast" in source.code(outer).partition("\n")[0]:
                    raise Refused(f"{source.where(outer)}: make that `{header}:`")
        for _, _, site in self._calls("backward"):
            source, statements = self._model_to_loss(site, header)
            self._add(source, statements[0], header, *source.wrap(statements, header))

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


class Option(NamedTuple):
    """An option that `add_argument` defines: its names, and its action if it takes no value."""

    names: Sequence[str]
    action: str

    @property
    def name(self) -> str:
        return max(self.names, key=len)

    def set_in(self, arguments: Sequence[str], code: str) -> list[str]:
        """A command line with the option: changed where it is, else added."""
        words = [*arguments]
        if self.action in ("store_true", "store_false"):
            words = [word for word in words if word not in self.names]
            return words + [self.name] * ((code == "True") == (self.action == "store_true"))
        if self.action:
            raise Refused(f"start the script with {self.name} so that it is {code}")
        for at, word in enumerate(words):
            if word in self.names:
                return [*words[: at + 1], code, *words[at + 2 :]]
        return [*words, self.name, code]  # of several, the last one counts


def _options(sources: Iterable[Source]) -> Iterator[tuple[str, Option]]:
    """The options that files define, each with the attribute that holds its value."""
    for source in sources:
        for call in source.calls("add_argument"):
            names = [text for text in map(_text, call.args) if text.startswith("-")]
            if names:
                action, long = argument(call, "action"), next((n for n in names if n[:2] == "--"), names[0])
                held = _text(argument(call, "dest")) or long.lstrip("-").replace("-", "_")
                yield held, Option(names, _text(action) or (source.code(action) if action else ""))


def _text(value: ast.expr | None) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
