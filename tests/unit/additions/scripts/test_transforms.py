"""Transforms are timed in torchvision's own `Compose`, and nothing else changes for the script."""

import copy
import inspect
import pickle
import sys
import threading

import numpy
import pytest
import torch
from PIL import Image
from torchvision import transforms, tv_tensors
from torchvision.transforms import v2

from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.transforms import LIMIT, TransformTimes, merged

LARGE, SMALL = 96, 24
PLAIN = {
    transforms.Compose: ("__call__", vars(transforms.Compose)["__call__"]),
    v2.Compose: ("forward", vars(v2.Compose)["forward"]),
}


@pytest.fixture
def times():
    yield TransformTimes(lambda frame: iter(["/home/me/data.py:7"]))
    for kind, (name, plain) in PLAIN.items():
        assert vars(kind)[name] is plain, "put back"


def image(kind):
    torch.manual_seed(1)
    pixels = torch.randint(0, 256, (3, LARGE, LARGE), dtype=torch.uint8)
    if kind == "PIL":
        return Image.fromarray(pixels.permute(1, 2, 0).numpy())
    return tv_tensors.Image(pixels) if kind == "TVTensor" else pixels


def crops_late(of):
    blur = of.RandomApply([of.GaussianBlur(5)], p=0.9)
    return of.Compose([of.RandomHorizontalFlip(), of.ColorJitter(0.3, 0.3), blur, of.RandomCrop(SMALL)])


def as_array(image):
    return numpy.asarray(image)


@pytest.mark.parametrize(
    ("of", "kind"),
    [(transforms, "PIL"), (transforms, "tensor"), (v2, "PIL"), (v2, "tensor"), (v2, "TVTensor")],
)
def test_results_and_random_numbers_are_the_same_and_each_transform_is_noted(of, kind, times):
    pipeline, given = crops_late(of), image(kind)
    torch.manual_seed(0)
    plain = [as_array(pipeline(given)) for _ in range(5)]
    state = torch.get_rng_state()
    torch.manual_seed(0)
    with times.timing():
        timed = [pipeline(given) for _ in range(5)]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(numpy.array_equal(first, as_array(second)) for first, second in zip(plain, timed, strict=True))
    assert type(timed[0]) is type(pipeline(given))
    (seen,) = times.pipelines
    assert seen.place == "/home/me/data.py:7"
    assert seen.names == ("RandomHorizontalFlip", "ColorJitter", "GaussianBlur", "RandomCrop")
    assert {each.calls for each in seen.transforms} == {5}
    assert {each.size for each in seen.transforms} == {(LARGE, LARGE)}
    assert [each.after for each in seen.transforms] == [5 * LARGE**2] * 3 + [5 * SMALL**2]
    assert 0 < sum(each.seconds for each in seen.transforms) <= times.seconds


def test_an_image_that_is_not_square_has_its_width_first(times):
    with times.timing():
        transforms.Compose([transforms.ToTensor(), transforms.Resize((8, 16))])(Image.new("RGB", (64, 32)))
    assert [each.size for each in times.pipelines[0].transforms] == [(64, 32), (64, 32)]


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("problem", [OSError("no such file"), StopIteration(7), KeyboardInterrupt()])
def test_an_exception_is_the_script_s_own_and_leaves_nothing(kind, problem, times):
    def fail(image):
        raise problem

    with pytest.raises(type(problem)) as raised, times.timing():
        kind([fail])(image("PIL"))
    assert raised.value is problem and raised.value.__cause__ is None
    assert times.pipelines == []


def said(pipeline, /, *given, **named):
    try:
        return pipeline(*given, **named)
    except Exception as problem:
        return type(problem), str(problem)


@pytest.mark.parametrize("kind", PLAIN)
def test_wrong_uses_raise_what_they_raise_without_looks(kind, times):
    empty, number, of_number, without = (kind([abs]) for _ in range(4))
    empty.transforms, number.transforms, of_number.transforms = (), 7, [7]
    del without.transforms
    plain = [said(wrong, 1.0) for wrong in (empty, number, of_number, without)]
    plain += [said(kind([abs])), said(kind([abs]), 1.0, pipeline=2)]
    with times.timing():
        timed = [said(wrong, 1.0) for wrong in (empty, number, of_number, without)]
        timed += [said(kind([abs])), said(kind([abs]), 1.0, pipeline=2)]
    assert timed == plain


@pytest.mark.parametrize("kind", PLAIN)
def test_the_script_s_objects_are_as_they_are_without_looks(kind, times):
    """A reviewer's scripts copied, compared, pickled and set them, while they were replaced by wrappers."""
    found = []

    def look(given):
        found.append((pipeline.transforms is own, [*pipeline.transforms], vars(pipeline).keys()))
        copies = copy.deepcopy(pipeline), pickle.loads(pickle.dumps(kind([abs, float])))
        found.append([type(each) for each in copies])
        found.append(inspect.getsource(getattr(kind, PLAIN[kind][0])))
        pipeline.transforms = [abs]  # for the next call
        own.append(abs)  # for this one
        return given

    own = [look]
    pipeline = kind(own)
    attributes = vars(pipeline).keys()
    with times.timing():
        assert pipeline(-3) == 3
    assert found == [(True, [look], attributes), [kind, kind], inspect.getsource(PLAIN[kind][1])]
    assert pipeline.transforms == [abs]


