"""The pages of `pk.pipeline()` and `pk.climb()`."""

import pytest

from perfkit import notebook as pk
from tests.support.pages import assert_framed_whole


@pytest.mark.parametrize(
    ("page", "title"),
    [(pk.pipeline, "The pipeline of a training step"), (pk.climb, "Climb it yourself")],
)
def test_the_page_is_framed_whole_and_loads_nothing(page, title):
    assert_framed_whole(page().data, title)
