"""The public names of `import perfkit`."""

import perfkit


def test_every_public_name_is_there_and_documented():
    assert len(perfkit.__all__) >= 13
    for name in perfkit.__all__:
        assert getattr(perfkit, name).__doc__
