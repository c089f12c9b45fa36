"""Several ranks, watched as they were launched: who is late, what they exchange, what they train on."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import msgspec

from perfkit.additions.advice.finding import WORTH_A_SENTENCE, Finding, advice_table, warned, warnings_of
from perfkit.additions.ranks import causes, report
from perfkit.additions.ranks.asked import RankedLaunch
from perfkit.additions.ranks.causes import RankSymptoms
from perfkit.additions.ranks.lateness import Lateness, lateness
from perfkit.additions.ranks.launched import LaunchedRanks
from perfkit.additions.ranks.lines import place
from perfkit.additions.ranks.messages import State
from perfkit.errors import RunFailed
from perfkit.machine import cores
from perfkit.process.locks import EVERYTHING, device_lock
from perfkit.results.stats import CLEAN
from perfkit.show import units
from perfkit.show.document import Content, Section
from perfkit.show.units import clean
from perfkit.studies.sources import Progress

_SIGNAL_S = 1.0


class WatchedRanks(msgspec.Struct, frozen=True, kw_only=True):
    """What watching several ranks has shown.

    `ended`: whether the command came to its end meanwhile. `taken`: the share of the cores that other
    programs took. `lateness` is None where too few steps were seen.
    """

    command: str
    ranks: int
    nodes: int
    device: str
    cores: int
    threads: int
    steps: int
    lateness: Lateness | None
    findings: list[Finding] = []
    states: list[State] = []
    printed: list[str] = []
    warnings: list[str] = []
    ended: bool = False
    taken: float = 0.0

    @property
    def first_sentence(self) -> str:
        """The largest avoidable thing."""
        if self.ranks == 1:
            return "Only one rank trains: `perfkit scale` says what more would give."
        if self.findings and self.findings[0].weight >= WORTH_A_SENTENCE:
            return self._of_finding(self.findings[0])
        found = self.lateness
        if found is None:
            return f"Too few steps were seen to compare {self.ranks} ranks."
        if found.in_turn:
            share = units.percent(found.in_turn)
            return (
                f"No rank is late for long, but they wait for each other {share} of the time, each in turn."
            )
        exposed = units.percent(found.exposed_share)
        if self.device != "cpu":
            others = f"what others take on {self.device} is not seen"
            return (
                f"Nothing avoidable is seen. The exchange of gradients takes {exposed} of a step; {others}."
            )
        return f"Nothing avoidable is seen: the ranks are alike, and {exposed} of a step is their exchange."

    def _of_finding(self, finding: Finding) -> str:
        worth = ""
        if finding.gain and finding.cause.startswith("exposed"):
            worth = f" With all of it hidden, the run would be {units.times(finding.gain)} as fast."
        elif finding.gain and finding.cause.startswith(("late", "reads")):
            worth = f" Equal ranks would be up to {units.times(finding.gain)} as fast{self._without_it()}"
            is_shared = self.device == "cpu" and self.ranks * self.threads >= self.cores
            worth += ", less where the waiting ranks leave their cores to the late one." if is_shared else "."
        elif finding.gain:
            worth = f" Without it, the run is about {units.times(finding.gain)} as fast."
        return finding.in_words(worth)

    def _without_it(self) -> str:
        """What it gives if no rank has to do what makes the late one late."""
        found = self.lateness
        if found is None or found.at_times or found.by_s > 0.9 * found.step_s:
            return ""
        return f" ({units.times(found.step_s / (found.step_s - found.by_s))} if no rank does this work)"

    def sections(self) -> list[Content]:
        """All of it, for people."""
        contents: list[Content] = [self.first_sentence]
        if self.lateness:
            contents.append(Section("The ranks", [report.ranks_table(self.lateness)]))
        contents.append(Section("What to try", [advice_table(self.findings, "about")]))
        contents.append(Section("What they exchange", [report.exchanges_table(self.states)]))
        contents.append(Section("Details", [clean(self.command), self._seen()]))
        return contents + warned(self.warnings, self.printed)

    def _seen(self) -> str:
        until = "to the end" if self.ended else "then the launch was ended"
        nodes = f" on {units.plural(self.nodes, 'node')}" if self.nodes > 1 else ""
        return f"Seen: {self.steps:,} steps of {self.ranks} ranks{nodes} on {self.device}, {until}."


def alone(launch: RankedLaunch, progress: Progress) -> contextlib.AbstractContextManager[None]:
    """Waits until nothing else is measured here; launches of several nodes would wait for each other."""
    if launch.names_nodes:
        return contextlib.nullcontext()
    waiting = f"waiting: another run uses {EVERYTHING}"
    return device_lock(EVERYTHING, progress.cancelled, lambda: progress.phase(waiting))


def watch(
    launch: RankedLaunch, progress: Progress | None = None, budget_s: float = 60.0, whole: bool = False
) -> WatchedRanks:
    """Starts the command, and watches its ranks for so many seconds once all of them train.

    Raises `RunFailed` where a rank fails, or none takes a step any more.
    """
    progress = progress or Progress()
    launched = LaunchedRanks(launch, on_progress=progress.phase, cancelled=progress.cancelled)
    with launched:
        before = launched.cpu_times
        how = launched.watch(budget_s, whole)
        taken = cores.taken_share(before, launched.cpu_times)
        if how == "hangs":
            raise hanging(launched)
        if launched.ranks and 0 not in launched.ranks:
            what = f"ranks {', '.join(map(str, sorted(launched.ranks)))} of {launched.world} ran on this node"
            raise RunFailed(what, "The report of all ranks is on the node of rank 0")
        if how == "failed":
            raise launched.failure()
        if how == "silent" or not launched.states:
            raise _nothing_seen(launched)
        return _result(launched, how, taken)


def _result(launched: LaunchedRanks, how: str, taken: float) -> WatchedRanks:
    states, hellos = launched.states, [seen.hello for seen in launched.ranks.values()]
    late = lateness(states)
    symptoms = RankSymptoms(
        states,
        late,
        local=len(hellos),
        cores=cores.usable_cores(),
        chose_threads="OMP_NUM_THREADS" in os.environ,
        is_disturbed=taken > CLEAN,
    )
    noted = dict.fromkeys(note for state in states for note in state.notes)
    return WatchedRanks(
        command=launched.launch.describe(),
        ranks=launched.world,
        nodes=round(launched.world / max(1, hellos[0].local)),
        device=states[0].device,
        cores=symptoms.cores,
        threads=states[0].threads,
        steps=min(state.count for state in states),
        lateness=late,
        findings=causes.findings(symptoms) if len(states) > 1 else [],
        states=[msgspec.structs.replace(state, steps=[], stacks=[], rows={}) for state in states],
        printed=warnings_of(launched.written("err")),
        warnings=[*_remarks(launched, taken), *noted],
        ended=how == "ended",
        taken=taken,
    )


def _remarks(launched: LaunchedRanks, taken: float) -> Iterator[str]:
    if launched.restarts:
        yield f"the agent restarted the ranks (restart {launched.restarts}): only what came after is told"
    if launched.missing:
        yield f"these ranks were not heard of: {', '.join(map(str, launched.missing))}"
    if taken > CLEAN:
        yield (
            f"other programs took {taken:.0%} of the cores, so times are rough: who is late by much is still "
            "certain, small differences are not"
        )


def _nothing_seen(launched: LaunchedRanks) -> RunFailed:
    what = f"{launched.launch.describe()}: no rank was seen that trains"
    remedy = "Does it call torch.distributed.init_process_group in Python processes of this machine?"
    if alone := launched.launch.as_one_process:
        remedy += f" If it trains in one process: {alone}"
    problem = RunFailed(what, remedy)
    problem.output = "\n".join(launched.written("err")[-60:])
    return problem


# ---------------------------------------------------------------- ranks that hang


def hanging(launched: LaunchedRanks) -> RunFailed:
    """Which rank has not come where the others wait, with the stacks of all."""
    told = {state.rank: state for state in launched.states}
    waiting = {rank: state for rank, state in told.items() if state.inside or state.part == "backward"}
    absent = [rank for rank in range(launched.world) if rank not in waiting]
    meeting = [_where(state) for state in waiting.values()]
    quiet = max((state.last_step_s for state in told.values()), default=0.0)
    if absent and waiting:
        places = [f"rank {rank}{_place_of(told.get(rank))}" for rank in absent]
        what = f"no step for {quiet:.0f} s: {', '.join(places)} has not come to {meeting[0]}, where "
        what += f"{', '.join(f'rank {rank}' for rank in waiting)} waits"
    elif len(set(meeting)) > 1:
        what = f"no step for {quiet:.0f} s: ranks wait in different exchanges: "
        what += ", ".join(f"rank {rank} in {_where(state)}" for rank, state in waiting.items())
    else:
        places = [f"rank {rank}{_place_of(state)}" for rank, state in told.items()]
        what = f"no step for {quiet:.0f} s: {', '.join(places)}"
    problem = RunFailed(what, "Every rank must come to the same exchanges, in the same order")
    problem.output = "\n".join([*_stacks(launched, told), *launched.written("err")[-40:]])
    return problem


def _where(state: State) -> str:
    line = f" ({place(state.at[0])})" if state.at else ""
    return f"{state.inside or 'the exchange of gradients in backward'}{line}"


def _place_of(state: State | None) -> str:
    if state is None:
        return " (which does not answer)"
    return f" (at {place(state.at[0])}, after {state.count} steps)" if state.at else ""


def _stacks(launched: LaunchedRanks, told: dict[int, State]) -> Iterator[str]:
    for rank, state in told.items():
        yield f"rank {rank}: " + " <- ".join(map(place, state.at))
    members = launched.pids()
    mute = [seen.hello for rank, seen in launched.ranks.items() if rank not in told]
    for pid in {hello.pid for hello in mute} & members:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR2)
    if mute:
        time.sleep(_SIGNAL_S)
    for hello in mute:
        path = launched.folder / f"stacks{hello.rank}"
        if path.is_file():
            yield f"rank {hello.rank}:\n" + path.read_text(encoding="utf-8", errors="replace")[:4000]
