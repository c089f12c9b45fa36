"""Where a value in a user's file comes from: a literal, a variable, a field or an option."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from perfkit.scripts.patch_call import argument, with_argument
from perfkit.scripts.patch_source import Source, targets

_LITERAL = (cst.Integer, cst.Float, cst.SimpleString)
_Assignment = cst.Assign | cst.AnnAssign | cst.AugAssign
_CONSTANTS = ("True", "False", "None")


@dataclass(frozen=True)
class Option:
    """An option that the script defines with `add_argument`."""

    source: Source
    call: cst.Call
    names: tuple[str, ...]
    """As typed, such as `-b` and `--batch-size`."""
    action: str
    """Such as `store_true`; empty for one that takes a value."""

    @property
    def name(self) -> str:
        """The longest of its names."""
        return max(self.names, key=len)

    def set_default(self, value: str) -> str:
        """Plans another default; returns what was changed, in words."""
        self.source.change(self.call, lambda call: with_argument(call, "default", value))
        return f"{self.source.where(self.call)}: the default of {self.name} is {value}"


def is_literal(node: cst.CSTNode) -> bool:
    """Whether it is a number, a text, True, False or None."""
    if isinstance(node, cst.UnaryOperation):
        return is_literal(node.expression)
    return isinstance(node, _LITERAL) or (isinstance(node, cst.Name) and node.value in _CONSTANTS)


def options(source: Source) -> Iterator[tuple[str, Option]]:
    """The options that a file defines, each with the attribute that holds its value."""
    for call in source.nodes(cst.Call):
        if not (m.matches(call.func, m.Attribute(attr=m.Name("add_argument"))) and call.args):
            continue
        plain = [one.value for one in call.args if one.keyword is None and not one.star]
        texts = [one.evaluated_value for one in plain if isinstance(one, cst.SimpleString)]
        names = tuple(text for text in texts if isinstance(text, str) and text.startswith("-"))
        if not names:
            continue
        long = next((name for name in names if name.startswith("--")), names[0])
        stored, action = argument(call, "dest"), argument(call, "action")
        yield (
            _text(stored) or long.lstrip("-").replace("-", "_"),
            Option(source, call, names, _text(action)),
        )


def _text(given: cst.Arg | None) -> str:
    if given is None or not isinstance(given.value, cst.SimpleString):
        return ""
    return str(given.value.evaluated_value)


def origin(
    source: Source, value: cst.BaseExpression, others: Sequence[Source]
) -> cst.BaseExpression | Option | None:
    """The literal or the option that decides a value; None where it cannot be followed.

    Args:
        source: the file of the expression.
        value: an expression in it.
        others: all files in which an option or a field may be defined.
    """
    if is_literal(value):
        return value
    if isinstance(value, cst.Name):
        given = _variable(source, value)
        return origin(source, given, others) if given is not None else None
    if isinstance(value, cst.Attribute):
        return _attribute(value.attr.value, others)
    if isinstance(value, cst.Subscript):
        return _item(source, value)
    return None


def _variable(source: Source, name: cst.Name) -> cst.BaseExpression | None:
    """What the only assignment to a variable gives it, in its function or in the file."""
    inner = source.function(name)
    if isinstance(inner, cst.FunctionDef) and name.value in {one.name.value for one in inner.params.params}:
        return None
    for scope in dict.fromkeys((inner, None)):
        assigned = _assignments(source, name.value, scope)
        if assigned:
            return _given(assigned[0], name.value) if len(assigned) == 1 else None
    return None


def _given(assignment: _Assignment, name: str) -> cst.BaseExpression | None:
    """The expression for one of the targets of an assignment: the second one in `a, b = 1, 2` for `b`."""
    if isinstance(assignment, cst.AugAssign):
        return None
    target = assignment.targets[0].target if isinstance(assignment, cst.Assign) else assignment.target
    value = assignment.value
    if not isinstance(target, cst.Tuple):
        return value
    names = [one.value.value if isinstance(one.value, cst.Name) else "" for one in target.elements]
    if not isinstance(value, cst.Tuple) or len(value.elements) != len(names) or name not in names:
        return None
    return value.elements[names.index(name)].value


def _assignments(source: Source, name: str, scope: cst.CSTNode | None) -> list[_Assignment]:
    found: list[_Assignment] = [
        *source.nodes(cst.Assign),
        *source.nodes(cst.AnnAssign),
        *source.nodes(cst.AugAssign),
    ]
    return [one for one in found if source.function(one) is scope and name in targets(one)]


def _attribute(name: str, others: Sequence[Source]) -> cst.BaseExpression | Option | None:
    """What `args.batch_size` or `config.batch_size` is by default, if just one place says so."""
    found: list[cst.BaseExpression | Option] = [
        option for source in others for held, option in options(source) if held == name
    ]
    for source in others:
        fields: list[_Assignment] = [*source.nodes(cst.AnnAssign), *source.nodes(cst.Assign)]
        for one in fields:
            around = source.class_of(one)
            if around and source.function(one) is None and one.value is not None and name in targets(one):
                given = _constructed(around.name.value, name, others)
                found += given if given else [one.value] if is_literal(one.value) else []
    return found[0] if len(found) == 1 else None


def packed(source: Source, call: cst.Call, name: str) -> cst.BaseExpression | None:
    """The value of an argument in a dictionary that is written out once and given as `**options`."""
    for one in call.args:
        if one.star == "**":
            given = _variable(source, one.value) if isinstance(one.value, cst.Name) else one.value
            if isinstance(given, cst.Dict) and (entry := _entry(given, name)) is not None:
                return entry
    return None


def _constructed(class_name: str, name: str, sources: Sequence[Source]) -> list[cst.BaseExpression]:
    """What calls of a class give for a field, where that is a literal."""
    calls = [call for source in sources for call in source.nodes(cst.Call)]
    given = [argument(call, name) for call in calls if m.matches(call.func, m.Name(class_name))]
    return [one.value for one in given if one is not None and is_literal(one.value)]


def _item(source: Source, value: cst.Subscript) -> cst.BaseExpression | None:
    """The literal in a dictionary that is written out once: `CONFIG["batch_size"]`."""
    if not (isinstance(value.value, cst.Name) and len(value.slice) == 1):
        return None
    index = value.slice[0].slice
    if not (isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString)):
        return None
    for scope in dict.fromkeys((source.function(value), None)):
        assigned = [one.value for one in _assignments(source, value.value.value, scope)]
        if assigned:
            only = assigned[0]
            if len(assigned) > 1 or not isinstance(only, cst.Dict):
                return None
            entry = _entry(only, index.value.evaluated_value)
            return entry if entry is not None and is_literal(entry) else None
    return None


def _entry(dictionary: cst.Dict, key: object) -> cst.BaseExpression | None:
    for one in dictionary.elements:
        if not (isinstance(one, cst.DictElement) and isinstance(one.key, cst.SimpleString)):
            continue
        if one.key.evaluated_value == key:
            return one.value
    return None


# ---------------------------------------------------------------- the command line


def given_at(arguments: Sequence[str], names: Sequence[str]) -> int | None:
    """Where the command line gives an option, if it does."""
    for at, text in enumerate(arguments):
        if text == "--":
            return None
        name = text.partition("=")[0]
        if name in names or (len(text) > 2 and text[:2] in names and text[1] != "-"):
            return at
    return None


def with_flag(arguments: Sequence[str], names: Sequence[str], action: str, value: str) -> list[str]:
    """The arguments with an option set: changed where it is given, else added.

    Args:
        arguments: the command line.
        names: of the option.
        action: of `add_argument`; a switch such as `store_true` is added or removed.
        value: as code; empty removes the option.
    """
    changed, at, longest = list(arguments), given_at(arguments, names), max(names, key=len)
    if action in ("store_true", "store_false") or not value:
        wanted = bool(value) and (value == "True") == (action == "store_true")
        if wanted and at is None:
            changed.append(longest)
        elif not wanted and at is not None:
            del changed[at : at + 1 + (not action and "=" not in changed[at])]
    elif at is None:
        changed += [longest, value]
    elif "=" in changed[at]:
        changed[at] = f"{changed[at].partition('=')[0]}={value}"
    elif changed[at] in names:
        changed[at + 1 : at + 2] = [value]
    else:  # -b64
        changed[at] = changed[at][:2] + value
    return changed
