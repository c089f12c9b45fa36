"""The edit for each switch: which call, which argument, which statement."""

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perfkit.recipe import Value, switches
from perfkit.scripts import patch_libraries as libraries
from perfkit.scripts.patch_autocast import Autocast
from perfkit.scripts.patch_calls import Frame, Site
from perfkit.scripts.patch_libraries import Option
from perfkit.scripts.patch_source import Function, Refused, Source, argument, assigned

_LOADER = {
    "batch_size": "batch_size",
    "workers": "num_workers",
    "prefetch_factor": "prefetch_factor",
    "pin_memory": "pin_memory",
}
"""Switch → argument of DataLoader."""
_LOADER_ORDER = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
)
_WITH_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context")
"""Arguments that a loader without workers refuses."""
_ROLES = dict.fromkeys(_LOADER, "loader") | {
    "non_blocking": "copy",
    "zero_grad_set_to_none": "zero_grad",
    "channels_last": "forward",
    "amp": "backward",
    "optimizer_impl": "optimizer",
    "compile": "forward",
    "compile_mode": "forward",
    "fp32_precision": "backward",
    "cudnn_benchmark": "backward",
}
"""Switch → the call that it is about: a library that makes this call has an option for the switch."""
_IMPLEMENTATIONS = {"fused": {"fused": "True"}, "foreach": {"foreach": "True"}, "loop": {"foreach": "False"}}
_FP32 = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")


