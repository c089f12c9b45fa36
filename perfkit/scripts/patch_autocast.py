"""The edit for `amp`: `torch.autocast` around the calls of the model and the loss."""

import ast
from collections.abc import Sequence
from typing import Protocol

from perfkit.scripts.patch_calls import Site
from perfkit.scripts.patch_source import Refused, Source, argument, assigned, names_in

_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
_ORDER = ("device_type", "dtype", "enabled")


class Editing(Protocol):
    """The files of a script, the calls that were seen in them, and the edits made so far."""

    sites: Sequence[Site]
    device: str
    done: list[str]

    def open(self, path: str) -> Source: ...

    def calls(self, role: str, missing: str = "") -> list[tuple[Source, ast.Call, Site]]: ...

    def note(self, source: Source, node: ast.AST, planned: int, text: str) -> None: ...


class Autocast:
    """Plans the edits of automatic mixed precision."""

    def __init__(self, edits: Editing) -> None:
        self.edits = edits

    def set(self, value: str) -> None:
        """Plans it for `off`, `bf16` or `fp16`.

        Raises:
            Refused: the loop cannot be edited safely.
        """
        scalers = self.edits.calls("scaler")
        if value == "fp16" and not scalers:
            raise Refused("fp16 needs a gradient scaler: add torch.amp.GradScaler to the script, or use bf16")
        present = self._autocasts()
        for source, call in present:
            planned = len(source.edits)
            cuda_only = "cuda" in source.code(call.func)
            if value != "off" and cuda_only and self.edits.device != "cuda":
                raise Refused(f"{source.where(call)}: this autocast acts on CUDA only; use torch.autocast")
            order = ("enabled", "dtype") if cuda_only else _ORDER
            if value != "off":
                source.set_argument(call, "dtype", _DTYPES[value], order)
            if value == "off" or argument(call, "enabled", order):
                source.set_argument(call, "enabled", str(value != "off"), order)
            self.edits.note(source, call, planned, f"autocast {value}")
        if value != "off" and not present:
            self._around(f'torch.autocast("{self.edits.device}", dtype={_DTYPES[value]})')
        for source, call, _ in scalers if value == "fp16" else ():
            if argument(call, "enabled"):
                source.set_argument(call, "enabled", "True")

    def _autocasts(self) -> list[tuple[Source, ast.Call]]:
        """The calls of `autocast` that stand around a call of the model, or that were seen."""
        around = [
            (source, item.context_expr)
            for source, call, _ in self.edits.calls("forward")
            for outer in source.parents(call)
            if isinstance(outer, ast.With)
            for item in outer.items
            if isinstance(item.context_expr, ast.Call) and "autocast" in source.code(item.context_expr.func)
        ]
        return around or [(source, call) for source, call, _ in self.edits.calls("autocast")]

    def _around(self, header: str) -> None:
        """Around the statements from the call of the model to the loss, for each call of backward."""
        forwards = [site for site in self.edits.sites if site.role == "forward" and site.frames]
        backwards = [site for site in self.edits.sites if site.role == "backward" and site.frames]
        if not forwards or not backwards:
            raise Refused("no call of the model or of backward was seen")
        for backward in backwards:
            if not self._wrap(forwards, backward, backwards, header):
                source, call, _ = self.edits.calls("forward")[0]
                raise Refused(
                    f"{source.where(call)}: the model is called in another function than its loss: put "
                    f"`with {header}:` around both"
                )

    def _wrap(self, forwards: Sequence[Site], backward: Site, backwards: Sequence[Site], header: str) -> bool:
        """Whether the statements of one loss were found; then a `with` around them is planned."""
        pairs = [pair for forward in forwards if (pair := self._together(forward, backward))]
        for source, _, back in pairs[:1]:
            calls = [forward for _, forward, _ in pairs]
            for block, end in source.blocks(back):
                places = [at for call in calls for inner, at in source.blocks(call) if inner is block]
                others = [self._together(site, backward) for site in backwards if site is not backward]
                ends = [
                    at for pair in others if pair for inner, at in source.blocks(pair[1]) if inner is block
                ]
                first = max((at + 1 for at in ends if at < end), default=0)
                if not places:
                    continue
                places = [at for at in places if first <= at <= end]
                if not places:
                    return False
                if end in places:
                    return self._take_apart(source, block[min(places) : end + 1], header)
                wanted = names_in(block[end])
                makers = [at for at in range(min(places), end) if wanted & assigned(block[at])]
                statements = block[min(places) : max(makers, default=end - 1) + 1]
                source.wrap(statements, header)
                source.insert_after_imports([])
                self.edits.done.append(f"{source.where(statements[0])}: with {header}")
                return True
        return False

    def _take_apart(self, source: Source, statements: Sequence[ast.stmt], header: str) -> bool:
        """`criterion(model(x), y).backward()` as two statements: the loss, within autocast, and the rest."""
        match statements[-1]:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=loss, attr="backward"), args=[])) as line:
                scope = source.function(line) or source.tree
                source.wrap(statements, header)
                source.split_backward(line, loss, "step_loss" if "loss" in names_in(scope) else "loss")
                source.insert_after_imports([])
                self.edits.done.append(f"{source.where(line)}: with {header}")
                return True
        where = source.where(statements[0])
        raise Refused(f"{where}: model, loss and backward are one statement; give the loss a line of its own")

    def _together(self, site: Site, other: Site) -> tuple[Source, ast.Call, ast.Call] | None:
        """The calls of two stacks in the innermost function that both have."""
        for frame in site.frames:
            for beside in other.frames:
                if frame.file == beside.file:
                    source = self.edits.open(frame.file)
                    call, back = source.call_at(frame), source.call_at(beside)
                    if source.function(call) is source.function(back):
                        return source, call, back
        return None
