"""The edit of a user's script that sets switches, and the proof that it does what they do if set outside."""

import ast
import difflib
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfkit import lookup
from perfkit.additions.patch.source import Refused, SourceFile
from perfkit.additions.referee.match import Terms, matched
from perfkit.additions.referee.verdict import Outcome
from perfkit.additions.scripts.messages import ScriptFacts, Site
from perfkit.additions.scripts.study import ScriptStarter, script_plan
from perfkit.additions.scripts.watched import Launch
from perfkit.errors import PerfkitError
from perfkit.recipe import Recipe, Value, shown, switches
from perfkit.results.parity import Check
from perfkit.show.document import Content, Notice
from perfkit.studies.compare import Candidate
from perfkit.studies.sources import Progress

PRECISION = 0.03
_TABLES = lookup.toml(__package__, "ways")
_WAYS, _ORDERS, _OWN, _LIBRARIES = (_TABLES[name] for name in ("ways", "positions", "own", "libraries"))


@dataclass(frozen=True)
class Patch:
    """What to change so that a script has switches by itself; the files themselves stay as they are."""

    launch: Launch  # starts the script with the edited files
    edited: Mapping[str, Value]
    refused: Mapping[str, str]  # switches that it has already, or that need an edit by hand, with that edit
    read: Mapping[Path, bytes]

    @property
    def root(self) -> Path:
        """The working folder if all its files are in it, else the folder that they share."""
        here = Path.cwd().resolve()
        files = list(dict(self.launch.replaced))
        is_inside = all(file.is_relative_to(here) for file in files)
        return here if is_inside else Path(os.path.commonpath([file.parent for file in files]))

    def diff(self) -> str:
        """A unified diff for `git apply` in `root`; a `PerfkitError` if a file was changed meanwhile."""
        texts = list[str]()
        for path, after in self.launch.replaced:
            name = path.relative_to(self.root).as_posix()
            before = self.read[path]
            if not path.is_file() or path.read_bytes() != before:
                raise PerfkitError(f"{path} was changed while its edit was made", "Run it again")
            # Lines end at line feeds only, so that carriage returns and form feeds are kept.
            old, new = (list(io.StringIO(data.decode(), newline="\n")) for data in (before, after))
            texts += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
        ended = (text if text[-1] == "\n" else f"{text}\n\\ No newline at end of file\n" for text in texts)
        return "".join(ended)

    def notes(self) -> list[Content]:
        how: list[Content] = (
            [f"Save it as perfkit.diff, then run in {self.root}: git apply perfkit.diff"]
            if self.edited
            else []
        )
        return how + [Notice(f"{name} is not in the patch: {why}") for name, why in self.refused.items()]


def make(launch: Launch, settings: Mapping[str, Value], progress: Progress | None = None) -> Patch:
    """Runs a script for its first steps, and edits its files, in memory, at the calls that were seen."""
    read = {str(launch.script.resolve()): launch.script.read_bytes()} if launch.script else {}
    with script_plan(ScriptStarter(launch)).open(progress) as session:
        facts = session.source.facts
    return edit(launch, settings, facts, read)


def edit(
    launch: Launch, settings: Mapping[str, Value], facts: ScriptFacts, read: Mapping[str, bytes] | None = None
) -> Patch:
    """The edits of a script's files; they stay as they are. `read`: those that were read when it started."""
    files = [str(launch.script.resolve())] if launch.script else []
    files += [frame.file for site in facts.sites for frame in reversed(site.frames)]
    replaced = launch.replaced
    edited = dict[str, Value]()
    refused = dict[str, str]()
    known = {path: Path(path).read_bytes() for path in dict.fromkeys(files)} | dict(read or {})
    sources = {path: SourceFile(path, data) for path, data in known.items()}
    patcher = _Patcher(facts, sources, edited)
    in_order = {name: settings[name] for name in switches() if name in settings}  # some act with earlier ones
    for name, value in in_order.items():
        before = {path: list(source.edits) for path, source in sources.items()}
        try:
            patcher.set(name, value)
            replaced = tuple((Path(path), each.edited()) for path, each in sources.items() if each.edits)
            edited[name] = value
        except Refused as reason:
            refused[name] = str(reason)
            for path, source in sources.items():
                source.edits = before[path]
    program = files[0] if launch.script else launch.program
    originals = {Path(path): data for path, data in known.items()}
    return Patch(replace(launch, program=program, replaced=replaced), edited, refused, originals)


