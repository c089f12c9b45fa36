"""The figures that the ladder's article published (`article.toml`). Nothing is fitted to them."""

import msgspec
from msgspec import Struct

from perfkit import lookup

WORKLOAD = "perfkit.workloads.cifar_resnet18:CifarResNet18"
IMAGE_SIZE = 224


class Published(Struct, frozen=True, kw_only=True):
    """A stage of the article."""

    stage: str
    batch_size: int
    samples_per_s: float


class Article(Struct, frozen=True, kw_only=True):
    """All stages of the article, and the cost of loading its images."""

    stages: list[Published]
    fetch_shares: dict[str, float]


ARTICLE = msgspec.convert(lookup.toml(__package__, "article"), Article)
LADDER = tuple(stage.stage for stage in ARTICLE.stages[1:])  # the article's optimizations, in its order
