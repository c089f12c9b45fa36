"""The command line. Each module adds its commands to the app; the app knows none of them."""

# The order of the imports is that of the headings in the help.
from perfkit.cli import run, compare, inspect, watch, patch, script, room  # noqa: I001
from perfkit.cli.app import app

__all__ = ["app", "compare", "inspect", "patch", "room", "run", "script", "watch"]
