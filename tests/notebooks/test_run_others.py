"""Every second notebook, as in `test_run.py`, in a kernel of its own: two processes share the longest file."""

import pytest

from tests.notebooks import test_run

pytestmark = test_run.pytestmark
kernel = test_run.kernel


@pytest.mark.parametrize("path", test_run.NOTEBOOKS[1::2], ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, kernel):
    test_run.runs_from_top_to_bottom(path, kernel)
