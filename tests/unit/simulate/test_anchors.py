"""Stated errors: they belong to the constants in use, and bands follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perfkit.simulate import anchors, bands
from perfkit.simulate.anchors import Anchor, Anchors
from perfkit.simulate.constants import constants
from perfkit.simulate.gpus import GPUS


def test_errors_are_stated_for_the_constants_in_use() -> None:
    """Whoever changes a constant states new errors: `python -m benchmarks.fit_simulation --write`."""
    known = anchors.load()
    assert known.constants == constants().digest


@pytest.mark.parametrize(("key", "precision"), [(key, p) for key in GPUS for p in GPUS[key].anchored])
def test_every_precision_that_is_simulated_has_a_published_figure(key: str, precision: str) -> None:
    known = anchors.load()
    assert any((one.gpu, one.precision) == (key, precision) for one in known.anchors)


@pytest.mark.parametrize("name", ["rate", "channels_last", "compile"])
def test_errors_of_many_models_are_those_of_families_left_out(name: str) -> None:
    known = anchors.load()
    held = [one for one in known.anchors if one.claim == name and one.use == "held out"]
    assert len(held) > 50 and len({one.family for one in held}) > 10


def _anchor(error: float, **changed: Any) -> Anchor:
    given: dict[str, Any] = {
        "gpu": "rtx3090", "precision": "float16", "claim": "rate", "model": "m", "published": 100.0,
        "predicted": 100.0 * (1 + error), "use": "held out", "source": "s",
    }  # fmt: skip
    return Anchor(**{**given, **changed})


@pytest.fixture
def stated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Anchor]]:
    found: list[Anchor] = []
    monkeypatch.setattr(anchors, "load", lambda: Anchors("digest", found))
    bands.band.cache_clear()
    yield found
    bands.band.cache_clear()


def test_nine_of_ten_held_out_errors_are_within_the_band(stated: list[Anchor]) -> None:
    stated += [_anchor(i / 100) for i in range(101)]
    assert bands.band("rtx3090", "rate") == pytest.approx(0.9)


def test_half_is_as_wrong_as_twice(stated: list[Anchor]) -> None:
    stated += [_anchor(-0.5)] * 30
    assert bands.band("rtx3090", "rate") == pytest.approx(1.0)


def test_a_gpu_with_few_figures_that_were_fitted_is_no_better_than_those_held_out(
    stated: list[Anchor],
) -> None:
    stated += [_anchor(0.2)] * 30 + [_anchor(0.01, gpu="v100", use="fitted")]
    assert bands.band("v100", "rate") == pytest.approx(0.2)
    bands.band.cache_clear()
    stated.append(_anchor(0.4, gpu="v100", use="fitted"))
    assert bands.band("v100", "rate") == pytest.approx(0.4)


def test_a_claim_without_errors_of_its_own_has_those_of_rates(stated: list[Anchor]) -> None:
    stated += [_anchor(0.2)] * 30 + [_anchor(0.1, claim="channels_last")] * 30
    assert bands.band("rtx3090", "batch") == pytest.approx(0.2)
    assert bands.band("rtx3090", "channels_last") == pytest.approx(0.1)
