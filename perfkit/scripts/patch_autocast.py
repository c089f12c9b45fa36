"""Automatic mixed precision in a user's own loop: `torch.autocast` around the model and its loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from perfkit.scripts.patch_call import argument, with_argument
from perfkit.scripts.patch_calls import Site
from perfkit.scripts.patch_model import Stretch, stretch
from perfkit.scripts.patch_process import needs_torch
from perfkit.scripts.patch_source import Refused, Source, expression_names

_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
_ORDER = ("device_type", "dtype", "enabled")
_AUTOCAST = m.Call(func=m.Name("autocast") | m.Attribute(attr=m.Name("autocast")))
_BACKWARD = m.SimpleStatementLine(
    [m.Expr(m.Call(func=m.Attribute(value=m.DoNotCare(), attr=m.Name("backward"))))]
)


class Autocast:
    """Plans the edits of the switch `amp`.

    Args:
        sites: the calls that were seen.
        open_file: gives the parsed file of a path.
        device: where the script trains.
    """

    def __init__(self, sites: Sequence[Site], open_file: Callable[[str], Source], device: str) -> None:
        self.sites, self.open, self.device = sites, open_file, device

    def set(self, value: str) -> list[str]:
        """Plans it for `off`, `bf16` or `fp16`; returns the edits in words.

        Raises:
            Refused: the loop cannot be edited safely.
        """
        scaler = self._calls("scaler")
        if value == "fp16" and not scaler:
            raise Refused("fp16 needs a gradient scaler: add torch.amp.GradScaler to the script, or use bf16")
        present = self._present()
        if value == "off":
            return [self._enable(source, call, "False") for source, call in present]
        if present:
            done = [self._dtype(*one, _DTYPES[value]) for one in present]
            done += [self._enable(*one, "True") for one in present if argument(one[1], "enabled", _ORDER)]
        else:
            done = self._around(_DTYPES[value])
        if value == "fp16":
            done += [self._enable(*one, "True") for one in scaler if argument(one[1], "enabled")]
        return done

    def _calls(self, role: str) -> list[tuple[Source, cst.Call]]:
        frames = [site.frames[0] for site in self.sites if site.role == role and site.frames]
        sources = [self.open(frame.file) for frame in frames]
        return [(source, source.call_at(frame)) for source, frame in zip(sources, frames, strict=True)]

    def _present(self) -> list[tuple[Source, cst.Call]]:
        """The calls of `autocast` that were seen, or that stand around a call of the model."""
        around = []
        for source, call in self._calls("forward"):
            for outer in source.parents(call):
                if isinstance(outer, cst.With):
                    around += [(source, one.item) for one in outer.items if m.matches(one.item, _AUTOCAST)]
        return [(one, call) for one, call in around if isinstance(call, cst.Call)] or self._calls("autocast")

    def _dtype(self, source: Source, call: cst.Call, code: str) -> str:
        cuda_only = "cuda" in source.code(call.func)
        if cuda_only and self.device != "cuda":
            raise Refused(f"{source.where(call)}: this autocast acts on CUDA only; use torch.autocast")
        needs_torch(source)
        return self._set(source, call, "dtype", code, ("enabled", "dtype") if cuda_only else _ORDER)

    def _enable(self, source: Source, call: cst.Call, code: str) -> str:
        order = _ORDER if m.matches(call, _AUTOCAST) and "cuda" not in source.code(call.func) else ()
        return self._set(source, call, "enabled", code, order)

    def _set(self, source: Source, call: cst.Call, name: str, code: str, order: Sequence[str]) -> str:
        present = argument(call, name, order)
        if present is None or source.code(present.value) != code:
            source.change(call, partial(with_argument, name=name, code=code, order=order))
        return f"{source.where(call)}: {name}={code}"

    # ------------------------------------------------------------ a new one

    def _around(self, dtype: str) -> list[str]:
        """Around the statements from each call of the model to its loss."""
        forwards = [site for site in self.sites if site.role == "forward"]
        backwards = [site for site in self.sites if site.role == "backward"]
        if not forwards or not backwards:
            raise Refused("no call of the model or of backward was seen")
        stretches = [
            one for site in backwards if (one := stretch(forwards, site, backwards, self.open)) is not None
        ]
        covered = {call for one in stretches for call in one.calls}
        if not covered or len(stretches) < len(backwards):
            called = self._calls("forward")[0]
            raise Refused(
                f"{called[0].where(called[1])}: the model is called in another function than its loss: put "
                f'`with torch.autocast("{self.device}", dtype={dtype}):` around both'
            )
        header = f'torch.autocast("{self.device}", dtype={dtype})'
        for one in stretches:
            needs_torch(one.source)
            if one.inline:
                self._take_apart(one, header)
            else:
                one.source.wrap(one.block, one.first, one.end, header)
        return [f"{one.source.where(one.calls[0])}: with {header}" for one in stretches]

    def _take_apart(self, one: Stretch, header: str) -> None:
        """`criterion(model(x), y).backward()` as two statements: the loss, within autocast, and the rest."""
        statement = one.block.body[one.end - 1]
        if not m.matches(statement, _BACKWARD):
            raise Refused(
                f"{one.source.where(statement)}: model, loss and backward are one statement; assign the loss "
                "to a variable on a line of its own"
            )
        scope = one.source.function(statement) or one.source.module
        name = "step_loss" if "loss" in expression_names(scope) else "loss"

        def build(statements: list[Any]) -> list[Any]:
            line = statements[-1]
            root = line.body[0].value.func.value
            scaled = m.matches(root, m.Call(func=m.Attribute(attr=m.Name("scale"))))
            loss = root.args[0].value if scaled else root
            inner = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], loss)])
            inner = inner.with_changes(leading_lines=line.leading_lines)
            block = one.source.with_block(header, [*statements[:-1], inner], one.block)
            return [block, line.with_changes(leading_lines=[]).deep_replace(loss, cst.Name(name))]

        one.source.rebuild(one.block, one.first, one.end, build)
