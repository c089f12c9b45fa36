"""Options: those that a script defines for its command line, and those of libraries that run the loop."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfkit.recipe import Value
from perfkit.scripts.patch_source import Source, argument

Setting = Callable[[Value], Mapping[str, str]]
"""Value of a switch → arguments or options with their values as code; an empty value removes one."""


def _bool(name: str) -> Setting:
    return lambda value: {name: str(bool(value))}


def _number(name: str) -> Setting:
    return lambda value: {name: str(value)}


_PRECISION = {"bf16": '"bf16-mixed"', "fp16": '"16-mixed"', "off": '"32-true"'}
_HALF = {"bf16": {"bf16": "True", "fp16": ""}, "fp16": {"fp16": "True", "bf16": ""}}
_HUGGING_FACE: dict[str, Setting] = {
    "batch_size": _number("per_device_train_batch_size"),
    "workers": _number("dataloader_num_workers"),
    "prefetch_factor": _number("dataloader_prefetch_factor"),
    "pin_memory": _bool("dataloader_pin_memory"),
    "non_blocking": lambda value: {"accelerator_config": f'{{"non_blocking": {bool(value)}}}'},
    "amp": lambda value: _HALF.get(str(value), {"bf16": "False", "fp16": "False"}),
    "fp32_precision": lambda value: {"tf32": str(value == "tf32")},
    "optimizer_impl": lambda value: {"optim": '"adamw_torch_fused"' if value == "fused" else '"adamw_torch"'},
    "compile": _bool("torch_compile"),
    "compile_mode": lambda value: {"torch_compile_mode": f'"{value}"'},
}
_LIGHTNING: dict[str, Setting] = {
    "amp": lambda value: {"precision": _PRECISION[str(value)]},
    "cudnn_benchmark": _bool("benchmark"),
}
_ACCELERATE: dict[str, Setting] = {
    "amp": lambda value: {"mixed_precision": '"no"' if value == "off" else f'"{value}"'},
}
_CONSTRUCTORS = (
    ("transformers trl", "TrainingArguments Seq2SeqTrainingArguments SFTConfig", _HUGGING_FACE),
    ("lightning pytorch_lightning lightning_fabric", "Trainer Fabric", _LIGHTNING),
    ("accelerate", "Accelerator", _ACCELERATE),
)
"""Packages, the calls in a user's code that configure them, and the argument for each switch."""
_TIMM: dict[str, Setting] = {
    "batch_size": _number("--batch-size"),
    "workers": _number("--workers"),
    "pin_memory": _bool("--pin-mem"),
    "channels_last": _bool("--channels-last"),
    "amp": lambda value: (
        {"--amp": "False"}
        if value == "off"
        else {"--amp": "True", "--amp-dtype": {"bf16": "bfloat16", "fp16": "float16"}[str(value)]}
    ),
    "compile": lambda value: {"--torchcompile": "inductor" if value else ""},
}
_COMMON: dict[str, Setting] = {
    "compile": _bool("--compile"),
    "channels_last": _bool("--channels-last"),
}
"""Options that mean the switch in any script that defines them as `store_true`."""
_BY_HAND = {
    ("transformers", "zero_grad_set_to_none"): "the Trainer clears gradients itself, to None already",
    ("lightning", "zero_grad_set_to_none"): (
        "Lightning clears gradients to None already; to change it, override optimizer_zero_grad of the "
        "LightningModule"
    ),
    ("lightning", "non_blocking"): "Lightning copies pinned batches without blocking already; set pin_memory",
    ("accelerate", "non_blocking"): (
        "give Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))"
    ),
}


