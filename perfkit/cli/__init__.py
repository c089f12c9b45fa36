"""The command line. Each module adds its commands to the app; the app knows none of them."""

# The order of the imports is that of the headings in the help.
from perfkit.cli import compare, inspect, run, script
from perfkit.scripts import patch_command as patch
from perfkit.scripts import watch_command as watch

from perfkit.cli.app import app  # isort: skip - after the commands, which import the module of this name

__all__ = ["app", "compare", "inspect", "patch", "run", "script", "watch"]