class Edits:
    """Plans the edit of one switch in the files of a script.

    Args:
        settings: all switches that are to be set.
        sites: the calls that were seen while the script trained.
        script: absolute path of the file that is started.
        arguments: the script's command line.
        device: where it trains.
        read: gives the content of a file.
    """

    def __init__(
        self,
        settings: Mapping[str, Value],
        sites: Sequence[Site],
        script: str,
        arguments: Sequence[str],
        device: str,
        read: Callable[[str], bytes],
    ) -> None:
        self.settings = settings
        self.sites = sites
        self.script = script
        self.device = device
        self.arguments = list(arguments)
        self.done: list[str] = []
        self._read = read
        self.sources: dict[str, Source] = {}
        for path in [script, *(frame.file for site in sites for frame in site.frames)]:
            if "site-packages" not in Path(path).parts:
                self.open(path)

    def open(self, path: str) -> Source:
        """The parsed file of a path."""
        if path not in self.sources:
            self.sources[path] = Source(path, self._read(path))
        return self.sources[path]

    def set(self, name: str, value: Value) -> list[str]:
        """Plans the edits of one switch; returns them in words, nothing where the script has it already.

        Raises:
            Refused: it cannot be done for the user.
        """
        self.done = []
        if not self._by_option(name, value) and not self._by_library(name, value):
            if name in _LOADER:
                self._loader(name, value)
            else:
                planner = getattr(self, f"_{name}", None)
                if planner is None:
                    label = switches()[name].label
                    raise Refused(
                        f"{label} needs a change of the script's own code; see `perfkit diff {name}`"
                    )
                planner(value)
        return self.done

    # ------------------------------------------------------------ options of the script and of libraries

    def _by_option(self, name: str, value: Value) -> bool:
        """By an option of the script's own command line that is called as the switch is."""
        values = libraries.flags(
            self._library(name) or self._library("workers"), self.sources.values(), name, value
        )
        for flag, code in values.items():
            known = libraries.options(self.sources.values())
            option = next(
                (option for _, option in known if flag in option.names), Option((flag,), "", None, None)
            )
            self._set_option(option, code)
        return bool(values)

    def _set_option(self, option: Option, code: str) -> None:
        before = [*self.arguments]
        self.arguments = option.set_in(self.arguments, code)
        if self.arguments != before:
            self.done.append(f"command line: {option.name} {code}".removesuffix(" True"))

    def _by_library(self, name: str, value: Value) -> bool:
        """By the option of the library that makes the call; False where the script's own code makes it."""
        library = self._library(name)
        if not library:
            return False
        makers = libraries.constructors(library, self.sources.values(), name)
        if len(makers) > 1:
            lines = " and ".join(source.where(call) for source, call, _ in makers)
            raise Refused(f"{lines} configure {library}: set {', '.join(makers[0][2](value))} there")
        for source, call, option in makers:
            self._set_arguments(source, call, option(value))
            return True
        if hand := libraries.by_hand(library, name):
            raise Refused(hand)
        if _ROLES[name] == "forward" or name in ("fp32_precision", "cudnn_benchmark"):
            return False
        raise Refused(f"{library} does this itself; look for its own option for {switches()[name].label}")

    def _library(self, name: str) -> str:
        return next((site.library for site in self.sites if site.role == _ROLES.get(name)), "")

    # ------------------------------------------------------------ arguments of calls

    def _set_arguments(self, source: Source, call: ast.Call, values: Mapping[str, str]) -> None:
        """Plans arguments of a call; an empty value removes one."""
        planned = len(source.edits)
        for name, code in values.items():
            if code:
                source.set_argument(call, name, code)
            else:
                source.remove_argument(call, name)
        if len(source.edits) > planned:
            shown = ", ".join(f"{name}={code}" for name, code in values.items() if code)
            self.done.append(f"{source.where(call)}: {shown}")

    def calls(self, role: str, missing: str = "") -> list[tuple[Source, ast.Call, Site]]:
        """Every call of a role in the script's own code."""
        sites = [site for site in self.sites if site.role == role and site.frames and not site.library]
        if missing and not sites:
            raise Refused(missing)
        return [
            (self.open(site.frames[0].file), self.open(site.frames[0].file).call_at(site.frames[0]), site)
            for site in sites
        ]

    def _loader(self, name: str, value: Value) -> None:
        missing = "the script uses no DataLoader: its own code loads the batches"
        source, call, site = self.calls("loader", missing)[0]
        sampler = argument(call, "batch_sampler", _LOADER_ORDER)
        if name == "batch_size" and sampler and source.code(sampler) != "None":
            raise Refused(f"{source.where(call)}: the batch sampler decides the batch size; change it there")
        workers = argument(call, "num_workers", _LOADER_ORDER)
        has_workers = source.code(workers) != "0" if workers else "num_workers" in site.keywords
        if name == "prefetch_factor" and not self.settings.get("workers", has_workers):
            raise Refused(f"{switches()[name].label} acts only with loader workers")
        keyword, code = _LOADER[name], repr(value)
        present = argument(call, keyword, _LOADER_ORDER)
        if present is None:
            planned = len(source.edits)
            source.set_argument(call, keyword, code, _LOADER_ORDER)
            self.note(source, call, planned, f"{keyword}={code}")
        else:
            self._change_value(source, present, site.frames, keyword, code)
        if name == "workers" and not value:
            for partner in _WITH_WORKERS:
                source.remove_argument(call, partner)

    def note(self, source: Source, node: ast.AST, planned: int, text: str) -> None:
        """Says what was changed, if more edits than those planned before are there."""
        if len(source.edits) > planned:
            self.done.append(f"{source.where(node)}: {text}")

    def _change_value(
        self, source: Source, value: ast.expr, frames: Sequence[Frame], name: str, code: str
    ) -> None:
        """Plans another value where it comes from: a literal, a variable's only assignment, an option."""
        planned = len(source.edits)
        if isinstance(value, ast.Constant):
            source.replace(value, code)
            self.note(source, value, planned, f"{name}={code}")
            return
        if isinstance(value, ast.Attribute):
            known = [
                option for held, option in libraries.options(self.sources.values()) if held == value.attr
            ]
            if len(known) == 1:
                self._change_option(known[0], code)
                return
        if isinstance(value, ast.Name):
            scope = source.function(value)
            if scope and value.id in _parameters(scope):
                outer, given = self._given(source, scope, value.id, frames)
                self._change_value(outer, given, frames[1:], name, code)
                return
            for place in dict.fromkeys((scope, None)):
                held = source.assignments(value.id, place)
                if (
                    len(held) == 1
                    and isinstance(held[0], ast.Assign)
                    and isinstance(held[0].targets[0], ast.Name)
                ):
                    self._change_value(source, held[0].value, frames, name, code)
                    return
        raise Refused(f"{source.where(value)}: {name} is {source.code(value)}; make that {code}")

    def _change_option(self, option: Option, code: str) -> None:
        if option.action or option.at(self.arguments) is not None or not (option.source and option.call):
            self._set_option(option, code)
            return
        planned = len(option.source.edits)
        option.source.set_argument(option.call, "default", code)
        self.note(option.source, option.call, planned, f"the default of {option.name} is {code}")

    def _given(
        self, source: Source, function: Function, name: str, frames: Sequence[Frame]
    ) -> tuple[Source, ast.expr]:
        """The expression that the caller of a function gives for a parameter, or the parameter's default."""
        names = _parameters(function)
        if len(frames) > 1:
            outer = self.open(frames[1].file)
            call = outer.call_at(frames[1])
            explicit = bool(call.args) and isinstance(call.args[0], ast.Name) and call.args[0].id == names[0]
            bound = names[0] in ("self", "cls") and not explicit
            value = argument(call, name, names[1:] if bound else names)
            if value is not None:
                return outer, value
        defaults = [*function.args.posonlyargs, *function.args.args]
        for parameter, default in zip(reversed(defaults), reversed(function.args.defaults), strict=False):
            if parameter.arg == name:
                return source, default
        raise Refused(f"{source.where(function)}: what {name} is cannot be followed; change it by hand")

    def _non_blocking(self, value: Value) -> None:
        for source, call, _ in self.calls("copy", "no copy of a batch to the device was seen"):
            self._set_arguments(source, call, {"non_blocking": str(value)})

    def _zero_grad_set_to_none(self, value: Value) -> None:
        missing = "" if value else "no call of zero_grad was seen: fill the gradients with zeros there"
        for source, call, _ in self.calls("zero_grad", missing):
            present = argument(call, "set_to_none", ("set_to_none",))
            planned = len(source.edits)
            if present is not None or not value:
                source.set_argument(call, "set_to_none", str(value), ("set_to_none",))
            self.note(source, call, planned, f"set_to_none={value}")

    def _optimizer_impl(self, value: Value) -> None:
        for source, call, _ in self.calls("optimizer", "no optimizer of torch was seen"):
            self._set_arguments(
                source, call, {"fused": "", "foreach": ""} | _IMPLEMENTATIONS.get(str(value), {})
            )

    # ------------------------------------------------------------ settings of the process

    def _cudnn_benchmark(self, value: Value) -> None:
        self._assign("torch.backends.cudnn.benchmark", str(value))

    def _fp32_precision(self, value: Value) -> None:
        older = self._holders(".allow_tf32")
        for source, statement in older:
            source.replace(statement.value, str(value == "tf32"))
            self.done.append(f"{source.where(statement)}: allow_tf32 = {value == 'tf32'}")
        for part in () if older or value == "default" else _FP32:
            self._assign(f"torch.backends.{part}.fp32_precision", f'"{value}"')

    def _cpu_threads(self, value: Value) -> None:
        for source in self.sources.values():
            for call in source.calls():
                if isinstance(call.func, ast.Attribute) and call.func.attr == "set_num_threads" and call.args:
                    planned = len(source.edits)
                    source.replace(call.args[0], str(value))
                    self.note(source, call, planned, f"set_num_threads({value})")
                    return
        self._after_imports(f"torch.set_num_threads({value})")

    def _holders(self, ending: str) -> list[tuple[Source, ast.Assign]]:
        return [
            (source, node)
            for source in self.sources.values()
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Assign) and any(f".{name}".endswith(ending) for name in assigned(node))
        ]

    def _assign(self, target: str, code: str) -> None:
        short = target.removeprefix("torch.backends.")
        holders = self._holders(f".{short}")
        for source, statement in holders:
            planned = len(source.edits)
            source.replace(statement.value, code)
            self.note(source, statement, planned, f"{short} = {code}")
        if not holders:
            self._after_imports(f"{target} = {code}")

    def _after_imports(self, line: str) -> None:
        source = self.open(self.script)
        source.insert_after_imports([line])
        self.done.append(f"{Path(source.path).name}: {line}")

    # ------------------------------------------------------------ the model

    def _compile(self, value: Value) -> None:
        if any(site.role == "compile" for site in self.sites) != bool(value):
            if not value:
                raise Refused("remove the call of torch.compile")
            mode = str(self.settings.get("compile_mode", "default"))
            self._on_models(".compile()" if mode == "default" else f'.compile(mode="{mode}")')

    def _compile_mode(self, value: Value) -> None:
        calls = self.calls("compile")
        for source, call, _ in calls:
            self._set_arguments(source, call, {"mode": f'"{value}"'})
        if not calls and not self.settings.get("compile"):
            raise Refused("Compile mode acts only with torch.compile")

    def _channels_last(self, value: Value) -> None:
        suffix = ".to(memory_format=torch.channels_last)"
        if not value:
            raise Refused(f"remove the {suffix} of the model and of its inputs")
        self._on_models(suffix)
        for source, call, site in self.calls("forward"):
            for image in site.images:
                given = argument(call, image)
                if image.isdigit() and int(image) < len(call.args):
                    given = call.args[int(image)]
                if given is None:
                    raise Refused(f"{source.where(call)}: add {suffix} to the images that the model gets")
                text = source.code(given)
                simple = isinstance(given, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
                if "channels_last" not in text:
                    source.insert_after_imports([])
                    source.replace(given, f"{text if simple else f'({text})'}{suffix}")
                    self.done.append(f"{source.where(call)}: {text}{suffix}")

    def _on_models(self, call: str) -> None:
        """Plans a statement on each model, after its last assignment and before it is called."""
        seen = False
        for site in self.sites:
            if site.role == "forward" and site.frames:
                seen = True
                source, statement, name, before = self._maker(site)
                planned = len(source.edits)
                if "torch." in call:
                    source.insert_after_imports([])
                (source.insert_before if before else source.insert_after)(statement, [f"{name}{call}"])
                if len(source.edits) > planned:
                    self.done.append(f"{Path(source.path).name}: {name}{call}")
        if not seen:
            raise Refused("no call of the model was seen")

    def _maker(self, site: Site) -> tuple[Source, ast.stmt, str, bool]:
        """The statement at which a model is complete, its name there, and whether an edit goes before it."""
        if site.library and (trained := libraries.given_to_trainer(self.sources.values())):
            return *trained, True
        frames = list(site.frames)
        source = self.open(frames[0].file)
        value: ast.expr = source.call_at(frames[0]).func
        while True:
            name, scope = source.code(value), source.function(value)
            if name.split(".")[0] == "self":
                return *self._in_class(source, value, name), False
            held = source.assignments(name, scope)
            if not held and scope and name in _parameters(scope):
                source, value = self._given(source, scope, name, frames)
                frames = frames[1:]
                if not isinstance(value, ast.Name | ast.Attribute):
                    break
                continue
            held = held or source.assignments(name, None)
            if not held:
                break
            return source, self._last(source, held, value, name), name, False
        raise Refused(f"{source.where(value)}: where the model is made cannot be followed")

    def _last(self, source: Source, held: Sequence[ast.stmt], used: ast.AST, name: str) -> ast.stmt:
        """The last statement that assigns the model, in the block in which it is used or made."""
        before = [node for node in held if node.lineno <= used.lineno] or list(held)  # type: ignore[attr-defined]
        for block, _ in source.blocks(before[-1]):
            holders = [outer for outer in block if any(node in ast.walk(outer) for node in before)]
            if all(any(node in ast.walk(outer) for outer in holders) for node in before):
                last = holders[-1]
                if used in ast.walk(last):
                    raise Refused(f"{source.where(last)}: {name} is assigned again in the loop that calls it")
                return last
        return before[-1]

    def _in_class(self, source: Source, used: ast.AST, name: str) -> tuple[Source, ast.stmt, str]:
        around = source.class_of(used)
        methods = [node for node in around.body if isinstance(node, ast.FunctionDef)] if around else []
        if name == "self":
            init = next((method for method in methods if method.name == "__init__"), None)
            if init is None:
                raise Refused("the class of the model has no __init__ of its own to add a line to")
            return source, init.body[-1], name
        for method in methods:
            if held := source.assignments(name, method):
                return source, self._last(source, held, held[-1], name) if len(held) > 1 else held[0], name
        raise Refused(f"no method of its class assigns {name}")

    def _amp(self, value: Value) -> None:
        Autocast(self).set(str(value))


def _parameters(function: Function) -> list[str]:
    arguments = function.args
    return [part.arg for part in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
