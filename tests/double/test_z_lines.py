"""The lines of perfkit behind a test for CUDA were run by the tests of this folder; that they are right, a GPU must say."""

from pathlib import Path

import pytest

from tests.support import cuda_lines

SOURCE = """
def facts(device):
    if device.type != "cuda":
        return 1
    after_a_return = 2
def block(device):
    if device.type == "cpu":
        b = 3
    else:
        otherwise = 4
    if not on_gpu:
        d = 5
    if torch.cuda.is_initialized() and steps:
        asked = 6
    if needs == "cuda" and device != "cuda":
        return 7
    everywhere = 8
"""


def test_conditions_on_cuda_are_found():
    assert cuda_lines.in_source(SOURCE) == {5, 10, 14}


def test_lines_behind_a_test_for_cuda_were_run(request, cuda):
    run = {item.path.name for item in request.session.items}
    missing = {file.name for file in Path(__file__).parent.glob("test_*.py")} - run
    if missing or request.config.option.keyword:
        pytest.skip("lines for CUDA: only a run of the whole folder shows whether all were run")
    missing = cuda_lines.missing(cuda)
    assert missing == []