@dataclass(frozen=True)
class _Patcher:
    """Edits the files of a script at the calls that were seen; the first file is the one that is started."""

    facts: ScriptFacts
    sources: Mapping[str, SourceFile]
    edited: Mapping[str, Value]  # the switches that are set so far

    def sites(self, role: str) -> list[Site]:
        if role == "model":  # it is also where it is called, wherever it was made
            return self.sites("optimizer") or self.sites("forward")
        return [site for site in self.facts.sites if site.role == role and site.frames]

    def set(self, name: str, value: Value) -> None:
        if self.facts.settings.get(name) == value:
            raise Refused(f"the script has {name}={shown(value)} already")
        if reason := self.facts.refused.get(name):
            raise Refused(reason)
        if variables := Recipe().replace(**{name: value}).environment():
            pairs = " ".join(f"{variable}={code}" for variable, code in variables.items())
            raise Refused(f"start the script with {pairs} in its environment")
        role, code, *reset = _WAYS.get(f"{name}={value}") or _WAYS.get(name) or ("", "")
        if not code:
            raise Refused(f"the script's own code has to change: see `perfkit diff {name}`")
        partner, idle_value = switches()[name].idle_when or ("", "")
        if partner and {**self.facts.settings, **self.edited}.get(partner, idle_value) == idle_value:
            raise Refused(f"it acts only with {partner}, which is {shown(idle_value)} here: set both")
        code = code.format(value, device=self.facts.device)
        sites = self.sites(role)
        if not (self.sources if role == "line" else sites):
            raise Refused(f"no {role} was seen in the script's own code")
        self._refuse_own(name, code, value)
        where = os.path.basename(sites[0].place) if sites else ""
        if sites and sites[0].library:
            options = _LIBRARIES.get(sites[0].library, {})
            option = (options.get(f"{name}={value}") or options.get(name, "it")).format(value)
            raise Refused(f"{where}: {sites[0].library} makes the {role}: set {option} in its options")
        if role == "backward":
            raise Refused(f"{where}: put `with {code}:` around the call of the model and its loss")
        self._edit(sites, role, code, *reset)

    def _refuse_own(self, name: str, code: str, value: Value) -> None:
        for source in self.sources.values():
            for option in re.findall(r"""["']--([\w-]+)["']""", source.text):
                if option.replace("-", "_") in (name, *re.findall(r"(\w+)=", code)):
                    given = "" if value is True else f" {value}"
                    raise Refused(f"set it with the script's option --{option}{given}")
            lines = source.text.split("\n") if name in _OWN else []
            for number, line in enumerate(lines, 1):
                if re.match(rf"[^#]*{_OWN[name]}", line):
                    own = code.replace("\n", "; ")
                    raise Refused(f"{source.name}:{number}: make that `{own}`")

    def _edit(self, sites: Sequence[Site], role: str, code: str, reset: str = "") -> None:
        if role == "line":
            next(iter(self.sources.values())).add_after_imports(code)
        for site in sites:
            source = self.sources[site.frames[0].file]
            call = source.call_at(site.frames[0])
            if role == "model":
                _add_to_model(source, call, code)
            else:
                name = ast.unparse(call.func).rpartition(".")[2]
                source.set_arguments(call, code, _ORDERS.get(name) or _ORDERS.get(role, []), reset)


def _add_to_model(source: SourceFile, call: ast.Call, suffix: str) -> None:
    name = ", ".join(re.findall(r"([\w.]+)\.(?:named_)?parameters\(", ast.unparse(call)))
    if name == "self" or not re.fullmatch(r"(self\.)?\w+", name):
        raise Refused(f"{source.name}:{call.lineno}: add `{suffix}` to the model before this call")
    source.add_before(source.statement_of(call), f"{name}{suffix}")


def verify(result: Patch, launch: Launch, budget_s: float, progress: Progress) -> Check:
    """Compares the patched script with the script of `launch` with the switches set from outside.

    It must train the same and be as fast. `budget_s`: seconds of rounds; 0: no verification.
    """
    if not (budget_s and result.edited):
        return Check("patch", bool(result.edited), "not verified")
    outside = Candidate("set from outside", result.edited, launch)
    match = matched(outside, Candidate("patched", program=result.launch), Terms())
    measured = match._replace(plan=match.plan.until(budget_s, PRECISION)).compare(progress)
    verdict = measured.verdict(PRECISION)
    is_as_fast = verdict.outcome in (Outcome.FASTER, Outcome.NOT_FASTER)
    start = "verified: as fast as" if is_as_fast else f"NOT verified: {verdict.outcome}, compared"
    text = f"{start} with the switches set from outside: {verdict.reason}; losses {verdict.losses.evidence}"
    return Check("patch", is_as_fast, text)
