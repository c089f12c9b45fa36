"""Settings of the whole process: statements after the imports of a script, or where it has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import libcst as cst
import libcst.matchers as m

from perfkit.recipe import Value
from perfkit.scripts.patch_source import Refused, Source, targets

SETTINGS = ("fp32_precision", "cudnn_benchmark", "cpu_threads")
"""The switches that are set here."""
_FP32 = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")
_SET_THREADS = m.Attribute(attr=m.Name("set_num_threads"))


def set_switch(name: str, value: Value, script: Source, sources: Sequence[Source]) -> list[str]:
    """Plans one of `SETTINGS`; returns the edits in words.

    Args:
        name: the switch.
        value: its value.
        script: the file that is started.
        sources: all files of the script.

    Raises:
        Refused: it is to be put back to a default that the script does not have.
    """
    if name == "cudnn_benchmark":
        return _assign([("torch.backends.cudnn.benchmark", str(value))], script, sources)
    if name == "cpu_threads":
        return _threads(value, script, sources)
    older = [
        (source, one)
        for source in sources
        for one in source.nodes(cst.Assign)
        if any(target.endswith(".allow_tf32") for target in targets(one))
    ]
    for source, one in older:
        source.replace(one.value, str(value == "tf32"))
    if older or value == "default":
        return [f"{source.where(one)}: allow_tf32 = {value == 'tf32'}" for source, one in older]
    precisions = [(f"torch.backends.{part}.fp32_precision", f'"{value}"') for part in _FP32]
    return _assign(precisions, script, sources)


def _threads(value: Value, script: Source, sources: Sequence[Source]) -> list[str]:
    if not value:
        raise Refused("remove the call of torch.set_num_threads, or give it the number of cores")
    for source in sources:
        for call in source.nodes(cst.Call):
            if m.matches(call.func, _SET_THREADS) and call.args:
                source.replace(call.args[0].value, str(value))
                return [f"{source.where(call)}: set_num_threads({value})"]
    return _after_imports([f"torch.set_num_threads({value})"], script)


def _assign(values: Sequence[tuple[str, str]], script: Source, sources: Sequence[Source]) -> list[str]:
    done, new = list[str](), list[str]()
    for target, code in values:
        short = target.removeprefix("torch.backends.")
        held = [
            (source, one)
            for source in sources
            for one in source.nodes(cst.Assign)
            if any(own == short or own.endswith(f".{short}") for own in targets(one))
        ]
        for source, one in held:
            source.replace(one.value, code)
            done.append(f"{source.where(one)}: {short} = {code}")
        if not held:
            new.append(f"{target} = {code}")
    return done + (_after_imports(new, script) if new else [])


def _after_imports(lines: Sequence[str], script: Source) -> list[str]:
    needs_torch(script)
    script.insert(script.module, script.imports_end(), lines, apart=True)
    return [f"{Path(script.path).name}: {line}" for line in lines]


def needs_torch(source: Source) -> None:
    """Plans `import torch` where a file has none at its top."""
    for statement in source.nodes(cst.Import):
        names = [source.code(alias.name).split(".")[0] for alias in statement.names if not alias.asname]
        if "torch" in names and source.function(statement) is None:
            return
    source.insert(source.module, source.imports_end(), ["import torch"])