@dataclass(frozen=True)
class Option:
    """An option of a script's command line."""

    names: tuple[str, ...]
    """As typed, such as `-b` and `--batch-size`."""
    action: str
    """Such as `store_true`; empty for one that takes a value."""
    source: Source | None
    """Where `add_argument` defines it; None for an option that a library defines."""
    call: ast.Call | None

    @property
    def name(self) -> str:
        """The longest of its names."""
        return max(self.names, key=len)

    def at(self, arguments: Sequence[str]) -> int | None:
        """Where a command line has the option, if it does."""
        for at, text in enumerate(arguments):
            if text == "--":
                return None
            short = len(text) > 2 and text[:2] in self.names and text[1] != "-"
            if text.partition("=")[0] in self.names or short:
                return at
        return None

    def set_in(self, arguments: Sequence[str], code: str) -> list[str]:
        """A command line with the option set: changed where it is, else added; an empty value removes it."""
        changed, at = list(arguments), self.at(arguments)
        if self.action in ("store_true", "store_false") or not code:
            wanted = bool(code) and (code == "True") == (self.action != "store_false")
            if wanted and at is None:
                changed.append(self.name)
            elif not wanted and at is not None:
                del changed[at : at + 1 + (not self.action and "=" not in changed[at])]
        elif at is None:
            changed += [self.name, code]
        elif "=" in changed[at]:
            changed[at] = f"{changed[at].partition('=')[0]}={code}"
        elif changed[at] in self.names:
            changed[at + 1 : at + 2] = [code]
        else:  # -b64
            changed[at] = changed[at][:2] + code
        return changed


def options(sources: Iterable[Source]) -> Iterator[tuple[str, Option]]:
    """The options that files define with `add_argument`, each with the attribute that holds its value."""
    for source in sources:
        for call in source.calls():
            if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
                continue
            texts = [_text(value) for value in call.args]
            names = tuple(text for text in texts if text.startswith("-"))
            if names:
                long = next((name for name in names if name.startswith("--")), names[0])
                held = _text(argument(call, "dest")) or long.lstrip("-").replace("-", "_")
                yield held, Option(names, _text(argument(call, "action")), source, call)


def _text(value: ast.expr | None) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def flags(library: str, sources: Iterable[Source], switch: str, value: Value) -> Mapping[str, str]:
    """Options of the script's own command line that set a switch, by a convention; or none."""
    sources = list(sources)
    defined = {name: option for _, option in options(sources) for name in option.names}
    if library == "timm" and switch in _TIMM:
        wanted = _TIMM[switch](value)
        return wanted if defined.keys() >= wanted.keys() else {}
    if library == "transformers" and switch in _HUGGING_FACE and _calls(sources, "HfArgumentParser"):
        return {f"--{name}": code.strip('"') for name, code in _HUGGING_FACE[switch](value).items() if code}
    if library.endswith("lightning") and switch == "amp" and _calls(sources, "LightningCLI"):
        return {"--trainer.precision": _PRECISION[str(value)].strip('"')}
    wanted = _COMMON[switch](value) if switch in _COMMON else {}
    known = [defined[name].action for name in wanted if name in defined]
    return wanted if known == ["store_true"] else {}


def constructors(
    library: str, sources: Iterable[Source], switch: str
) -> list[tuple[Source, ast.Call, Setting]]:
    """The calls that configure a library and have an argument for a switch."""
    return [
        (source, call, table[switch])
        for packages, names, table in _CONSTRUCTORS
        if library in packages.split() and switch in table
        for source in sources
        for call in source.calls()
        if _called(call) in names.split() and _imports(source, packages.split())
    ]


def given_to_trainer(sources: Iterable[Source]) -> tuple[Source, ast.stmt, str] | None:
    """The statement that gives a model to a library's `Trainer` or `fit`, and the model's name there."""
    for source in sources:
        for call in source.calls():
            model = argument(call, "model", ("model",)) if _called(call) in ("Trainer", "fit") else None
            if isinstance(model, ast.Name | ast.Attribute):
                block, at = next(source.blocks(call))
                return source, block[at], source.code(model)
    return None


def by_hand(library: str, switch: str) -> str:
    """What to write in a program of a library; empty if nothing is known."""
    return _BY_HAND.get(("lightning" if "lightning" in library else library, switch), "")


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _calls(sources: Iterable[Source], name: str) -> bool:
    return any(_called(call) == name for source in sources for call in source.calls())


def _imports(source: Source, packages: Sequence[str]) -> bool:
    names = [node.module or "" for node in ast.walk(source.tree) if isinstance(node, ast.ImportFrom)]
    plain = [
        alias.name for node in ast.walk(source.tree) if isinstance(node, ast.Import) for alias in node.names
    ]
    return any(name.split(".")[0] in packages for name in [*names, *plain])
