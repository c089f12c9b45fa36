"""What the ladder's article published (`article.toml`), beside predictions. Nothing is fitted to it."""

import statistics
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import msgspec
from msgspec import Struct

from perfkit.results.run import Run
from perfkit.show import sentences, units
from perfkit.show.document import Bullets, Col, Content, Section, tabulate

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
    inconsistencies: list[str]


_FIGURES = resources.files("perfkit.additions.simulate").joinpath("article.toml").read_bytes()
ARTICLE = msgspec.toml.decode(_FIGURES, type=Article)
LADDER = tuple(stage.stage for stage in ARTICLE.stages[1:])
"""Its optimizations, in its order."""
_COLUMNS = (
    Col("stage", lambda row: sentences.name(row[0])),
    Col("predicted samples/s", lambda row: sentences.rate(row[0])),
    Col("published", lambda row: row[1].samples_per_s, "{:,.0f}".format),
    Col("error", lambda row: row[2], "{:+.0%}".format),
)
"""Of a run, what is published of its stage, and the error."""


def is_articles(reference: str, options: Mapping[str, Any]) -> bool:
    """Whether a workload is the article's, at its sizes."""
    return reference == WORKLOAD and options.get("image_size") == IMAGE_SIZE


def published(stage: str) -> Published | None:
    """The article's figures of a stage; None where it has no such stage."""
    return next((figures for figures in ARTICLE.stages if figures.stage == stage), None)


def sections(runs: Sequence[Run]) -> list[Content]:
    """Predicted beside published; nothing unless GPU, host, workload and batch sizes are the article's."""
    rows: list[tuple[Run, Published, float]] = []
    for run in runs:
        figures, rate, known = published(run.stage), run.samples_per_s, run.simulated
        is_its = known and known.host == "article" and (run.device, run.workload) == (f"sim:{GPU}", WORKLOAD)
        if is_its and rate and figures and run.recipe["batch_size"] == figures.batch_size:
            rows.append((run, figures, rate.value / figures.samples_per_s - 1))
    if not rows:
        return []
    errors = [error for *_, error in rows]
    note = (
        f"Mean error of samples/s {units.percent(statistics.fmean(map(abs, errors)))}, worst "
        f"{max(errors, key=abs):+.0%}, over {len(errors)} stages. A small error of a later stage may be two "
        "that cancel: the gain of each stage is in the ladder, and that of the article on its card."
    )
    table = tabulate(_COLUMNS, rows, "Simulated, beside the article's figures", note)
    return [Section("Predicted beside published", [table, Bullets(ARTICLE.inconsistencies)])]