def test_transforms_that_can_be_gone_through_only_once_are(times):
    once = transforms.RandomApply([abs], p=0.0)
    once.transforms = iter([abs])
    pipeline = transforms.Compose([once])
    with times.timing():
        assert pipeline(-1) == -1
        once.p = 1.0
        assert pipeline(-1) == 1, "a look has not used it up"
        pipeline.transforms = iter([abs])
        assert pipeline(-1) == 1
        assert pipeline(-1) == -1


@pytest.mark.parametrize("kind", PLAIN)
def test_a_subclass_and_another_thread_are_not_timed(kind, times):
    class Own(kind):
        pass

    with times.timing():
        assert Own([abs])(-1) == 1
        other = threading.Thread(target=kind([abs]), args=(-1,))
        other.start()
        other.join()
        assert times.pipelines == []
        assert kind([abs])(-1) == 1
    assert [seen.names for seen in times.pipelines] == [("builtin_function_or_method",)]


def own_call(self, img):
    for t in self.transforms:
        img = t(img)
    return img


def own_forward(self, *inputs):
    assert len(inputs) == 1
    return own_call(self, *inputs)


def other_call(self, *images):
    return PLAIN[type(self)][1](self, *images)


@pytest.mark.parametrize("own", [own_call, own_forward, other_call])
@pytest.mark.parametrize("kind", PLAIN)
def test_a_method_that_the_script_has_replaced_is_left_alone(kind, own, times, monkeypatch):
    name, plain = PLAIN[kind]
    with monkeypatch.context() as patched:
        patched.setitem(
            hooks.TABLES["pipelines"], f"{kind.__module__}.Compose.{name}", [*own.__code__.co_names]
        )
        patched.setattr(kind, name, own)
        with times.timing():
            assert vars(kind)[name] is own and kind([abs])(-1) == 1
    assert times.pipelines == []
    with times.timing():
        setattr(kind, name, own)
    is_kept = vars(kind)[name] is own
    setattr(kind, name, plain)
    assert is_kept


def test_nothing_is_replaced_where_torchvision_is_not_loaded_or_is_not_as_expected(times, monkeypatch):
    with monkeypatch.context() as patched:
        for place in hooks.TABLES["pipelines"]:
            patched.delitem(sys.modules, place.rsplit(".", 2)[0])
        with times.timing():
            assert transforms.Compose([abs])(-1) == 1
    with monkeypatch.context() as patched:
        patched.setitem(hooks.TABLES, "pipelines", {place: ["steps"] for place in hooks.TABLES["pipelines"]})
        with times.timing():
            assert v2.Compose([abs])(-1) == 1
    assert times.pipelines == []


def test_this_version_of_torchvision_is_as_expected(times):
    with times.timing():
        assert all(vars(kind)[name] is not plain for kind, (name, plain) in PLAIN.items())


def test_a_fetch_within_a_fetch_is_of_the_outer_one(times):
    with times.timing():
        with times.timing():
            transforms.Compose([abs])(-1)
        transforms.Compose([abs])(-1)
    assert times.pipelines[0].transforms[0].calls == 2


def test_only_the_first_batches_are_timed(times, monkeypatch):
    monkeypatch.setattr(LIMIT, "batches", 2)
    for _ in range(4):
        with times.timing():
            transforms.Compose([abs])(-1)
    assert times.pipelines[0].transforms[0].calls == 2


class Unnamed(type):
    @property
    def __module__(cls):
        raise AttributeError("no module")

    @property
    def __name__(cls):
        raise AttributeError("no name")


class Odd(metaclass=Unnamed):
    def __getattr__(self, name):
        raise AssertionError(f"{name} was asked for")

    def __call__(self, given):
        return self


@pytest.mark.parametrize("make", [
    Odd,
    lambda: numpy.zeros((8, 8, 3)),
    lambda: {"image": torch.zeros(8, 8)},
    tuple,
    lambda: torch.zeros(8),
])  # fmt: skip
def test_of_anything_else_than_an_image_no_size_is_known(make, times):
    given = make()
    with times.timing():
        assert transforms.Compose([lambda sample: sample])(given) is given
    (seen,) = times.pipelines[0].transforms
    assert (seen.name, seen.size, seen.before, seen.after) == ("<lambda>", (0, 0), 0, 0)


def test_a_transform_of_which_nothing_can_be_told_goes_on(times):
    odd = Odd()
    with times.timing():
        assert transforms.Compose([odd])(1) is odd


def test_an_image_with_its_boxes_has_the_size_of_the_image(times):
    with times.timing():
        v2.Compose([v2.CenterCrop(SMALL)])(image("tensor"), {"label": 3})
    (seen,) = times.pipelines[0].transforms
    assert (seen.size, seen.after) == ((LARGE, LARGE), SMALL**2)


def test_a_compiled_pipeline_is_compiled_as_torchvision_s_own(times, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with times.timing():
        assert transforms.Compose([abs])(-1) == 1
    assert times.pipelines == []


def test_the_same_pipelines_of_several_workers_are_one(times):
    with times.timing():
        transforms.Compose([transforms.CenterCrop(SMALL)])(image("PIL"))
        transforms.Compose([abs])(1)
    first, other = times.pipelines
    both = merged([first, other, first])
    (crop,) = both[0].transforms
    assert [seen.names for seen in both] == [("CenterCrop",), ("builtin_function_or_method",)]
    assert (crop.calls, crop.before, crop.after) == (2, 2 * LARGE**2, 2 * SMALL**2)
    assert first.transforms[0].calls == 1, "as it was"
