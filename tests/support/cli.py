"""`perfkit` as one types it, in this process."""

import contextlib
from pathlib import Path

from typer.testing import CliRunner

from perfkit.cli import app

ROOT = Path(__file__).parents[2]


def perfkit(*arguments, code=0, cwd=ROOT):
    """A command in this process, with one fork server for all; it must end with `code`, or anyhow (None)."""
    with contextlib.chdir(cwd):
        done = CliRunner().invoke(app, arguments, prog_name="perfkit")
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert code in (None, done.exit_code), done.output
    assert "Traceback" not in done.output
    return done
