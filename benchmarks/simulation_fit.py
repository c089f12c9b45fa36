"""Steps of many models as a regression problem: which constants predict the published times best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.sparse import csr_matrix

from perfkit.simulate import costs
from perfkit.simulate.constants import Constants
from perfkit.simulate.gpus import GPUS, Gpu
from perfkit.simulate.step import Step
from perfkit.simulate.work import Work, of_operator

Floats = NDArray[np.float64]
BLOCKS = 40
"""Into which a step is cut to find where the device waits for the host."""


class Case(NamedTuple):
    """A published time of a step, and the work of its kernels."""

    name: str
    """Cases of the same name differ in one thing, such as layout; their ratio is fitted, too."""
    family: str
    gpu: str
    configuration: str
    batch_size: int
    measured_s: float
    works: list[Work]
    blocks: list[int]
    """Of each work, the block of the step in which it is issued."""
    operators: list[int]
    """Dispatched before each block, for the host's time; what torch.compile fused is not dispatched."""
    launches: list[int]
    weight: float = 1.0
    host: bool = True
    """Whether the measured time contains waiting for the host."""
    precision: str = "float16"


def case(
    step: Step, name: str, family: str, gpu: str, configuration: str, measured_s: float, weight: float = 1.0,
    host: bool = True, precision: str = "float16",
) -> Case:  # fmt: skip
    """A step, cut into blocks."""
    works: list[Work] = []
    blocks: list[int] = []
    issued, launched = [0] * BLOCKS, [0] * BLOCKS
    block, dispatched, count = -1, 0, len(step.operators)
    for i, operator in enumerate(step.operators):
        if i * BLOCKS // count != block:
            block = i * BLOCKS // count
            issued[block], launched[block] = dispatched, len(works)
        dispatched += operator.name != "fused"
        found = of_operator(operator, step)
        works += found
        blocks += [block] * len(found)
    return Case(
        name, family, gpu, configuration, step.samples, measured_s, works, blocks, issued, launched, weight,
        host, precision,
    )  # fmt: skip


class Problem:
    """All cases of one GPU; equal works are computed once."""

    def __init__(self, cases: Sequence[Case], gpu: Gpu) -> None:
        self.cases, self.gpu = list(cases), gpu
        unique: dict[Work, int] = {}
        rows, columns = [], []
        for i, one in enumerate(cases):
            for work, block in zip(one.works, one.blocks, strict=True):
                rows.append(i * BLOCKS + block)
                columns.append(unique.setdefault(work, len(unique)))
        self.columns = costs.Columns(list(unique))
        shape = len(cases) * BLOCKS, len(unique)
        self._counts = csr_matrix((np.ones(len(rows)), (rows, columns)), shape=shape)
        self._operators = np.array([[n * one.host for n in one.operators] for one in cases], dtype=float)
        self._launches = np.array([[n * one.host for n in one.launches] for one in cases], dtype=float)
        self.measured = np.array([one.measured_s for one in cases])
        self.weight = np.array([one.weight for one in cases])
        by_name: dict[str, list[int]] = {}
        for i, one in enumerate(cases):
            by_name.setdefault(one.name, []).append(i)
        pairs = [pair for pair in by_name.values() if len(pair) == 2]
        self.pairs = np.array(pairs, dtype=int).reshape(-1, 2)

    def predicted(self, constants: Constants) -> Floats:
        """Seconds of each step: the device works through its queue, and may have to wait for the host."""
        times = costs.seconds(self.columns, self.gpu, constants)
        blocks = (self._counts @ times).reshape(-1, BLOCKS)
        remaining = np.cumsum(blocks[:, ::-1], axis=1)[:, ::-1]
        value = constants.values
        host = self._operators * value["host.operator_us"] + self._launches * value["host.launch_us"]
        return np.asarray((host * 1e-6 + remaining).max(axis=1))

    def constants_of(self, architecture: str = "") -> list[str]:
        """Names of the constants of its classes of kernels."""
        flops = np.zeros(len(self.columns.kinds))
        np.add.at(flops, self.columns.kind, self.columns.flops)
        own = f"{architecture}/" if architecture else ""
        names = [f"{own}{kind}.memory" for kind in self.columns.kinds]
        return names + [
            f"{own}{kind}.compute" for kind, f in zip(self.columns.kinds, flops, strict=True) if f
        ]


