"""Sites of a source text as a run would record them: spans in bytes of UTF-8, found with `ast`."""

import ast

from perfkit.scripts.patch import Patch, patch
from perfkit.scripts.patch_calls import Frame, Site

PATH = "/project/train.py"


def frame(text: str, called: str, path: str = PATH, nth: int = 0) -> Frame:
    """The nth call of `called` (as `ast.unparse` writes it)."""
    calls = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == called
    ]
    calls.sort(key=lambda node: (node.lineno, node.col_offset))
    node = calls[nth]
    return Frame(path, node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)


def site(
    text: str, role: str, *called: str, path: str = PATH, library: str = "", keywords=(), images=()
) -> Site:
    """A call and the calls around it, the innermost first, all in one file."""
    return Site(role, [frame(text, one, path) for one in called], library, "", list(keywords), list(images))


def patched(text: str | bytes, settings: dict, sites: list[Site], arguments=(), **more) -> Patch:
    """The patch of one file."""
    data = text if isinstance(text, bytes) else text.encode()
    return patch(settings, sites, PATH, arguments, read=lambda path: data, **more)


def after(result: Patch) -> str:
    """The only changed file, as it is afterwards."""
    (change,) = result.changes
    return change.after.decode()
