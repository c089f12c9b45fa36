"""`python -m perfkit` is `perfkit`."""

from perfkit.cli import app

app(prog_name="perfkit")
