"""Steps of many models as a regression problem: which constants predict the published times best."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.sparse import csr_matrix

from perfkit.additions.simulate import costs
from perfkit.additions.simulate.costs import Constants, Gpu
from perfkit.additions.simulate.step import OperatorCall, StepEvents, Work, of_operator

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BLOCKS = 40
"""Parts of a step, to find where the GPU waits for the host."""


class Case(NamedTuple):
    """A published time of a step, and the work of its kernels."""

    name: str
    """Cases of one name differ in one thing, such as layout; their ratio is fitted too."""
    family: str
    conditions: str
    measured_s: float
    works: list[Work]
    blocks: Ints
    """The block of the step in which each work is issued."""
    operators: Ints
    """Dispatched before each block; what torch.compile fused is not dispatched."""
    launches: Ints


def case(step: StepEvents, name: str, family: str, conditions: str, measured_s: float) -> Case:
    """A step, cut into blocks."""
    operators = [event for event in step.events if isinstance(event, OperatorCall)]
    found = [of_operator(operator, step) for operator in operators]
    counts = [len(works) for works in found]
    block = np.arange(len(found)) * BLOCKS // len(found)
    first = np.searchsorted(block, np.arange(BLOCKS))
    dispatched = np.cumsum([0, *(operator.name != "fused" for operator in operators)])
    launched = np.cumsum([0, *counts])
    works = [work for works in found for work in works]
    about = name, family, conditions, measured_s, works
    return Case(*about, np.repeat(block, counts), dispatched[first], launched[first])


class Problem:
    """Cases of one GPU side by side."""

    def __init__(self, cases: Sequence[Case], gpu: Gpu) -> None:
        self.gpu = gpu
        self.cases = [c._replace(works=[]) for c in cases]  # their columns are all that is needed
        self.columns = costs.Columns([work for c in cases for work in c.works])
        rows = np.concatenate([at * BLOCKS + c.blocks for at, c in enumerate(cases)])
        ones = np.ones(len(rows)), (rows, np.arange(len(rows)))
        self._counts = csr_matrix(ones, shape=(len(cases) * BLOCKS, len(rows)))
        self._operators = np.array([c.operators for c in cases])
        self._launches = np.array([c.launches for c in cases])
        self.measured = np.array([c.measured_s for c in cases])
        names: dict[str, list[int]] = {}
        for i, c in enumerate(cases):
            names.setdefault(c.name, []).append(i)
        self.pairs = np.array([pair for pair in names.values() if len(pair) == 2], dtype=int).reshape(-1, 2)

    def predicted(self, constants: Constants) -> Floats:
        """Seconds of each step: the GPU works through its queue, and may have to wait for the host."""
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
        prefix = f"{architecture}/" if architecture else ""
        names = [f"{prefix}{kind}.memory" for kind in self.columns.kinds]
        return names + [f"{prefix}{k}.compute" for k, f in zip(self.columns.kinds, flops, strict=True) if f]


_SIZES = {
    "overlap": (1.0, 8.0), "kernel_us": (1.2, 6.0), "l2_saving": (0.01, 0.95), "half_mn": (1, 256),
    "half_k": (1, 2048), "l2_reach": (0.2, 8.0), "wave": (0.01, 1.5),
    "host.operator_us": (2.0, 30.0), "host.launch_us": (1.0, 10.0),
}  # fmt: skip
"""Constants that are no share of a peak, and between which values they make sense."""


def _bounds(name: str) -> tuple[float, float]:
    short = name.rpartition("/")[2]
    if short in _SIZES:
        return _SIZES[short]
    return 0.004, 1.5 if "_norm.forward" in short or "_norm.backward" in short else 1.0


def fit(
    problem: Problem, first: Constants, names: Sequence[str], rounds: int = 14, kept: Any = None
) -> Constants:
    """The constants that predict the measured times best, of the cases in the mask `kept`; all if None."""
    ridge = 0.08  # what keeps them near the first
    low, high = np.log(np.array([_bounds(name) for name in names])).T
    values = [inherited(first, name, problem.gpu) for name in names]
    start = np.clip(np.log(values), low + 1e-6, high - 1e-6)
    mask = np.full(len(problem.cases), fill_value=True) if kept is None else kept

    def constants(x: Floats) -> Constants:
        changed = dict(zip(names, np.exp(x).tolist(), strict=True))
        return Constants(first.version, {**first.values, **changed}, first.sources)

    def residuals(x: Floats) -> Floats:
        error = np.log(problem.predicted(constants(x)) / problem.measured)
        before, after = problem.pairs.T
        gains = (error[before] - error[after])[mask[before] & mask[after]]
        return np.concatenate([ridge * (x - start), error[mask], gains])

    def jacobian(x: Floats) -> Floats:
        base, columns = residuals(x), []
        for i in range(len(x)):
            moved = x.copy()
            moved[i] += 1e-4 if x[i] + 1e-4 < high[i] else -1e-4
            columns.append((residuals(moved) - base) / (moved[i] - x[i]))
        return np.array(columns).T

    options: dict[str, Any] = {"loss": "soft_l1", "f_scale": 0.12, "max_nfev": rounds}
    return constants(least_squares(residuals, start, jac=jacobian, bounds=(low, high), **options).x)


def inherited(constants: Constants, name: str, gpu: Gpu) -> float:
    """What a constant is without a fit: that of all GPUs, within its bounds."""
    kind, _, limit = name.rpartition("/")[2].rpartition(".")
    low, high = _bounds(name)
    if limit not in ("compute", "memory"):
        return constants.values.get(name.rpartition("/")[2], 1.0)
    return min(high, max(low, constants.share(gpu, kind, limit)))
