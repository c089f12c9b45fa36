"""Libraries that make the loader or run the loop themselves: the edit is their own option."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from perfkit.recipe import Value
from perfkit.scripts.patch_source import Source
from perfkit.scripts.patch_values import options

Options = Mapping[str, str]
"""Keyword arguments (or options) and their values as code; an empty value removes it."""


def _bool(name: str) -> Callable[[Value], Options]:
    return lambda value: {name: str(bool(value))}


def _number(name: str) -> Callable[[Value], Options]:
    return lambda value: {name: str(value)}


_HUGGING_FACE: dict[str, Callable[[Value], Options]] = {
    "batch_size": _number("per_device_train_batch_size"),
    "workers": _number("dataloader_num_workers"),
    "persistent_workers": _bool("dataloader_persistent_workers"),
    "prefetch_factor": _number("dataloader_prefetch_factor"),
    "pin_memory": _bool("dataloader_pin_memory"),
    "non_blocking": lambda value: {"accelerator_config": f'{{"non_blocking": {bool(value)}}}'},
    "amp": lambda value: {
        "bf16": {"bf16": "True", "fp16": ""}, "fp16": {"fp16": "True", "bf16": ""},
    }.get(str(value), {"bf16": "False", "fp16": "False"}),
    "fp32_precision": lambda value: {"tf32": str(value == "tf32")} if value != "default" else {},
    "optimizer_impl": lambda value: {"optim": '"adamw_torch_fused"'} if value == "fused" else {},
    "compile": _bool("torch_compile"),
    "compile_mode": lambda value: {"torch_compile_mode": f'"{value}"'},
}  # fmt: skip

_PRECISION = {"bf16": '"bf16-mixed"', "fp16": '"16-mixed"', "off": '"32-true"'}
_LIGHTNING: dict[str, Callable[[Value], Options]] = {
    "amp": lambda value: {"precision": _PRECISION[str(value)]},
    "cudnn_benchmark": _bool("benchmark"),
}
_FABRIC = {"amp": _LIGHTNING["amp"]}
_MIXED = {"off": '"no"'}
_ACCELERATE: dict[str, Callable[[Value], Options]] = {
    "amp": lambda value: {"mixed_precision": _MIXED.get(str(value), f'"{value}"')},
}

_CONSTRUCTORS: tuple[tuple[tuple[str, ...], tuple[str, ...], dict[str, Callable[[Value], Options]]], ...] = (
    (("transformers", "trl"), ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig"), _HUGGING_FACE),
    (("lightning", "pytorch_lightning"), ("Trainer",), _LIGHTNING),
    (("lightning", "lightning_fabric"), ("Fabric",), _FABRIC),
    (("accelerate",), ("Accelerator",), _ACCELERATE),
)

_TIMM: dict[str, Callable[[Value], Options]] = {
    "batch_size": _number("--batch-size"),
    "workers": _number("--workers"),
    "pin_memory": _bool("--pin-mem"),
    "channels_last": _bool("--channels-last"),
    "amp": lambda value: (
        {"--amp": str(value != "off")}
        | ({"--amp-dtype": {"bf16": "bfloat16", "fp16": "float16"}[str(value)]} if value != "off" else {})
    ),
    "compile": lambda value: {"--torchcompile": "inductor" if value else ""},
}


_BY_HAND = {
    "transformers": {
        "zero_grad_set_to_none": "the Trainer clears gradients itself, to None already",
        "optimizer_impl": "its option `optim` has the fused implementation only; for another one make the "
        "optimizer yourself and give Trainer(optimizers=(optimizer, scheduler))",
    },
    "lightning": {
        "zero_grad_set_to_none": "Lightning clears gradients to None already; to change it, override "
        "optimizer_zero_grad of the LightningModule",
        "non_blocking": "Lightning copies pinned batches without blocking already; set pin_memory",
    },
    "accelerate": {
        "non_blocking": "give Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))",
    },
}


@dataclass(frozen=True)
class Constructor:
    """The call in the user's own code that configures a library."""

    library: str
    source: Source
    call: cst.Call
    options: dict[str, Callable[[Value], Options]]


def constructors(library: str, sources: Sequence[Source]) -> list[Constructor]:
    """The calls in these files that configure a library, or the one it is built on."""
    found = []
    for source in sources:
        imported = _imported(source)
        for call in source.nodes(cst.Call):
            for libraries, names, table in _CONSTRUCTORS:
                package, name = _called(call, imported)
                same = library in libraries or library.removeprefix("pytorch_") in libraries
                if same and package in libraries and name in names:
                    found.append(Constructor(libraries[0], source, call, table))
    return found


def _imported(source: Source) -> dict[str, tuple[str, str]]:
    """Names of a file that come from packages: the package, and the name there (empty for a module)."""
    known: dict[str, tuple[str, str]] = {}
    for statement in source.nodes(cst.ImportFrom):
        if statement.module is not None and not isinstance(statement.names, cst.ImportStar):
            package = source.code(statement.module).split(".")[0]
            for alias in statement.names:
                known[_alias(alias)] = package, source.code(alias.name)
    for plain in source.nodes(cst.Import):
        for alias in plain.names:
            name = source.code(alias.name)
            known[_alias(alias) if alias.asname else name.split(".")[0]] = name.split(".")[0], ""
    return known


def _alias(alias: cst.ImportAlias) -> str:
    return str(alias.evaluated_alias or alias.evaluated_name)


def _called(call: cst.Call, imported: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    """Package and name of what is called; both empty if it is not imported."""
    if isinstance(call.func, cst.Name):
        package, name = imported.get(call.func.value, ("", ""))
        return package, name or call.func.value
    if isinstance(call.func, cst.Attribute):
        first: cst.BaseExpression = call.func
        while isinstance(first, cst.Attribute):
            first = first.value
        package = imported.get(first.value, ("", ""))[0] if isinstance(first, cst.Name) else ""
        return package, call.func.attr.value
    return "", ""


def by_hand(library: str, switch: str) -> str:
    """What to write in a program of this library; empty if nothing is known."""
    name = "lightning" if library.startswith(("lightning", "pytorch_lightning")) else library
    return _BY_HAND.get(name, {}).get(switch, "")


def flags(library: str, sources: Sequence[Source], switch: str, value: Value) -> Options:
    """Options of the script's own command line that set a switch, by a convention of the library; or none."""
    if library == "timm" and switch in _TIMM:
        defined = {name for source in sources for _, option in options(source) for name in option.names}
        given = _TIMM[switch](value)
        return given if defined >= set(given) else {}
    if library == "transformers" and switch in _HUGGING_FACE and _uses(sources, "HfArgumentParser"):
        return {f"--{name}": code.strip('"') for name, code in _HUGGING_FACE[switch](value).items() if code}
    if library in ("lightning", "pytorch_lightning") and switch == "amp" and _uses(sources, "LightningCLI"):
        return {"--trainer.precision": _PRECISION[str(value)].strip('"')}
    return {}


def _uses(sources: Sequence[Source], name: str) -> bool:
    called = m.Call(func=m.Name(name) | m.Attribute(attr=m.Name(name)))
    return any(m.findall(source.module, called) for source in sources)
