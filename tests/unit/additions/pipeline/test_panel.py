"""The page of `pk.pipeline()`."""

from perfkit import notebook as pk
from tests.support.pages import assert_framed_whole


def test_the_page_is_framed_whole_and_loads_nothing():
    assert_framed_whole(pk.pipeline().data, "The pipeline of a training step")
