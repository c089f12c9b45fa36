"""What is seen of a pipeline that works on large images: on real transforms of torchvision."""

import itertools

import numpy
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import v2

from perfkit.additions.scripts import transforms as transforms_module
from perfkit.additions.scripts.transforms import late_shrink, timed

LARGE, SMALL = 200, 20


def image(kind):
    if kind == "PIL":
        return Image.new("RGB", (LARGE, LARGE))
    if kind == "array":
        return numpy.zeros((LARGE, LARGE, 3), dtype=numpy.uint8)
    return torch.zeros(3, LARGE, LARGE, dtype=torch.uint8)


def blurs(late, of=transforms):
    shrinks, blur = of.Resize((SMALL, SMALL)), of.GaussianBlur(5)
    return of.Compose([blur, shrinks] if late else [shrinks, blur])


@pytest.mark.parametrize("of", [transforms, v2])
@pytest.mark.parametrize("kind", ["PIL", "tensor"])
def test_a_transform_before_the_one_that_shrinks_is_late(of, kind, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(transforms_module, "own_time", lambda: float(next(ticks)))  # each takes 1 s
    pipeline = blurs(True, of)
    with timed([pipeline, pipeline]) as pipelines:
        pipeline(image(kind))
    late = late_shrink(pipelines, 2.0)
    assert (late.names, late.by, late.times) == (["GaussianBlur"], "Resize", (LARGE / SMALL) ** 2)
    assert late.part == pytest.approx(0.5 * (1 - 1 / late.times))
    assert [type(each).__name__ for each in pipeline.transforms] == ["GaussianBlur", "Resize"], "put back"


@pytest.mark.parametrize("pipeline", [
    blurs(False),
    transforms.Compose([transforms.PILToTensor(), transforms.RandomHorizontalFlip()]),
    transforms.Compose([]),
])  # fmt: skip
def test_a_pipeline_that_shrinks_first_or_not_at_all_is_not_late(pipeline):
    with timed([pipeline, "no pipeline", None]) as pipelines:
        pipeline(image("PIL"))
    assert late_shrink(pipelines, 1.0) is None


def test_arrays_are_images_too_and_a_label_is_none():
    shrink = transforms.Lambda(lambda sample: (sample[0][::10, ::10], sample[1]))
    pipeline = transforms.Compose([transforms.Lambda(lambda sample: sample), shrink])
    with timed([pipeline]) as pipelines:
        pipeline((image("array"), 7))
    assert late_shrink(pipelines, 1e-9).times == 100


def test_a_transform_that_raises_leaves_the_pipeline_as_it_was():
    def fail(sample):
        raise OSError("no such file")

    pipeline = transforms.Compose([fail])
    with pytest.raises(OSError, match="no such file"), timed([pipeline]):
        pipeline(image("PIL"))
    assert pipeline.transforms == [fail]
