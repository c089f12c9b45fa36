"""Several ranks: how well they scale, how a step spends its time, how to start them on a cluster."""

import shlex

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.results.run import Run


def efficiency(alone: Run, many: Run) -> float:
    """Scaling efficiency: samples/s of all ranks / (ranks × samples/s of one), 1 is perfect.

    Raises:
        InvalidValue: a run was not measured, or `alone` has several ranks.
    """
    if not (alone.samples_per_s and many.samples_per_s) or Recipe.from_dict(alone.recipe).ranks > 1:
        raise InvalidValue("scaling needs a run of one rank and one of several", "Measure both")
    ranks = Recipe.from_dict(many.recipe).ranks
    return many.samples_per_s.value / ranks / alone.samples_per_s.value


def ring_all_reduce_s(size: float, ranks: int, latency_s: float, bytes_per_s: float) -> float:
    """Seconds of a ring all-reduce: 2 (n-1) α + 2 (n-1)/n b/β.

    Args:
        size: b, in bytes.
        ranks: n.
        latency_s: α, the latency of a hop.
        bytes_per_s: β, the bandwidth of a link.
    """
    hops = 2 * (ranks - 1)
    return hops * latency_s + hops / ranks * size / bytes_per_s


def forecast(
    run: Run, latency_s: float | None = None, bytes_per_s: float | None = None, most: int = 64
) -> dict[int, float]:
    """Predicted efficiency by number of ranks: what a run of several ranks measured, in a larger ring.

    The share of the communication that overlaps with backward is assumed to stay the same.

    Args:
        run: a run of two ranks or more.
        latency_s: the latency of a hop of the planned network; the measured one if None.
        bytes_per_s: the bandwidth of a link of it; the measured one if None.
        most: ranks.

    Raises:
        InvalidValue: the run had one rank.
    """
    measured, ranks = run.communication, Recipe.from_dict(run.recipe).ranks
    if measured is None:
        raise InvalidValue(f"{run.title} has one rank: nothing was communicated", "Measure it with ranks=2")
    hops = 2 * (ranks - 1)
    alpha = measured.start_s / hops if latency_s is None else latency_s
    beta = measured.bytes_per_s * hops / ranks if bytes_per_s is None else bytes_per_s
    exposed = min(1.0, measured.exposed_s / measured.alone_s) if measured.alone_s else 0.0
    counts = [2**power for power in range(most.bit_length())]
    steps = {
        count: measured.compute_s + exposed * ring_all_reduce_s(measured.bytes_per_step, count, alpha, beta)
        for count in counts
    }
    return {count: measured.compute_s / step_s for count, step_s in steps.items()}


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
