"""What a plan shows of the switches: evidence of a simulation, which claims no more than the plan holds."""

from __future__ import annotations

from collections.abc import Callable

from perfkit.recipe import Recipe, Value
from perfkit.results.run import Mechanism
from perfkit.simulate.step import Copy, Fetch, Operator, Step, Wait

Reading = tuple[Value, str]
"""The state, in the terms of the recipe's switch, and the evidence in words."""

_PRODUCTS = ("convolution", "addmm", "mm", "bmm", "fused")
_AMP = {"float16": "fp16", "bfloat16": "bf16"}


class _Plan:
    """A step, sorted by what its switches leave there."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.operators = step.operators
        self.copies = [event for event in step.events if isinstance(event, Copy) and event.to == "device"]
        self.fetches = sum(isinstance(event, Fetch) for event in step.events)
        self.streams = [event for event in step.events if isinstance(event, Wait) and event.streams]

    def named(self, *parts: str) -> list[Operator]:
        """Operators whose name has one of these parts."""
        return [one for one in self.operators if any(part in one.name for part in parts)]


def mechanisms(step: Step, recipe: Recipe) -> list[Mechanism]:
    """Evidence for the switches whose state a plan shows."""
    plan, wanted = _Plan(step), recipe.to_dict()
    found = []
    for switch, check in CHECKS.items():
        if reading := check(plan):
            state, evidence = reading
            as_set = wanted[switch] in (state, "default")  # torch's own choice is not the recipe's
            found.append(Mechanism(switch, as_set, f"simulated plan: {evidence}"))
    return found


def _batch_size(plan: _Plan) -> Reading | None:
    if not plan.fetches:
        return None
    size = plan.step.samples // plan.fetches
    return size, f"{size} samples in a batch"


def _copies(flag: Callable[[Copy], bool], yes: str, no: str) -> Callable[[_Plan], Reading | None]:
    def check(plan: _Plan) -> Reading | None:
        if not plan.copies:
            return None
        on = all(map(flag, plan.copies))
        return on, yes if on else no

    return check


def _device_prefetch(plan: _Plan) -> Reading | None:
    if not plan.copies:
        return None
    apart = all(copy.stream != 0 for copy in plan.copies) and bool(plan.streams)
    return apart, "copied on a second stream" if apart else "copied on the stream of the kernels"


def _device_dataset(plan: _Plan) -> Reading:
    return not plan.copies, "no batch is copied" if not plan.copies else f"{len(plan.copies)} copies a step"


def _zero_grad(plan: _Plan) -> Reading:
    zeroed = [one for one in plan.named("zero") if one.phase == "optimizer"]
    return not zeroed, "gradients are filled with zeros" if zeroed else "no kernel zeroes gradients"


def _channels_last(plan: _Plan) -> Reading | None:
    layouts = [
        one.inputs[0].layout for one in plan.named("convolution") if one.inputs and one.phase == "forward"
    ]
    if not layouts or plan.step.compiled:
        return None
    share = layouts.count("channels_last") / len(layouts)
    return share > 0.5, f"{share:.0%} of the convolutions read NHWC"


def _amp(plan: _Plan) -> Reading | None:
    dtypes = [one.inputs[0].dtype for one in plan.named(*_PRODUCTS) if one.inputs and one.phase == "forward"]
    used = [dtype for dtype in dtypes if dtype in ("float32", *_AMP)]
    if not used or plan.step.compiled:
        return None
    most = max(dict.fromkeys(used), key=used.count)
    scaled = ", gradients unscaled" if plan.named("_amp_") else ""
    return _AMP.get(most, "off"), f"products read {most}{scaled}"


def _optimizer_impl(plan: _Plan) -> Reading | None:
    names = {one.name for one in plan.operators if one.phase == "optimizer"}
    for state in ("fused", "foreach"):
        if some := sorted(name for name in names if f"_{state}_" in name and "_amp_" not in name):
            return state, f"the optimizer calls {some[0]}"
    return ("loop", "the optimizer has a kernel for each parameter") if names else None


def _compile(plan: _Plan) -> Reading:
    fused = len(plan.named("fused"))
    on = plan.step.compiled
    return on, f"{fused} fused kernels of {len(plan.operators)}" if on else "eager operators"


def _accumulation(plan: _Plan) -> Reading | None:
    return (plan.fetches, f"{plan.fetches} batch(es) a step") if plan.fetches else None


CHECKS: dict[str, Callable[[_Plan], Reading | None]] = {
    "batch_size": _batch_size,
    "pin_memory": _copies(
        lambda copy: copy.pinned, "copied from pinned memory", "copied from pageable memory"
    ),
    "non_blocking": _copies(
        lambda copy: copy.non_blocking, "the host does not wait for copies", "the host waits for copies"
    ),
    "device_prefetch": _device_prefetch,
    "device_dataset": _device_dataset,
    "zero_grad_set_to_none": _zero_grad,
    "channels_last": _channels_last,
    "amp": _amp,
    "cudnn_benchmark": lambda plan: (plan.step.cudnn_benchmark, "cuDNN's fastest algorithms"
                                     if plan.step.cudnn_benchmark else "cuDNN's heuristic choice"),
    "optimizer_impl": _optimizer_impl,
    "compile": _compile,
    "accumulation": _accumulation,
}  # fmt: skip
"""Of the switches that leave something in a plan; loader switches are seen on the real loader."""
