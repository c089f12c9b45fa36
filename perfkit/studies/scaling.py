"""Several ranks: how well they scale, what more of them would give, how to start them on a cluster."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.results.run import Communication, Run

COUNTS = (1, 2, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Forecast:
    """A predicted step of a number of ranks; times in seconds."""

    ranks: int
    communication_s: float
    """Of all collectives of a step."""
    step_s: float
    efficiency: float
    """Samples/s of each rank / samples/s of one rank alone."""


_BUCKET_BYTES = 25 << 20
"""What DDP gathers before it sends, by default."""


def efficiency(one: Run, many: Run) -> float:
    """Scaling efficiency: samples/s of all ranks / (ranks × samples/s of one), 1 is perfect.

    Raises:
        InvalidValue: a run was not measured, or `one` has several ranks.
    """
    if not (one.samples_per_s and many.samples_per_s) or Recipe.from_dict(one.recipe).ranks > 1:
        raise InvalidValue("scaling needs a run of one rank and one of several", "Measure both")
    ranks = Recipe.from_dict(many.recipe).ranks
    return many.samples_per_s.value / ranks / one.samples_per_s.value


def forecast(
    run: Run, counts: Sequence[int] = COUNTS, latency_s: float | None = None, bytes_per_s: float | None = None
) -> list[Forecast]:
    """Predicts steps of more ranks: the α-β model of a ring, with what a run of several ranks measured.

    A ring all-reduce of b bytes among n ranks takes 2 (n-1) α + 2 (n-1)/n b/β. The share of it that overlaps
    with backward is assumed to stay the same.

    Args:
        run: of two ranks or more.
        counts: numbers of ranks.
        latency_s: α, the latency of a hop of the planned network; the measured one if None.
        bytes_per_s: β, the bandwidth of a link of it; the measured one if None.

    Raises:
        InvalidValue: the run had one rank.
    """
    measured = _measured(run)
    recipe = Recipe.from_dict(run.recipe)
    ranks = recipe.ranks
    alpha = latency_s if latency_s is not None else measured.start_s / (2 * (ranks - 1))
    beta = bytes_per_s if bytes_per_s is not None else measured.bytes_per_s * 2 * (ranks - 1) / ranks
    buckets = max(1, -(-measured.bytes_per_step // _BUCKET_BYTES))
    exposed = min(1.0, measured.exposed_s / measured.alone_s) if measured.alone_s else 0.0
    rows = []
    for count in counts:
        hops = 2 * (count - 1)
        communication = buckets * hops * alpha + hops / count * measured.bytes_per_step / beta
        step = measured.compute_s + exposed * communication
        rows.append(Forecast(count, communication, step, measured.compute_s / step))
    return rows


def _measured(run: Run) -> Communication:
    if run.communication is None:
        raise InvalidValue(f"{run.title} has one rank: nothing was communicated", "Measure it with ranks=2")
    return run.communication


def describe(run: Run) -> str:
    """One line: how a step of several ranks spends its time.

    Raises:
        InvalidValue: the run had one rank.
    """
    measured, ms = _measured(run), 1e3
    return (
        f"a step of {ms * measured.step_s:.2f} ms computes {ms * measured.compute_s:.2f} ms; averaging "
        f"{measured.bytes_per_step / 2**20:.2f} MiB takes {ms * measured.alone_s:.2f} ms alone, of which "
        f"{ms * measured.exposed_s:.2f} ms are exposed and {ms * measured.hidden_s:.2f} ms hidden; "
        f"the slowest rank computes {measured.straggling:.2f}x as long as the median one"
    )


def torchrun(script: str, ranks: int, nodes: int = 1, rendezvous: str = "HOST:29400") -> str:
    """The command that starts an exported script on a cluster; the same one on every machine.

    Args:
        script: the file's name.
        ranks: of all machines together.
        nodes: machines.
        rendezvous: host and port of one of them.

    Raises:
        InvalidValue: the ranks cannot be split evenly.
    """
    if ranks % nodes:
        raise InvalidValue(f"{ranks} ranks cannot be split over {nodes} machines", "Give a multiple of them")
    where = ["--standalone"] if nodes == 1 else ["--rdzv-backend", "c10d", "--rdzv-endpoint", rendezvous]
    start = ["torchrun", "--nnodes", str(nodes), "--nproc-per-node", str(ranks // nodes), *where]
    return shlex.join([*start, script])
