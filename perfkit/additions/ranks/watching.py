"""Several ranks, watched as they were launched: who is late, what they exchange, what they train on."""

import contextlib
import itertools
import os
import re
import signal
import time
from collections.abc import Iterator

import msgspec

from perfkit.additions.advice.finding import WORTH_A_SENTENCE, Finding, advice_table, warnings_of
from perfkit.additions.ranks import causes, report
from perfkit.additions.ranks.causes import RankSymptoms
from perfkit.additions.ranks.lateness import Lateness, lateness
from perfkit.additions.ranks.launch import RanksLaunch
from perfkit.additions.ranks.messages import State
from perfkit.additions.ranks.started import LOST_RANK, Ending, WatchedRanks, merge_proofs
from perfkit.additions.scripts.report import warned
from perfkit.additions.scripts.watched import with_remedy_of_denial
from perfkit.errors import RunFailed
from perfkit.machine import cores
from perfkit.process.locks import device_lock
from perfkit.results.schema import Mechanism
from perfkit.results.stats import CLEAN
from perfkit.show.document import Content, Section
from perfkit.show.tables import checks
from perfkit.show.units import clean
from perfkit.studies.sources import Progress

# How a command says that it is one of several nodes.
_NODES = re.compile(r"(^| )(--n?nodes|--num[_-](nodes|machines)|-N)[ =](\d+:)?([2-9]|\d\d)")


class RanksReport(msgspec.Struct, frozen=True, kw_only=True):
    """What watching several ranks has shown."""

    command: str
    ranks: int
    nodes: int
    device: str
    cores: int
    threads: int
    steps: int
    lateness: Lateness | None  # None where too few steps were seen
    findings: list[Finding] = []
    states: list[State] = []
    printed: list[str] = []
    warnings: list[str] = []
    ended: bool = False  # whether the command ended while it was watched
    taken: float = 0.0  # the share of the cores that other programs took
    mechanisms: list[Mechanism] = []  # proofs of the switches

    @property
    def first_sentence(self) -> str:
        """The largest avoidable cost, in a sentence."""
        worst = next((finding for finding in self.findings if finding.weight >= WORTH_A_SENTENCE), None)
        return str(report.WORDS.first(self, worst))

    def sections(self) -> list[Content]:
        """The whole report, for people."""
        contents: list[Content] = [self.first_sentence]
        if self.mechanisms:
            contents.append(checks("Set from outside", self.mechanisms))
        if self.lateness:
            contents.append(Section("The ranks", [report.ranks_table(self.lateness)]))
        contents.append(Section("What to try", [advice_table(self.findings, "about")]))
        contents.append(Section("What they exchange", [report.exchanges_table(self.states)]))
        contents.append(Section("Details", [clean(self.command), str(report.WORDS.seen(self))]))
        return contents + warned(self.warnings, self.printed)


def alone(launch: RanksLaunch, progress: Progress) -> contextlib.AbstractContextManager[None]:
    """Waits until nothing else is measured here; launches of several nodes would wait for each other."""
    launcher_words = itertools.takewhile(lambda word: not word.endswith(".py"), launch.command)
    if _NODES.search(" ".join(launcher_words)):  # without the script's own arguments
        return contextlib.nullcontext()
    return device_lock(None, progress.cancelled, progress.wait)


def watch_launch(
    launch: RanksLaunch, progress: Progress | None = None, budget_s: float = 60.0, whole: bool = False
) -> RanksReport:
    """Watches a command for `budget_s` once all its ranks train; `RunFailed` if one fails, or all hang."""
    progress = progress or Progress()
    launched = WatchedRanks(launch, on_progress=progress.phase, cancelled=progress.cancelled).start()
    with launched:
        before = launched.cpu_times
        ending = launched.let_train(budget_s, whole)
        taken = cores.taken_share(before, launched.cpu_times)
        if ending == "hangs":
            raise hanging(launched)
        if launched.ranks and 0 not in launched.ranks:
            what = f"ranks {', '.join(map(str, sorted(launched.ranks)))} of {launched.world} ran on this node"
            raise RunFailed(what, "The report of all ranks is on the node of rank 0")
        if ending == "failed":
            raise failed(launched)
        if ending == "silent" or not launched.states:
            what = f"{launch.describe()}: no rank was seen that trains"
            raise launched.problem(what, str(report.WORDS.joins(launch)))
        return _result(launched, ending, taken)


