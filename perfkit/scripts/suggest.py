"""What to try on a script that was watched, the largest predicted gain first.

A prediction is made only from what was seen: the wait for data and the step on a held batch (put together as
`predict` does), and the shares of a profile, by Amdahl's law. Where these tell nothing, the gain is None.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator

from perfkit.recipe import Recipe, Value, shown, switches
from perfkit.rules import why_not
from perfkit.scripts.seen import Seen
from perfkit.scripts.suggestion import State, Suggestion
from perfkit.search import predict

_WAITS = 0.03
"""A smaller share of waiting is not worth a worker."""
_FAULTS = 64  # fewer page faults a step are no large block that is freed and fetched again
_PRODUCTS = re.compile(
    r"aten::(_?convolution|mkldnn_convolution|cudnn_convolution|convolution_backward|slow_conv"
    r"|mm$|addmm|bmm|baddbmm|linear|matmul|_scaled_dot|scaled_dot|_flash|_efficient|lstm|gru|mkldnn_linear)"
)
_CONVOLUTIONS = re.compile(r"aten::(_?convolution|mkldnn_conv|cudnn_conv|convolution_backward|slow_conv)")
_UPDATES = re.compile(r"aten::(_foreach|_fused)_")
_FILLS = re.compile(r"aten::(zero_|fill_|_foreach_zero_)$")
_FUSIBLE = re.compile(
    r"aten::(add|sub|mul|div|relu|gelu|silu|sigmoid|tanh|clamp|threshold|where|exp|log|sum|mean|copy_|to$|pow"
    r"|sqrt|rsqrt|neg|native_(batch|layer|group)_norm|batch_norm|layer_norm|group_norm|_?softmax|_?log_softmax"
    r"|dropout|native_dropout|leaky_relu|hardtanh|hardswish)"
)
_LAYOUTS = re.compile(r"nchwToNhwc|nhwcToNchw", re.IGNORECASE)


def suggest(seen: Seen) -> list[Suggestion]:
    """What to try, the largest gain first; then edits; then what cannot be had, and what is on already."""
    ideas = [idea for rule in _RULES for idea in rule(seen)]
    order: list[State] = ["try", "edit", "refused", "on"]
    return sorted(ideas, key=lambda idea: (order.index(idea.state), -(idea.gain or 0.0)))


def _amdahl(share: float, times: float = float("inf")) -> float:
    """How many times as fast a step becomes if this share of it becomes some times as fast."""
    return 1 / max(1 - share + share / times, 0.02)


def _idea(
    seen: Seen, title: str, settings: dict[str, Value], why: str, gain: float | None = None, basis: str = "",
    at_most: bool = True,
) -> Suggestion:  # fmt: skip
    """A suggestion, unless its first switch is on already or cannot be set here."""
    name, value = next(iter(settings.items()))
    if getattr(seen.own, name) == value:
        return Suggestion(title=title, state="on", why=f"the script has {name}={shown(value)} already")
    wanted = seen.own.replace(**settings)
    if reason := why_not(name, wanted, seen.target):
        return Suggestion(title=title, state="refused", why=reason)
    if gain is not None and gain < 1.005:
        return Suggestion(title=title, state="refused", why=f"{why}; it would gain nothing: {basis}")
    acting = {key: v for key, v in settings.items() if not why_not(key, wanted, seen.target)}
    return Suggestion(
        title=title, state="try", settings=acting, why=why, gain=gain, at_most=at_most and gain is not None,
        basis=basis, changes_training=name == "batch_size",
    )  # fmt: skip


# ---------------------------------------------------------------- data


def _workers(seen: Seen) -> Iterator[Suggestion]:
    own, cores = seen.own, seen.cores
    title = switches()["workers"].label
    if "workers" in seen.target.refused:
        yield Suggestion(title=title, state="refused", why=seen.target.refused["workers"])
        return
    if seen.waits < _WAITS:
        yield Suggestion(
            title=title, state="on" if own.workers else "refused",
            why=f"the step waits {seen.waits:.1%} for data: faster loading would save next to nothing",
        )  # fmt: skip
        return
    count = max(1, cores // 2 if seen.target.device == "cpu" else cores)
    why = f"{seen.waits:.0%} of a step is waiting for data, loaded by " + (
        f"{own.workers} workers" if own.workers else "the loop itself"
    )
    if own.workers >= count:
        edits = "make a sample cheaper (smaller or decoded files, fewer transforms), or cache it"
        gain, basis = _without_waiting(seen)
        title = f"{title}: {own.workers} on {cores} cores"
        yield Suggestion(
            title=title, state="edit", why=f"{why}: {edits}", gain=gain, at_most=True, basis=basis
        )
        return
    settings: dict[str, Value] = {"workers": count}
    if seen.target.device == "cuda":
        settings |= {"pin_memory": True, "non_blocking": True}
    gain, basis = _with_workers(seen, own.replace(**settings))
    yield _idea(seen, title, settings, why, gain, basis)


def _with_workers(seen: Seen, recipe: Recipe) -> tuple[float | None, str]:
    if seen.held_s is None or seen.own.workers:
        return _without_waiting(seen)
    batch, own = seen.own.batch_size * seen.own.accumulation, seen.own.to_dict()
    model = predict.Model(
        cores=seen.cores, device=seen.target.device,
        fetch_s={predict.switch_key(own, predict.DATA): seen.waits * seen.step_s / batch},
        compute_s={predict.switch_key(own, predict.COMPUTE): {batch: seen.held_s}},
        bytes_per_sample={},
    )  # fmt: skip
    after = predict.predict(model, recipe.to_dict())
    if after is None:
        return None, "the parts that it would change were not measured"
    basis = (
        f"loading divided by {recipe.workers}, beside the step on a held batch; handing over costs nothing"
    )
    return seen.step_s / after.step_s, f"{basis}; then the bottleneck is {after.bottleneck}"


def _without_waiting(seen: Seen) -> tuple[float | None, str]:
    if held_s := seen.held_s:
        return seen.step_s / held_s, "the step on a held batch, as if data were free"
    return _amdahl(seen.waits), "without any waiting"


def _restarts(seen: Seen) -> Iterator[Suggestion]:
    if not seen.own.workers:
        return
    share = seen.restarts_s / seen.whole_s if seen.whole_s else 0.0
    why = f"starting workers again for each epoch took {share:.1%} of the time that was watched"
    if share > 0.01:
        gain, basis = _amdahl(share), "as if epochs started at once; long epochs gain less"
        edit = f"{why}: pass persistent_workers=True to the DataLoader"
        yield Suggestion(title="Keep workers", state="edit", why=edit, gain=gain, at_most=True, basis=basis)


def _copies(seen: Seen) -> Iterator[Suggestion]:
    analysis = seen.analysis
    if seen.target.device != "cuda" or analysis is None or not analysis.mean_step_us:
        return
    pageable = sum(
        row.us_per_step
        for row in analysis.transfers
        if (row.direction, row.host_memory) == ("HtoD", "pageable")
    )
    share = pageable / analysis.mean_step_us
    if share < 0.01 and not seen.own.pin_memory:
        return
    settings: dict[str, Value] = {"pin_memory": True, "non_blocking": True}
    why = f"{share:.0%} of a step is copying batches from pageable memory"
    yield _idea(seen, "Pinned memory", settings, why, _amdahl(share), "as if these copies took no time")


# ---------------------------------------------------------------- computing


def _amp(seen: Seen) -> Iterator[Suggestion]:
    if seen.own.amp != "off":
        yield Suggestion(title="AMP", state="on", why=f"the script computes in {seen.own.amp} already")
        return
    kind = "bf16" if seen.target.bf16 else "fp16"
    gain, basis = None, f"a step in {kind} was not tried"
    if seen.in_16_bits and (held_s := seen.held_s) and kind == "bf16":
        gain = seen.step_s / (seen.step_s - held_s + held_s / seen.in_16_bits)
        basis = f"tried on a held batch: {seen.in_16_bits:.2f}× as fast in {kind}; the wait for data stays"
    why = _percent("matrix products and convolutions", seen.share(_PRODUCTS))
    yield _idea(seen, "AMP", {"amp": kind}, why, gain, basis, at_most=False)


def _channels_last(seen: Seen) -> Iterator[Suggestion]:
    share = seen.share(_CONVOLUTIONS)
    if not seen.target.convolves and "channels_last" not in seen.target.refused:
        return
    why = _percent("convolutions", share)
    gain, basis = None, "kernels for the other layout are other kernels: only measuring tells"
    analysis = seen.analysis
    if analysis and analysis.has_accelerator and analysis.mean_step_us:
        turned = sum(row.total_us for row in analysis.kernels if _LAYOUTS.search(row.name))
        of_step = turned / len(analysis.steps) / analysis.mean_step_us
        if of_step > 0.01:
            gain, basis = (
                _amdahl(of_step),
                f"kernels that only change the layout take {of_step:.0%} of a step",
            )
    yield _idea(seen, "channels_last", {"channels_last": True}, why, gain, basis)


def _compile(seen: Seen) -> Iterator[Suggestion]:
    share = seen.share(_FUSIBLE)
    gain = None if share is None else _amdahl(share)
    basis = "no profile" if share is None else "as if fused operators took no time"
    yield _idea(
        seen, "torch.compile", {"compile": True}, _percent("operators that can be fused", share), gain, basis
    )


def _optimizer(seen: Seen) -> Iterator[Suggestion]:
    # A loop over parameters is made of operators that the model uses as well: they do not tell its share.
    share = seen.share(_UPDATES) or None
    if seen.optimizer_s is not None:
        share = min(1.0, seen.optimizer_s / seen.block.seconds)
    if share is not None and share < 0.01 and seen.own.optimizer_impl not in ("fused", "foreach"):
        why = f"the optimizer takes {share:.1%} of a step: nothing to gain"
        yield Suggestion(title="Optimizer", state="refused", why=why)
        return
    gain = None if share is None else _amdahl(share)
    basis = "its operators cannot be recognised" if share is None else "as if the optimizer took no time"
    why = _percent("the optimizer's own work", share)
    yield _idea(seen, "Optimizer", {"optimizer_impl": "fused"}, why, gain, basis)


def _gradients(seen: Seen) -> Iterator[Suggestion]:
    if seen.own.zero_grad_set_to_none:
        return
    share = seen.share(_FILLS)
    gain, why = None if share is None else _amdahl(share), _percent("filling gradients with zeros", share)
    settings: dict[str, Value] = {"zero_grad_set_to_none": True}
    yield _idea(seen, "zero_grad to None", settings, why, gain, "as if the filling took no time")


def _threads(seen: Seen) -> Iterator[Suggestion]:
    threads = seen.own.cpu_threads
    if seen.target.device == "cpu" and threads > seen.cores:
        why = f"{threads} compute threads share {seen.cores} usable cores"
        basis = "how much they are in each other's way only measuring tells"
        yield _idea(seen, "CPU threads", {"cpu_threads": seen.cores}, why, None, basis)


def _allocator(seen: Seen) -> Iterator[Suggestion]:
    """Large blocks that are freed go back to the system: the next step gets them again, page by page."""
    share = min(0.95, seen.system_s / seen.whole_s) if seen.whole_s else 0.0
    faults = seen.page_faults * seen.step_s / seen.whole_s if seen.whole_s else 0.0
    if seen.target.device != "cpu" or platform.libc_ver()[0] != "glibc" or faults < _FAULTS or share < 0.03:
        return
    why = f"a step fetches memory that the last one gave back, in {faults:.0f} page faults: the system takes"
    yield Suggestion(
        title="Keep freed memory", state="edit", gain=_amdahl(share), at_most=True,
        why=f"{why} {share:.0%} of the time. Start it with MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1",
        basis="as if the system took no time",
    )  # fmt: skip


def _on_cuda(seen: Seen) -> Iterator[Suggestion]:
    if seen.target.device != "cuda":
        return
    basis = "other kernels: only measuring tells"
    share = _percent("matrix products and convolutions", seen.share(_PRODUCTS))
    if seen.own.amp == "off":
        yield _idea(seen, "TF32", {"fp32_precision": "tf32"}, share, None, basis)
    if seen.target.convolves:
        why = _percent("convolutions", seen.share(_CONVOLUTIONS))
        yield _idea(seen, "cuDNN benchmark", {"cudnn_benchmark": True}, why, None, basis)


def _waits(seen: Seen) -> Iterator[Suggestion]:
    """Lines that wait for the device: only an edit helps."""
    if seen.syncs is None or seen.target.device == "cpu":
        return
    basis = "as if nothing had to be waited for there"
    for place in sorted(seen.syncs.places, key=lambda place: -place.seconds)[:3]:
        share = min(0.95, place.seconds / max(1, seen.syncs.steps) / seen.step_s)
        if share >= 0.01 and place.kind != "host to device":
            title, why = f"{place.call} at {place.where}", f"{place.fix} ({share:.0%} of a step)"
            gain = _amdahl(share)
            yield Suggestion(title=title, state="edit", why=why, gain=gain, at_most=True, basis=basis)


def _batch(seen: Seen) -> Iterator[Suggestion]:
    host = seen.analysis.mean_us["other"] if seen.analysis else None
    if host is None or not seen.analysis or not seen.analysis.mean_step_us:
        return
    share = host / seen.analysis.mean_step_us
    if share > 0.2 and "batch_size" not in seen.target.refused:
        why = f"{share:.0%} of a step is neither operators nor waiting: it hardly depends on the batch"
        settings: dict[str, Value] = {"batch_size": 2 * seen.own.batch_size}
        basis = "that part divided by two; the larger batch changes the training"
        yield _idea(seen, "Batch size", settings, why, _amdahl(share, 2.0), basis)


def _percent(what: str, share: float | None) -> str:
    return f"{what}: {'a share that is not known' if share is None else f'{share:.0%} of a step'}"


_RULES = (
    _workers, _restarts, _copies, _amp, _channels_last, _compile, _optimizer, _gradients, _threads,
    _allocator, _on_cuda, _waits, _batch,
)  # fmt: skip
