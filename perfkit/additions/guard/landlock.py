"""The kernel keeps a script, and every process that it starts, from changing files outside some folders.

This is Landlock (`man 7 landlock`). It needs no privileges, holds for C and Rust code too, and cannot be
taken back. It does not keep permissions, times and attributes of a file from being changed.
"""

import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Iterable

# Numbers of system calls, on every architecture that torch is built for.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH, _SET_NO_NEW_PRIVS = 1, 1, 38
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_REMOVE_OR_MAKE = sum(1 << bit for bit in range(4, 13))
_LEAST = 2  # version 1 (Linux 5.13) refuses moves between folders, on which caches of compilers rely
_WITH_TRUNCATE = 3  # the version (Linux 6.2) that can refuse `truncate`


def version() -> int:
    """The version of Landlock that this kernel has; 0 if it has none."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError):
            return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    return 0


def is_there() -> bool:
    """Whether this kernel can keep a script from the user's files."""
    return version() >= _LEAST


def restrict(folders: Iterable[str]) -> None:
    """Lets this thread, and what it starts from now on, change files below these folders only.

    Folders that do not exist are made, because a rule needs one. Raises `OSError` where the kernel refuses.
    """
    rights = _WRITE_FILE | _REMOVE_OR_MAKE | _REFER
    if version() >= _WITH_TRUNCATE:
        rights |= _TRUNCATE
    handled = struct.pack("=Q", rights)  # `struct landlock_ruleset_attr` of the first version
    ruleset = _call(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), ctypes.c_uint32(0))
    for folder in folders:
        with contextlib.suppress(OSError):  # it may be a file, or in a folder that cannot be changed
            os.makedirs(folder, exist_ok=True)
        if os.path.isdir(folder):
            parent = os.open(folder, os.O_PATH | os.O_CLOEXEC)  # O_PATH: it may be unreadable
            rule = struct.pack("=Qi", rights, parent)  # `struct landlock_path_beneath_attr`
            _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
            os.close(parent)
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))):
        raise OSError(ctypes.get_errno(), "the kernel refuses PR_SET_NO_NEW_PRIVS")
    _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)


def _call(number: int, *arguments: object) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        reason = f"the kernel refuses a rule of Landlock: {os.strerror(ctypes.get_errno())}"
        raise OSError(ctypes.get_errno(), reason)
    return result
