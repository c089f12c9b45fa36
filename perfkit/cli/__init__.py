"""The command line. Each module adds its commands to the app; the app knows none of them."""

from perfkit.cli import compare, inspect, trace  # noqa: F401  (each registers its commands)
from perfkit.cli.app import app

__all__ = ["app"]
