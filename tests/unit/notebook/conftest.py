"""An empty store for each test of a panel."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_store(data_dir: Path) -> None:
    """Runs of one test are not recalled by another."""
