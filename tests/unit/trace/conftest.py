"""A recorded trace, read once for all tests of what is shown of it."""

from pathlib import Path

import pytest

from perfkit import trace

RECORDED = Path(__file__).parents[3] / "data" / "recordings" / "traces"


@pytest.fixture(scope="session")
def loaded() -> trace.Trace:
    return trace.load(RECORDED / "photos-baseline.pt.trace.json.gz")


@pytest.fixture(scope="session")
def analysis(loaded: trace.Trace) -> trace.Analysis:
    return trace.analyse(loaded)
