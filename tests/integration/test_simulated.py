"""The ladder of the article on the simulated V100, beside what the article prints."""

import pytest

from perfkit.simulate import article, planning, source
from tests.unit.simulate.test_source import computed, here, stages

ARTICLE = (
    ("baseline", {}), ("data_loading", {"workers": 8}),
    ("pinning", {"pin_memory": True, "non_blocking": True}),
    ("batch_size", {"batch_size": 512}), ("uint8_copy", {"uint8_copy": True}),
    ("amp", {"amp": "fp16", "batch_size": 1024}), ("compile", {"compile": True}),
)  # fmt: skip


def test_the_articles_ladder(monkeypatch):
    """Mean error at most 10%, gains within 1.25, and every figure inside its printed band."""
    for module in (planning, source):
        monkeypatch.setattr(module, "call", here)
    runs = computed("sim:v100", None, stages(ARTICLE))
    errors, before = [], None
    for run in runs:
        published = article.published(run.stage)
        rate = run.samples_per_s
        errors.append(abs(rate.value / published.samples_per_s - 1))
        assert rate.low <= published.samples_per_s <= rate.high, run.stage
        if before:
            gain = published.samples_per_s / before
            ratio = run.speedup("previous")
            assert 1 / 1.25 < ratio.ratio / gain < 1.25, run.stage
            assert ratio.low <= gain <= ratio.high, run.stage
        before = published.samples_per_s
    assert sum(errors) / len(errors) < 0.10
    assert runs[0].facts["pace"].startswith("the loader decides")
    assert runs[3].peak_memory_bytes == pytest.approx(11.3e9, rel=0.05)
    [section] = article.sections(runs)
    assert [str(row[2]) for row in section.contents[0].rows] == [
        "400", "865", "1,200", "1,584", "1,670", "2,477", "3,268",
    ]  # fmt: skip
