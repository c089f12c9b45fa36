import itertools
from typing import Any

import pytest
import torch

from perfkit.recipe import Recipe
from perfkit.train import train
from perfkit.workloads import bottlenecks, options_for


def losses(workload: Any, steps: int) -> list[float]:
    training = train(Recipe(batch_size=4), workload, torch.device("cpu"))
    return [loss.item() for loss in itertools.islice(training, steps)]


@pytest.mark.parametrize("kind", [bottlenecks.Chatty, bottlenecks.DataBound, bottlenecks.DeviceBound])
def test_each_trains(kind: Any) -> None:
    assert all(loss > 0 for loss in losses(kind(**options_for(kind, "smoke", {})), steps=2))


def test_without_reading_it_is_the_same_training() -> None:
    chatty, clean = (bottlenecks.Chatty(clean) for clean in (False, True))
    assert losses(chatty, steps=3) == pytest.approx(losses(clean, steps=3))
    assert len(chatty.history) == 3
    assert not clean.history
