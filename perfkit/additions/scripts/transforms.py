"""Times the transforms that torchvision's `Compose` calls, while a batch is loaded that is looked at."""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import torch

from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.messages import Pipeline, Transform, limits
from perfkit.additions.shared.clock import clock

LIMIT = limits("transforms")
_HOLDERS = (list, tuple, torch.nn.ModuleList)  # of what a `RandomApply` applies: a look uses none of these up
_IMAGES = ("PIL.", "torchvision.tv_tensors._image")  # modules of classes of images


class Method(NamedTuple):
    """A method of a class of torchvision that calls transforms in turn."""

    kind: type[Any]
    name: str
    plain: Callable[..., Any]


class TransformTimes:
    """The times of transforms in the pipelines of a data set, and the sizes of the images before and after.

    The user's objects are left as they are: the method of torchvision's own class is replaced meanwhile, by
    one that runs it on an object in place of the pipeline. `users_lines`: the user's lines of a stack.
    """

    def __init__(self, users_lines: Callable[[FrameType], Iterator[str]]) -> None:
        self.pipelines: list[Pipeline] = []
        self.seconds = 0.0  # of all batches that were timed
        self._users_lines = users_lines
        self._batches = 0
        self._thread = 0  # the one that loads the batch under way, if it is timed

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Times transforms meanwhile, in this thread; only in the first batches."""
        methods = list(_methods()) if self._batches < LIMIT.batches else []
        if not methods:
            yield
            return
        self._batches += 1
        self._thread = threading.get_ident()
        replaced = list[tuple[Method, Callable[..., Any]]]()
        start = clock()
        try:
            for method in methods:
                timed = self._timed(method)
                replaced.append((method, timed))
                setattr(method.kind, method.name, timed)
            yield
        finally:
            for method, timed in replaced:
                if vars(method.kind).get(method.name) is timed:  # else the script has replaced it meanwhile
                    setattr(method.kind, method.name, method.plain)
            self._thread = 0
            self.seconds += clock() - start

    def _timed(self, method: Method) -> Callable[..., Any]:
        """A method in place of torchvision's; subclasses and other threads get that."""

        @functools.wraps(method.plain)
        def call(pipeline: Any, /, *images: Any, **named: Any) -> Any:
            is_compiling = torch.compiler.is_compiling()
            if is_compiling or type(pipeline) is not method.kind or threading.get_ident() != self._thread:
                return method.plain(pipeline, *images, **named)
            seen = list[Transform]()
            # Not a list: the method takes transforms one by one, and they may change meanwhile.
            each_timed = map(functools.partial(_noted, seen), pipeline.transforms)
            in_place = SimpleNamespace(transforms=each_timed)
            output = method.plain(in_place, *images, **named)
            with contextlib.suppress(Exception):
                self._add(seen)
            return output

        return call

    def _add(self, seen: list[Transform]) -> None:
        new = Pipeline(transforms=seen)
        if all(known.names != new.names for known in self.pipelines):
            new = Pipeline(next(self._users_lines(sys._getframe()), ""), seen)
        self.pipelines = merged([*self.pipelines, new])


def _methods() -> Iterator[Method]:
    """The methods that can be replaced: torchvision is loaded, and they are its own, as they are known."""
    for place, names in hooks.TABLES["pipelines"].items():
        module_name, kind_name, name = place.rsplit(".", 2)
        module = sys.modules.get(module_name)
        kind = getattr(module, kind_name, None)
        plain = vars(kind).get(name) if isinstance(kind, type) else None
        if isinstance(kind, type) and isinstance(plain, FunctionType):
            code = plain.__code__
            is_own = code.co_filename == getattr(module, "__file__", None)
            if is_own and [*code.co_names] == names and not code.co_freevars:
                yield Method(kind, name, plain)


def _noted(seen: list[Transform], transform: Any) -> Callable[..., Any]:
    """A function that calls a transform, and adds what is seen of it."""

    def call(*images: Any) -> Any:
        before = _size(images)
        start = clock()
        output = transform(*images)
        seconds = clock() - start
        with contextlib.suppress(Exception):
            after = _size(output)
            pixels = before[0] * before[1], after[0] * after[1]
            seen.append(Transform(_name(transform), 1, seconds, before, *pixels))
        return output

    return call


def _size(image: Any) -> tuple[int, int]:
    """Width and height of an image, or of the first of several; zeros of anything else.

    Nothing of the user's is called for it: not of a class that only behaves as an image.
    """
    with contextlib.suppress(Exception):
        if type(image) is tuple:
            image = image[0]
        kind = type(image)
        if kind.__module__.startswith(_IMAGES[0]):
            return int(image.size[0]), int(image.size[1])
        if (kind is torch.Tensor or kind.__module__ == _IMAGES[1]) and image.dim() >= 2:
            return int(image.shape[-1]), int(image.shape[-2])
    return 0, 0


def _name(transform: Any) -> str:
    """The class of a transform, or the name of a function; of a `RandomApply`, what it applies."""
    kind = type(transform)
    if kind is FunctionType:
        return str(transform.__name__)
    if kind.__name__ == "RandomApply" and kind.__module__.startswith("torchvision.transforms."):
        inner = transform.transforms
        if type(inner) in _HOLDERS and len(inner) == 1:
            return _name(inner[0])
    return kind.__name__


def merged(pipelines: Iterable[Pipeline]) -> list[Pipeline]:
    """Pipelines, those with the same transforms as one."""
    by_names = dict[tuple[str, ...], Pipeline]()
    for pipeline in pipelines:
        known = by_names.get(pipeline.names)
        by_names[pipeline.names] = known.with_calls_of(pipeline) if known else pipeline
    return list(by_names.values())
