"""What a step is made of, as sections with their figures: memory, kernels, copies and waits."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfkit.show import style, units
from perfkit.show.document import Col, Content, Figure, Notice, Table, tabulate
from perfkit.show.style import Look
from perfkit.worker.messages import KernelReport, MemoryReport, SyncReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_KINDS = {
    look.label: look
    for look in (
        Look("weights", style.BLUE),
        Look("gradients", style.SKY, "//"),
        Look("optimizer", style.PURPLE, "xx"),
        Look("batch", style.GREY, "--"),
        Look("activations", style.ORANGE, ".."),
        Look("workspace", style.YELLOW, "\\\\"),
    )
}
_TYPES = {"float32": (style.BLUE, "o"), "bfloat16": (style.ORANGE, "D"), "float16": (style.PURPLE, "s")}


def memory(ledgers: Sequence[MemoryReport]) -> list[Content]:
    """Bytes at the peak by kind, and the largest places; a column for each recipe."""
    first = ledgers[0]
    held = [
        {
            **ledger.parts,
            "all together": ledger.peak,
            "allocator: allocated": ledger.allocated,
            "allocator: reserved": ledger.reserved,
        }
        for ledger in ledgers
    ]
    kinds = [kind for kind, size in held[0].items() if size is not None]
    columns = [Col(ledger.recipe, sizes.get, units.size) for ledger, sizes in zip(ledgers, held, strict=True)]
    places = (
        Col("module", lambda place: place[0]),
        Col("what", lambda place: place[1]),
        Col("bytes", lambda place: place[2], units.size),
    )
    peaks = ", ".join(f"{ledger.recipe}: {units.size(ledger.peak)}" for ledger in ledgers)
    picture = Figure(
        "held",
        f"{'Simulated: what' if first.simulated else 'What'} holds memory at the peak of a step",
        f"Memory at the peak: {peaks}",
        lambda drawing: _held(ledgers, drawing),
        style.rows_height(len(ledgers)),
    )
    return [
        *([Notice(f"{first.simulated}.")] if first.simulated else []),
        picture,
        tabulate([Col("what", str), *columns], kinds, f"At the peak (in {first.peak_phase})"),
        *(tabulate(places, ledger.places, f"Largest at the peak: {ledger.recipe}") for ledger in ledgers),
    ]


def _held(ledgers: Sequence[MemoryReport], drawing: "Drawing") -> None:
    ax, peaks = drawing.add_subplot(), [ledger.peak for ledger in ledgers]
    scale, unit = units.size_unit(max(peaks))
    style.named(ax, [ledger.recipe for ledger in ledgers], [*map(units.size, peaks)], f"{unit} at the peak")
    for at, ledger in enumerate(ledgers):
        style.stack(ax, at, [(ledger.parts[kind] / scale, look) for kind, look in _KINDS.items()])
    ax.set_xlim(0, 1.03 * max(peaks) / scale)
    style.legend(ax, _KINDS.values())


def kernels(result: KernelReport) -> list[Content]:
    """Roofs, shapes, the step's share of them."""

    def gflops(flops: float) -> str:
        return f"{flops / 1e9:,.0f}"

    shapes = (
        Col("shape", "shape"),
        Col("type", "dtype"),
        Col("time", "seconds", units.duration),
        Col("GFLOP/s", "flops_per_s", gflops),
        Col("of the peak", lambda row: row.flops_per_s / result.peaks[row.dtype], units.percent),
    )
    roofs = [[name, f"{gflops(peak)} GFLOP/s"] for name, peak in result.peaks.items()]
    roofs.append(["copying", f"{result.bytes_per_s / 1e9:,.1f} GB/s"])
    work = result.work
    step = [["FLOPs", f"n/a: {work.why}"]]
    if work.flops:
        step = [
            ["step", units.duration(result.step_s)],
            ["FLOPs", f"{work.flops / 1e9:,.2f} GFLOP in {work.dtype}"],
            ["bytes of all operators, unfused", units.size(work.bytes)],
            ["share of the measured peak (FLOP/s)", f"{result.mfu:.1%}"],
        ]
    picture = Figure(
        "roofline",
        "What shapes reach, under the roofs of this device",
        f"Roofline: {', '.join(': '.join(roof) for roof in roofs)}",
        lambda drawing: _roofline(result, drawing),
    )
    return [
        picture,
        Table(("what", "at most"), roofs, "Roofs, measured"),
        tabulate(shapes, result.rows, "By shape"),
        Table(("what", "how much"), step, f"A step of {result.recipe}"),
    ]


def _roofline(result: KernelReport, drawing: "Drawing") -> None:
    """What each shape reaches, and what the device could do at its FLOPs per byte; both axes logarithmic."""
    ax, across = drawing.add_subplot(), np.logspace(-1, 4, 200)
    for dtype, peak in result.peaks.items():
        colour, sign = _TYPES[dtype]
        shapes = [row for row in result.rows if row.dtype == dtype]
        x, y = [row.flops_per_byte for row in shapes], [row.flops_per_s / 1e9 for row in shapes]
        ax.plot(across, np.minimum(peak, across * result.bytes_per_s) / 1e9, color=colour, linewidth=1.6)
        ax.plot(x, y, sign, color=colour, label=dtype)
    if (work := result.work).flops and work.bytes:
        place = work.flops / work.bytes, work.flops / result.step_s / 1e9
        ax.plot(*place, "*", color=style.YELLOW, markersize=16, label="this training's step")
    ax.set(xscale="log", yscale="log", xlabel="FLOPs per byte read or written", ylabel="GFLOP/s")
    for axis in (ax.xaxis, ax.yaxis):  # the usual one writes mathematics, which is off in all figures
        axis.set_major_formatter("{x:g}")
    ax.legend(loc="lower right")


def syncs(report: SyncReport) -> list[Content]:
    """Lines that copy or wait between host and device, with a remedy for each; on a CPU nothing waits yet."""
    columns = (
        Col("line", "where"),
        Col("call", "call"),
        Col("per step", lambda place: place.count / report.steps, lambda count: f"{count:g}"),
        Col("remedy", "fix"),
        Col("is", "kind"),
    )
    note = ""
    if report.device == "cpu":
        note = "This run is on the CPU. On a GPU, these places wait for it if their tensors are there."
    title = "Copies and waits between host and device"
    return [tabulate(columns, report.places, title, note)]
