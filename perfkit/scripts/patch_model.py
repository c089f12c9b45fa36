"""Where a user's code makes the model that it calls, and where its loss comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import libcst as cst
import libcst.matchers as m

from perfkit.scripts.patch_call import argument
from perfkit.scripts.patch_calls import Frame, Site
from perfkit.scripts.patch_source import Block, Refused, Source, expression_names, targets

Open = Callable[[str], Source]
"""The parsed file of a path."""

_TRAINS = m.Name("Trainer") | m.Attribute(attr=m.Name("Trainer") | m.Name("fit"))


@dataclass(frozen=True)
class Place:
    """Before a statement: where an object is complete, and what it is called there."""

    source: Source
    block: Block
    at: int
    name: str


def made(forward: Site, open_file: Open) -> Place:
    """The place right after the last assignment to the model, before it is called.

    Args:
        forward: the call of the model.
        open_file: gives the parsed file of a path.

    Raises:
        Refused: the assignments cannot be followed.
    """
    source = open_file(forward.frames[0].file)
    used: cst.CSTNode = source.call_at(forward.frames[0])
    assert isinstance(used, cst.Call)
    name = source.code(used.func)
    for caller in [*forward.frames[1:], None]:
        scope = source.function(used)
        while isinstance(scope, cst.Lambda):
            scope = source.function(scope)
        if name == "self" or name.startswith("self."):
            return _in_class(source, used, name)
        position = _parameter(scope, name)
        assigned = _assigned(source, name, scope)
        if not assigned and position is None:
            assigned = _assigned(source, name, None)
        if assigned:
            return _after(source, assigned, used, name)
        if position is None or caller is None:
            break
        source, function = open_file(caller.file), scope
        used = source.call_at(caller)
        name = source.code(argument_of(used, name, position, function))
    raise Refused(f"where the model is made cannot be followed from {source.where(used)}")


def _assigned(source: Source, name: str, scope: cst.CSTNode | None) -> list[cst.CSTNode]:
    return [
        one
        for kind in (cst.Assign, cst.AnnAssign)
        for one in source.nodes(kind)
        if name in targets(one) and source.function(one) is scope
    ]


def _after(source: Source, assigned: Sequence[cst.CSTNode], used: cst.CSTNode, name: str) -> Place:
    """After the last assignment, in a block in which the object is used or made."""
    before = [one for one in assigned if source.line(one) <= source.line(used)] or list(assigned)
    same = source.function(used) is source.function(before[0])
    try:
        block, places = source.common_block([*before, used] if same else before)
    except Refused:
        block, places = source.common_block(before)
        same = False
    earlier = [at for at in places[:-1] if at < places[-1]] if same else places
    if not earlier:
        raise Refused(f"{name} is assigned again in the loop that calls it")
    return Place(source, block, max(earlier) + 1, name)


def _parameter(scope: cst.CSTNode | None, name: str) -> int | None:
    if not isinstance(scope, cst.FunctionDef):
        return None
    return next((at for at, one in enumerate(parameters(scope)) if one.name.value == name), None)


def parameters(function: cst.FunctionDef) -> list[cst.Param]:
    """The parameters that have a name, in their order; those given by position first."""
    params = function.params
    return [*params.posonly_params, *params.params, *params.kwonly_params]


def argument_of(call: cst.Call, name: str, position: int, scope: cst.CSTNode | None) -> cst.BaseExpression:
    """The expression that a call gives for a parameter of the function that it calls.

    Raises:
        Refused: it gives none, or not in a way that can be read.
    """
    by_name = argument(call, name)
    if by_name is not None:
        return by_name.value
    if isinstance(scope, cst.FunctionDef) and _is_bound(call, scope):
        position -= 1
    plain = [one for one in call.args[: position + 1] if one.keyword is None and not one.star]
    if len(plain) <= position:
        raise Refused(f"what {name} is in the call cannot be read")
    return plain[position].value


def _is_bound(call: cst.Call, function: cst.FunctionDef) -> bool:
    """Whether a call leaves `self` or `cls` out, which the function has: `loader.make(8)`, `Loader(8)`."""
    first = next((one.name.value for one in parameters(function)), "")
    own = isinstance(call.func, cst.Attribute) or function.name.value == "__init__"
    given = call.args[0].value if call.args else None
    explicit = isinstance(given, cst.Name) and given.value == first  # Base.__init__(self, 8)
    return first in ("self", "cls") and own and not explicit


def _in_class(source: Source, used: cst.CSTNode, name: str) -> Place:
    """After the last assignment to an attribute in its class; for `self`, at the end of `__init__`."""
    around = source.class_of(used)
    methods = [one for one in source.nodes(cst.FunctionDef, around) if source.class_of(one) is around]
    if name == "self":
        init = next((one for one in methods if one.name.value == "__init__"), None)
        if init is None or not isinstance(init.body, cst.IndentedBlock):
            raise Refused("the class of the model has no __init__ of its own to add a line to")
        return Place(source, init.body, len(init.body.body), name)
    for method in methods:
        if assigned := _assigned(source, name, method):
            block, places = source.common_block(assigned)
            return Place(source, block, max(places) + 1, name)
    raise Refused(f"no method of its class assigns {name}")


def given_to_trainer(sources: Sequence[Source]) -> Place:
    """Before a library's trainer gets the model, as the argument `model` of `Trainer` or `fit`.

    Raises:
        Refused: none of these files does that with a variable.
    """
    for source in sources:
        for call in source.nodes(cst.Call):
            given = argument(call, "model", ("model",)) if m.matches(call.func, _TRAINS) else None
            if given is not None and isinstance(given.value, cst.Name | cst.Attribute):
                block, at = source.steps(call)[0]
                return Place(source, block, at, source.code(given.value))
    raise Refused("where the model is made cannot be followed: set it before the trainer gets it")


# ---------------------------------------------------------------- from the model to its loss


@dataclass(frozen=True)
class Stretch:
    """Statements of a block, from the call of the model to the loss."""

    source: Source
    block: Block
    first: int
    end: int
    """One more than the number of the last one."""
    inline: bool
    """Whether the last one calls `backward` on an expression that calls a model."""
    calls: tuple[cst.Call, ...]


def stretch(
    forwards: Sequence[Site], backward: Site, others: Sequence[Site], open_file: Open
) -> Stretch | None:
    """The statements that compute a loss: from the first call of a model, up to `backward`.

    Args:
        forwards: the calls of models.
        backward: one call of `backward`.
        others: all of them: a model that is called before another one belongs to the loss of that one.
        open_file: gives the parsed file of a path.

    Returns:
        None if no call of a model lies before this call of `backward`.

    Raises:
        Refused: they are in one statement that cannot be taken apart.
    """
    best: Stretch | None = None
    for forward in forwards:
        pair = _common(forward.frames, backward.frames, open_file)
        if pair is None:
            continue
        source, called, backed = pair
        block, (first, end) = source.common_block([called, backed])
        between = range(first, end)
        if first > end or any(
            _number(source, block, other, backed, open_file) in between for other in others
        ):
            continue
        if best is None or best.block is block:
            inline = first == end or (best is not None and best.inline)
            first = min(first, best.first if best else first)
            best = Stretch(source, block, first, end, inline, (*(best.calls if best else ()), called))
    if best is None:
        return None
    if best.inline:
        return replace(best, end=best.end + 1)
    wanted = expression_names(best.block.body[best.end])
    makers = [at for at in range(best.first, best.end) if wanted & targets(best.block.body[at])]
    return replace(best, end=max(makers, default=best.end - 1) + 1)


def _number(source: Source, block: Block, site: Site, beside: cst.Call, open_file: Open) -> int | None:
    """The number of the statement of a block that makes this call; None if none does, or `beside` is it."""
    for frame in site.frames:
        if frame.file == source.path:
            call = open_file(frame.file).call_at(frame)
            if call is not beside:
                for one, at in source.steps(call):
                    if one is block:
                        return at
    return None


def _common(
    ours: Sequence[Frame], theirs: Sequence[Frame], open_file: Open
) -> tuple[Source, cst.Call, cst.Call] | None:
    """The calls of two stacks in the innermost function that both have."""
    for one in ours:
        for other in theirs:
            if one.file == other.file:
                source = open_file(one.file)
                calls = source.call_at(one), source.call_at(other)
                if source.function(calls[0]) is source.function(calls[1]):
                    return source, *calls
    return None