def _result(launched: WatchedRanks, ending: Ending, taken: float) -> RanksReport:
    states = launched.states
    hellos = [peer.hello for peer in launched.ranks.values()]
    proofs = merge_proofs([state.mechanisms for state in states])
    if wrong := [f"{proof.name} ({proof.evidence})" for proof in proofs if not proof.ok]:
        raise RunFailed(f"not in effect: {', '.join(wrong)}", "Watch it without this switch")
    chose = "OMP_NUM_THREADS" in os.environ
    symptoms = RankSymptoms(states, lateness(states), len(hellos), cores.usable_cores(), chose, taken > CLEAN)
    remarks = report.WORDS.remarks(launched.restarts, launched.missing, taken)
    notes = dict.fromkeys(note for state in states for note in state.notes)
    return RanksReport(
        command=launched.launch.describe(),
        ranks=launched.world,
        nodes=round(launched.world / max(1, hellos[0].local)),
        device=states[0].device,
        cores=symptoms.cores,
        threads=states[0].threads,
        steps=min(state.count for state in states),
        lateness=symptoms.lateness,
        findings=causes.findings(symptoms) if len(states) > 1 else [],
        states=[msgspec.structs.replace(state, steps=[], stacks=[], rows={}) for state in states],
        printed=warnings_of(launched.written("err")),
        warnings=[*report.divided(remarks), *notes],
        ended=ending == "ended",
        taken=taken,
        mechanisms=proofs,
    )


def failed(launched: WatchedRanks) -> RunFailed:
    """Names the rank that failed first, with its last words; the others fail because they lose it."""
    failures = [state for state in launched.states if state.failure]
    first = min(failures, key=lambda state: bool(LOST_RANK.search(state.failure)), default=None)
    mute = [c for rank, c in launched.ranks.items() if c.connection.closed and rank not in launched.answers]
    mute.sort(key=lambda peer: peer.closed_at)  # a launcher ends the others later
    if first and not LOST_RANK.search(first.failure):
        mute = []
    what = str(report.WORDS.failed(launched, first, mute))
    remedy = "Read its own words, which are shown with this; run the command without perfkit to compare"
    failure = launched.problem(what, remedy, rank=first.rank if first and not mute else None)
    return with_remedy_of_denial(failure)


def hanging(launched: WatchedRanks) -> RunFailed:
    """Names the rank that has not come where the others wait, with the stacks of all."""
    states = {state.rank: state for state in launched.states}
    waiting = {rank: state for rank, state in states.items() if state.inside or state.part == "backward"}
    absent = [rank for rank in range(launched.world) if rank not in waiting]
    quiet_s = max((state.last_step_s for state in states.values()), default=0.0)
    differ = len({(state.inside, *state.at[:1]) for state in waiting.values()}) > 1
    what = report.WORDS.hanging(states, waiting, absent, differ, quiet_s)
    remedy = "Every rank must come to the same exchanges, in the same order"
    return launched.problem(str(what), remedy, _stacks(launched, states))


def _stacks(launched: WatchedRanks, states: dict[int, State]) -> Iterator[str]:
    for rank, state in states.items():
        yield f"rank {rank}: " + " <- ".join(map(os.path.basename, state.at))
    mute = [peer.hello for rank, peer in launched.ranks.items() if rank not in states]
    for pid in {hello.pid for hello in mute} & launched.pids():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR2)
    if mute:
        time.sleep(1.0)  # while they write their stacks
    for hello in mute:
        path = launched.folder / f"stacks{hello.rank}"
        if path.is_file():
            yield f"rank {hello.rank}:\n" + path.read_text(encoding="utf-8", errors="replace")[:4000]
