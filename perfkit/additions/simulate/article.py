"""What the ladder's article published (`article.toml`). Nothing is fitted to it."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from perfkit import registry

WORKLOAD = "perfkit.workloads.cifar_resnet18:CifarResNet18"
GPU = "v100"
IMAGE_SIZE = 224


class Published(Struct, frozen=True, kw_only=True):
    """A stage of the article."""

    stage: str
    batch_size: int
    samples_per_s: float


class Article(Struct, frozen=True, kw_only=True):
    """All its stages, and what its images cost to load."""

    stages: list[Published]
    fetch_shares: dict[str, float]


ARTICLE = msgspec.convert(registry.toml(__package__, "article"), Article)
LADDER = tuple(stage.stage for stage in ARTICLE.stages[1:])  # its optimizations, in its order


def is_articles(reference: str, options: Mapping[str, Any]) -> bool:
    """Whether a workload is the article's, at its sizes."""
    return reference == WORKLOAD and options.get("image_size") == IMAGE_SIZE


def published(stage: str) -> Published | None:
    """The article's figures of a stage; None where it has no such stage."""
    return next((figures for figures in ARTICLE.stages if figures.stage == stage), None)
