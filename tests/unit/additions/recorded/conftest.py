"""The fixtures of every panel."""

from tests.unit.notebook.conftest import _apart  # noqa: F401