SIZES = {
    "overlap": (1.0, 8.0), "kernel_us": (1.2, 6.0), "l2_saving": (0.01, 0.95), "half_mn": (1, 256),
    "half_k": (1, 2048), "wave": (0.01, 1.5), "winograd_fused": (1.0, 2.25), "winograd_unfused": (1.0, 4.0),
    "host.operator_us": (2.0, 30.0), "host.launch_us": (1.0, 10.0),
}  # fmt: skip
"""Constants that are no share of a peak, and between which values they make sense."""


def _bounds(name: str) -> tuple[float, float]:
    short = name.rpartition("/")[2]
    if short in SIZES:
        return SIZES[short]
    if "/" not in name and name.split(".", maxsplit=1)[0] in {*GPUS, "volta"}:
        # No kernel is to be faster than the data sheet; the RTX 4090 has an L2 cache that seems to add to it.
        return 0.2, 1.0 if name.endswith((".tensor", ".memory")) and name != "rtx4090.memory" else 1.3
    if short.startswith("convert") and "tf32" in short:  # how many conversions there are is assumed
        return 0.1, 5.0
    if "_norm" in short or short.startswith("fused"):  # the passes over the data are assumed
        return 0.1, 1.6
    return 0.004, 0.98


def _first(constants: Constants, name: str) -> float:
    architecture, _, short = name.rpartition("/")
    if name in constants.values or short in constants.values:
        return constants.values.get(name, constants.values.get(short, 1.0))
    kind, _, what = short.rpartition(".")
    if kind in {*GPUS, "volta"}:
        return 1.0
    return constants.of(kind, what, architecture)


def fit(
    problems: Sequence[Problem], first: Constants, names: Sequence[str], *, ridge: float, rounds: int,
    keep: Callable[[Case], bool] = lambda _: True, begin: Constants | None = None,
) -> Constants:  # fmt: skip
    """The constants that predict the measured times best; `ridge` keeps them near the first.

    To `begin` at the solution of a similar problem saves rounds; the solution does not depend on it.
    """
    low, high = np.log(np.array([_bounds(name) for name in names])).T
    start = np.clip(np.log([_first(first, name) for name in names]), low + 1e-6, high - 1e-6)
    begins = np.clip(np.log([_first(begin or first, name) for name in names]), low + 1e-6, high - 1e-6)
    counted = [np.array([keep(one) for one in problem.cases]) for problem in problems]

    def constants(x: Floats) -> Constants:
        values = {**first.values, **dict(zip(names, np.exp(x).tolist(), strict=True))}
        return Constants(first.version, values, first.sources)

    def residuals(x: Floats) -> Floats:
        now, found = constants(x), [ridge * (x - start)]
        for problem, mask in zip(problems, counted, strict=True):
            error = np.log(problem.predicted(now) / problem.measured)
            found.append((error * problem.weight)[mask])
            before, after = problem.pairs.T
            found.append((error[before] - error[after])[mask[before] & mask[after]])
        return np.concatenate(found)

    def jacobian(x: Floats) -> Floats:
        base, columns = residuals(x), []
        for i in range(len(x)):
            moved = x.copy()
            moved[i] += 1e-4 if x[i] + 1e-4 < high[i] else -1e-4
            columns.append((residuals(moved) - base) / (moved[i] - x[i]))
        return np.array(columns).T

    options: dict[str, Any] = {"loss": "soft_l1", "f_scale": 0.12, "max_nfev": rounds}
    return constants(least_squares(residuals, begins, jac=jacobian, bounds=(low, high), **options).x)
