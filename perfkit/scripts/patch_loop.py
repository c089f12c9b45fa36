"""The edit for each switch: which call, which argument, which statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import libcst as cst

from perfkit.recipe import Value, switches
from perfkit.scripts import patch_libraries as libraries
from perfkit.scripts import patch_process as process
from perfkit.scripts.patch_autocast import Autocast
from perfkit.scripts.patch_call import argument, followed_by, with_argument, without_argument, written
from perfkit.scripts.patch_calls import Frame, Site
from perfkit.scripts.patch_model import argument_of, given_to_trainer, made, parameters
from perfkit.scripts.patch_source import Refused, Source
from perfkit.scripts.patch_values import Option, given_at, options, origin, packed, with_flag

_LOADER = {
    "batch_size": "batch_size", "workers": "num_workers", "persistent_workers": "persistent_workers",
    "prefetch_factor": "prefetch_factor", "pin_memory": "pin_memory",
}  # fmt: skip
"""Switch → argument of DataLoader."""
_LOADER_ORDER = (
    "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory",
    "drop_last", "timeout", "worker_init_fn",
)  # fmt: skip
_WITH_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context")
"""Arguments that a loader without workers refuses."""
_ROLES = dict.fromkeys(_LOADER, "loader") | {
    "non_blocking": "copy", "zero_grad_set_to_none": "zero_grad", "channels_last": "forward",
    "amp": "backward", "optimizer_impl": "optimizer", "compile": "forward", "compile_mode": "forward",
    "fp32_precision": "backward", "cudnn_benchmark": "backward",
}  # fmt: skip
_IMPLEMENTATIONS = {
    "fused": {"fused": "True", "foreach": ""},
    "foreach": {"foreach": "True", "fused": ""},
    "loop": {"foreach": "False", "fused": ""},
}


class LoopEdits:
    """Plans edits in the files of one script; arguments as for `patch.patch`."""

    def __init__(
        self,
        settings: Mapping[str, Value],
        sites: Sequence[Site],
        script: str,
        arguments: Sequence[str],
        device: str,
        read: Callable[[str], bytes],
    ) -> None:
        self.settings, self.sites, self.script, self.device = settings, sites, script, device
        self.arguments, self.notes = list(arguments), list[str]()
        self._read = read
        self.sources: dict[str, Source] = {}
        for path in dict.fromkeys([script, *(one.file for site in sites for one in site.frames)]):
            if f"{Path('site-packages')}" not in Path(path).parts:
                self.open(path)

    def open(self, path: str) -> Source:
        """The parsed file of a path."""
        if path not in self.sources:
            self.sources[path] = Source(path, self._read(path))
        return self.sources[path]

    def saved(self) -> tuple[Any, ...]:
        """What is planned so far."""
        return [*self.arguments], [*self.notes], {path: one.planned() for path, one in self.sources.items()}

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Drops what was planned since."""
        self.arguments, self.notes = saved[0], saved[1]
        for path, planned in saved[2].items():
            self.sources[path].restore(planned)

    def set(self, name: str, value: Value) -> list[str]:
        """Plans the edits of one switch; returns them in words.

        Raises:
            Refused: it cannot be done for the user.
        """
        library, sources = self._library(name), list(self.sources.values())
        flags = libraries.flags(library or self._library("workers"), sources, name, value)
        if flags:
            return [self._flag(flag, code) for flag, code in flags.items()]
        if library and (done := self._by_library(library, name, value)) is not None:
            return done
        if name in _LOADER:
            return self._loader(name, value)
        if name in process.SETTINGS:
            return process.set_switch(name, value, self.open(self.script), list(self.sources.values()))
        planner = getattr(self, f"_{name}", None)
        if planner is None:
            label = switches()[name].label
            raise Refused(
                f"{label} needs a change of the script's own code; perfkit export shows how it looks"
            )
        done = planner(value)
        return done if isinstance(done, list) else [done]

    # ------------------------------------------------------------ libraries

    def _site(self, role: str) -> Site | None:
        return next((site for site in self.sites if site.role == role), None)

    def _library(self, name: str) -> str:
        """The library that makes the call which a switch is about; empty if the script does."""
        site = self._site(_ROLES.get(name, ""))
        return site.library if site else ""

    def _by_library(self, library: str, name: str, value: Value) -> list[str] | None:
        """By the library's own option; None where the script's own code can be edited after all."""
        sources = list(self.sources.values())
        makers = [one for one in libraries.constructors(library, sources) if name in one.options]
        given = makers[0].options[name](value) if len(makers) == 1 else {}
        if given:
            return [self._arguments(makers[0].source, makers[0].call, given)]
        if len(makers) > 1:
            lines = " and ".join(one.source.where(one.call) for one in makers)
            names = ", ".join(makers[0].options[name](value))
            raise Refused(f"{lines} configure {library}: set {names} there")
        if hand := libraries.by_hand(library, name):
            raise Refused(hand)
        if name in ("channels_last", "compile", "fp32_precision", "cudnn_benchmark"):
            return None
        what = {"loader": "the loader is made", "optimizer": "the optimizer is made"}.get(
            _ROLES[name], "it is done"
        )
        raise Refused(f"{what} inside {library}; look for its own option for {switches()[name].label}")

    def _flag(self, flag: str, code: str) -> str:
        known = [one for source in self.sources.values() for _, one in options(source) if flag in one.names]
        names, action = (known[0].names, known[0].action) if known else ((flag,), "")
        self.arguments = with_flag(self.arguments, names, action, code)
        return f"command line: {flag} {code}".replace(" True", "")

    def _arguments(
        self, source: Source, call: cst.Call, given: Mapping[str, str], keywords: Sequence[str] = ()
    ) -> str:
        """Plans keyword arguments of a call; an empty value removes one."""
        for name, code in given.items():
            present = argument(call, name)
            if code and (present is None or source.code(present.value) != code):
                packed = name in keywords
                source.change(call, partial(with_argument, name=name, code=code, packed=packed))
            elif not code and present is not None:
                source.change(call, partial(without_argument, name=name))
        shown = ", ".join(f"{name}={code}" for name, code in given.items() if code)
        return f"{source.where(call)}: {shown}"

    # ------------------------------------------------------------ the loader

    def _loader(self, name: str, value: Value) -> list[str]:
        source, call, site = self._own(
            "loader", "the script uses no DataLoader: its own code loads the batches"
        )
        if any(one.star == "*" for one in call.args):
            raise Refused(f"{source.where(call)}: give {_LOADER[name]}={value} where *arguments is made")
        sampler = argument(call, "batch_sampler", _LOADER_ORDER)
        if name == "batch_size" and sampler and source.code(sampler.value) != "None":
            raise Refused(f"{source.where(call)}: the batch sampler decides the batch size; change it there")
        given = argument(call, "num_workers", _LOADER_ORDER)
        hidden = "num_workers" in site.keywords and given is None
        none = not hidden and (given is None or source.code(given.value) == "0")
        if name in _WITH_WORKERS and not self.settings.get("workers", not none):
            raise Refused(f"{switches()[name].label} acts only with loader workers")
        done = [self._value(source, call, site, _LOADER[name], repr(value), strict=name == "batch_size")]
        if name == "workers" and not value:
            for partner in _WITH_WORKERS:
                if argument(call, partner):
                    source.change(call, partial(without_argument, name=partner))
                elif partner in site.keywords:
                    off = "False" if partner == "persistent_workers" else "None"
                    source.change(call, partial(with_argument, name=partner, code=off, packed=True))
        return done

    def _value(self, source: Source, call: cst.Call, site: Site, name: str, code: str, strict: bool) -> str:
        """Plans an argument's value where it comes from; in the call itself unless that is `strict`."""
        present = argument(call, name, _LOADER_ORDER)
        value = present.value if present else packed(source, call, name)
        if value is not None:
            place, held = self._followed(source, value, site.frames)
            decides = origin(place, held, list(self.sources.values()))
            if isinstance(decides, Option):
                return self._option(decides, code)
            if decides is not None:
                owner = next(one for one in self.sources.values() if decides in one)
                if owner.code(decides) != code:
                    self._also_used(owner, place, held, value)
                owner.replace(decides, code)
                return f"{owner.where(decides)}: {name}={code}"
            if strict:
                raise Refused(f"{source.where(value)}: {name} is {source.code(value)}; make that {code}")
        inside = present is None and name in site.keywords
        edit = partial(with_argument, name=name, code=code, order=_LOADER_ORDER, packed=inside)
        source.change(call, edit)
        return f"{source.where(call)}: {name}={code}"

    def _followed(
        self, source: Source, value: cst.BaseExpression, frames: Sequence[Frame]
    ) -> tuple[Source, cst.BaseExpression]:
        """A parameter as the expression that the callers give for it, or as its default."""
        scope = source.function(value)
        if not (isinstance(value, cst.Name) and isinstance(scope, cst.FunctionDef) and len(frames) > 1):
            return source, value
        params = parameters(scope)
        parameter = next((one for one in params if one.name.value == value.value), None)
        if parameter is None:
            return source, value
        outer = self.open(frames[1].file)
        try:
            given = argument_of(outer.call_at(frames[1]), value.value, params.index(parameter), scope)
        except Refused:
            return (source, parameter.default) if parameter.default is not None else (source, value)
        return self._followed(outer, given, frames[1:])

    def _option(self, option: Option, code: str) -> str:
        if option.action or given_at(self.arguments, option.names) is not None:
            self.arguments = with_flag(self.arguments, option.names, option.action, code)
            return f"command line: {option.name} {code}"
        return option.set_default(code)

    def _also_used(
        self, owner: Source, place: Source, held: cst.BaseExpression, value: cst.BaseExpression
    ) -> None:
        """Notes other uses of a variable whose value is changed."""
        if isinstance(held, cst.Name) and owner is place:
            lines = sorted({owner.line(one) for one in owner.nodes(cst.Name) if one.value == held.value})
            others = [line for line in lines if line not in (owner.line(held), owner.line(value))][1:]
            if others:
                self.notes.append(f"{held.value} is also used in line {', '.join(map(str, others))}")

    # ------------------------------------------------------------ calls of the loop

    def _own(self, role: str, missing: str) -> tuple[Source, cst.Call, Site]:
        """The user's own call of a role."""
        site = self._site(role)
        if site is None or not site.frames:
            raise Refused(missing)
        source = self.open(site.frames[0].file)
        return source, source.call_at(site.frames[0]), site

    def _calls(self, role: str) -> Iterator[tuple[Source, cst.Call, Site]]:
        """Every call of a role in the script's own code."""
        for site in self.sites:
            if site.role == role and site.frames and not site.library:
                source = self.open(site.frames[0].file)
                yield source, source.call_at(site.frames[0]), site

    def _non_blocking(self, value: Value) -> list[str]:
        self._own("copy", "no copy of a batch to the device was seen")
        given = {"non_blocking": str(value)}
        return [
            self._arguments(source, call, given, site.keywords) for source, call, site in self._calls("copy")
        ]

    def _zero_grad_set_to_none(self, value: Value) -> list[str]:
        if value and self._site("zero_grad") is None:
            return []
        source, call, site = self._own(
            "zero_grad", "no call of zero_grad was seen: set the gradients to None where they are zeroed"
        )
        present = argument(call, "set_to_none", ("set_to_none",))
        if present is not None and (present.keyword is None or value):
            source.replace(present.value, str(value))
            return [f"{source.where(call)}: set_to_none={value}"]
        if value:
            return []
        return [self._arguments(source, call, {"set_to_none": str(value)}, site.keywords)]

    def _optimizer_impl(self, value: Value) -> list[str]:
        self._own("optimizer", "no optimizer of torch was seen")
        given = _IMPLEMENTATIONS.get(str(value), {"fused": "", "foreach": ""})
        return [
            self._arguments(source, call, given, tuple(given)) for source, call, _ in self._calls("optimizer")
        ]

    # ------------------------------------------------------------ the model

    def _channels_last(self, value: Value) -> list[str]:
        if not value:
            raise Refused("remove the .to(memory_format=torch.channels_last) of the model and of its inputs")
        to_last = ".to(memory_format=torch.channels_last)"
        done = self._on_models(to_last)
        for source, call, site in self._calls("forward"):
            images = [image for name in site.images if (image := written(call, name))]
            if len(images) < len(site.images):
                self.notes.append(f"{source.where(call)}: an input is not written out, and stays as it is")
            for given in images:
                if "channels_last" not in source.code(given.value):
                    process.needs_torch(source)
                    source.change(given.value, partial(followed_by, code=to_last))
                    done.append(f"{source.where(call)}: {source.code(given.value)}{to_last}")
        return done

    def _compile(self, value: Value) -> list[str]:
        compiled = self._site("compile")
        if not value:
            if compiled is None:
                return []
            raise Refused("remove the call of torch.compile")
        if compiled is not None:
            return []
        mode = str(self.settings.get("compile_mode", "default"))
        return self._on_models(".compile()" if mode == "default" else f'.compile(mode="{mode}")')

    def _compile_mode(self, value: Value) -> list[str]:
        compiled = self._site("compile")
        if compiled is None or not compiled.frames:
            if self.settings.get("compile"):
                return []
            raise Refused("Compile mode acts only with torch.compile")
        source = self.open(compiled.frames[0].file)
        return [self._arguments(source, source.call_at(compiled.frames[0]), {"mode": f'"{value}"'})]

    def _on_models(self, call: str) -> list[str]:
        """Plans a statement on each model, where it is complete."""
        done = []
        for site in self.sites:
            if site.role == "forward" and site.frames:
                trainer = site.library and given_to_trainer(list(self.sources.values()))
                place = trainer or made(site, self.open)
                if "torch." in call:
                    process.needs_torch(place.source)
                place.source.insert(place.block, place.at, [f"{place.name}{call}"])
                done.append(f"{Path(place.source.path).name}: {place.name}{call}")
        if not done:
            raise Refused("no call of the model was seen")
        return list(dict.fromkeys(done))

    def _amp(self, value: Value) -> list[str]:
        return Autocast(self.sites, self.open, self.device).set(str(value))
