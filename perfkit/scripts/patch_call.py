"""The arguments of a call in a concrete syntax tree: read, set and removed, laid out as the others are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst

_TIGHT = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
_SPACE, _NOTHING = cst.SimpleWhitespace(" "), cst.SimpleWhitespace("")


def argument(call: cst.Call, name: str, order: Sequence[str] = ()) -> cst.Arg | None:
    """The argument of this name, by keyword or by its place in `order`; None if none is written out."""
    for at, one in enumerate(call.args):
        if one.keyword is not None and one.keyword.value == name:
            return one
        if one.star == "*":
            order = ()
        if one.keyword is None and not one.star and at < len(order) and order[at] == name:
            return one
    return None


def written(call: cst.Call, place: str) -> cst.Arg | None:
    """An argument by its position from 0, or by its name; None if the call does not write it out."""
    if not place.isdigit():
        return argument(call, place)
    plain = call.args[: int(place) + 1]
    whole = len(plain) > int(place) and all(one.keyword is None and not one.star for one in plain)
    return plain[-1] if whole else None


def followed_by(node: Any, code: str) -> cst.BaseExpression:
    """An expression with an attribute or a call after it."""
    before = cst.Module([]).code_for_node(node)
    simple = isinstance(node, cst.Name | cst.Attribute | cst.Call | cst.Subscript) or node.lpar
    return cst.parse_expression(f"{before if simple else f'({before})'}{code}")


def with_argument(
    call: cst.Call, name: str, code: str, order: Sequence[str] = (), packed: bool = False
) -> cst.Call:
    """The call with one argument set: where it is written, else as a keyword.

    Args:
        call: the call.
        name: of the argument.
        code: its value as an expression.
        order: the names of the positional parameters.
        packed: whether a `**something` of the call holds it; it is then set in there.
    """
    value = cst.parse_expression(code)
    present = argument(call, name, order)
    if present is not None:
        changed = present.with_changes(value=value)
        return call.with_changes(args=[changed if one is present else one for one in call.args])
    stars = [at for at, one in enumerate(call.args) if one.star == "**"]
    if packed and stars:
        return _with_packed(call, stars[-1], name, value)
    new = cst.Arg(value, cst.Name(name), equal=_TIGHT)
    if not call.args:
        return call.with_changes(args=[new])
    if stars:
        return _with_inserted(call, stars[0], new)
    return _with_appended(call, new)


def without_argument(call: cst.Call, name: str) -> cst.Call:
    """The call without the keyword argument of this name."""
    kept = [one for one in call.args if one.keyword is None or one.keyword.value != name]
    if len(kept) < len(call.args) and kept:
        last = call.args[-1]
        kept[-1] = kept[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    return call.with_changes(args=kept)


def _with_packed(call: cst.Call, at: int, name: str, value: cst.BaseExpression) -> cst.Call:
    """`**options` becomes `**{**options, "name": value}`; a literal gets the key itself."""
    args, given = list(call.args), call.args[at].value
    present: list[Any] = (
        list(given.elements) if isinstance(given, cst.Dict) else [cst.StarredDictElement(given)]
    )
    kept = [one for one in present if not _has_key(one, name)]
    kept = [one.with_changes(comma=cst.Comma(whitespace_after=_SPACE)) for one in kept]
    added = cst.DictElement(cst.SimpleString(f'"{name}"'), value)
    args[at] = args[at].with_changes(value=cst.Dict([*kept, added]))
    return call.with_changes(args=args)


def _has_key(element: Any, name: str) -> bool:
    key = getattr(element, "key", None)
    return isinstance(key, cst.SimpleString) and key.evaluated_value == name


def _before(call: cst.Call, at: int) -> Any:
    """The white space before an argument, without comments: a line each, or one space."""
    comma = call.args[at - 1].comma if at else None
    space = comma.whitespace_after if isinstance(comma, cst.Comma) else call.whitespace_before_args
    return _clean(space) if isinstance(space, cst.ParenthesizedWhitespace) else _SPACE


def _clean(space: Any) -> Any:
    """The same white space without its comments."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    line = space.first_line.with_changes(comment=None, whitespace=_NOTHING)
    return space.with_changes(first_line=line, empty_lines=[])


def _with_inserted(call: cst.Call, at: int, new: cst.Arg) -> cst.Call:
    args = list(call.args)
    args.insert(at, new.with_changes(comma=cst.Comma(whitespace_after=_before(call, at) if at else _SPACE)))
    return call.with_changes(args=args)


def _with_appended(call: cst.Call, new: cst.Arg) -> cst.Call:
    """What followed the last argument (a comma, a comment, the end of a line) now follows the new one."""
    last, before = call.args[-1], _before(call, len(call.args) - 1)
    if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:  # only a sole argument has none
        value = last.value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        last = last.with_changes(value=value)
    closed = isinstance(last.comma, cst.Comma)
    after: Any = (
        last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else last.whitespace_after_arg
    )
    between = before
    if isinstance(after, cst.ParenthesizedWhitespace) and isinstance(before, cst.ParenthesizedWhitespace):
        between = after.with_changes(indent=before.indent, last_line=before.last_line)
    elif isinstance(after, cst.ParenthesizedWhitespace) and after.first_line.comment:
        between = after  # a comment ends its line
    last = last.with_changes(comma=cst.Comma(whitespace_after=between), whitespace_after_arg=_NOTHING)
    if closed:
        new = new.with_changes(comma=cst.Comma(whitespace_after=_clean(after)))
    else:
        new = new.with_changes(whitespace_after_arg=_clean(after))
    return call.with_changes(args=[*call.args[:-1], last, new])
