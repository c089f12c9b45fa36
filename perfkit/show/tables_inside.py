"""What a step is made of, as sections with their figures: memory, kernels, copies and waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfkit.show import style, units
from perfkit.show.document import Content, Figure, Notice, Section, Table
from perfkit.show.rows import legend, named, stack
from perfkit.worker.reports import KernelReport, MemoryReport, SyncReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOOK = {"float32": (style.BLUE, "o"), "bfloat16": (style.ORANGE, "D"), "float16": (style.PURPLE, "s")}
_KINDS = {
    "weights": (style.BLUE, ""), "gradients": (style.SKY, "//"), "optimizer": (style.PURPLE, "xx"),
    "batch": (style.GREY, "--"), "activations": (style.ORANGE, ".."), "workspace": (style.YELLOW, "\\\\"),
}  # fmt: skip
_ALIGNMENT = "what sizes that divide by less cost is not simulated: only a real GPU shows it"


def memory(ledgers: Sequence[MemoryReport]) -> list[Content]:
    """Bytes at the peak by kind, the highest in each phase, the largest places; a column for each recipe."""
    first, titles = ledgers[0], [ledger.recipe for ledger in ledgers]
    kinds = [[kind, *(units.size(ledger.parts[kind]) for ledger in ledgers)] for kind in first.parts]
    kinds.append(["all together", *(units.size(ledger.peak) for ledger in ledgers)])
    if first.allocated is not None:
        kinds += [
            [f"allocator: {name}", *(units.size(getattr(ledger, name)) for ledger in ledgers)]
            for name in ("allocated", "reserved")
        ]
    phases = list(dict.fromkeys(phase for ledger in ledgers for phase in ledger.phases))
    highest = [[phase, *(units.size(ledger.phases.get(phase, 0)) for ledger in ledgers)] for phase in phases]
    numbers = ", ".join(f"{ledger.recipe}: {units.size(ledger.peak)}" for ledger in ledgers)
    title = _titled("What holds memory at the peak of a step", first.simulated)
    figure = Figure(
        "held", title, f"Memory at the peak: {numbers}",
        lambda ax, ink: _held(ledgers, ax, ink), style.rows_height(ledgers),
    )  # fmt: skip
    tables = [
        Table(["what", *titles], kinds, f"At the peak (in {first.peak_phase})"),
        Table(["phase", *titles], highest, "Highest in each phase"),
    ]
    for ledger in ledgers:
        places = [[where, kind, units.size(size)] for where, kind, size in ledger.places]
        columns = ("module (line)", "what", "bytes")
        tables.append(Table(columns, places, f"Largest at the peak: {ledger.recipe}"))
    return [Section("Memory of a step", [*_simulated(first.simulated), figure, *tables])]


def _simulated(label: str) -> list[Content]:
    """What a reader must know before any number of a simulated GPU."""
    return [Notice(label + ".")] if label else []


def _held(ledgers: Sequence[MemoryReport], ax: Axes, ink: str) -> None:
    peaks = [units.size(ledger.peak) for ledger in ledgers]
    named(ax, ink, [ledger.recipe for ledger in ledgers], peaks, "MB at the peak")
    for at, ledger in enumerate(ledgers):
        stack(ax, ink, at, [(ledger.parts[kind] / 1e6, *look) for kind, look in _KINDS.items()])
    ax.set_xlim(0, 1.03 * max(ledger.peak for ledger in ledgers) / 1e6)
    legend(ax, ink, [(kind, *look) for kind, look in _KINDS.items()])


def kernels(result: KernelReport) -> list[Content]:
    """Roofs, shapes, the step's share of them, badly aligned layers."""
    roofs = [[name, f"{peak / 1e9:,.0f} GFLOP/s"] for name, peak in result.peaks.items()]
    roofs.append(["copying", f"{result.bytes_per_s / 1e9:,.1f} GB/s"])
    shapes = [
        [row.kind, row.shape, row.dtype, f"{1e3 * row.seconds:.3f} ms",
         f"{row.flops_per_s / 1e9:,.0f}", f"{row.flops_per_s / result.peaks[row.dtype]:.0%}"]
        for row in result.rows
    ]  # fmt: skip
    padded = [
        [row.layer, row.kind, *(" x ".join(map(str, sizes)) for sizes in (row.sizes, row.padded)),
         f"+{row.more_flops:.1%}"]
        for row in result.misaligned
    ]  # fmt: skip
    tables = [
        Table(("what", "at most"), roofs, "Roofs, " + ("simulated" if result.simulated else "measured")),
        Table(("kind", "shape", "type", "time", "GFLOP/s", "of the peak"), shapes, "By shape"),
        Table(("what", "how much"), _step(result), f"A step of {result.recipe}"),
        Table(
            ("layer", "kind", "sizes", "padded", "FLOPs"), padded,
            "Layers with sizes that are not multiples of 8", "" if padded else "none",
        ),
    ]  # fmt: skip
    note = _simulated(result.simulated)
    return [Section("What the device can do", [*note, *_roofs(result), *tables])]


def _titled(title: str, label: str) -> str:
    return f"Simulated: {title[0].lower()}{title[1:]}" if label else title


def _roofs(result: KernelReport) -> list[Figure]:
    peaks = ", ".join(f"{name} {peak / 1e9:,.0f} GFLOP/s" for name, peak in result.peaks.items())
    return [
        Figure(
            "roofline", _titled("What shapes reach, under the roofs of this device", result.simulated),
            f"Roofline: peaks {peaks}, copying {result.bytes_per_s / 1e9:,.0f} GB/s",
            lambda ax, ink: _roofline(result, ax, ink), 4.6,
        ),
        Figure(
            "shapes", _titled("The same product, with sizes that divide by less and less", result.simulated),
            "Heat map of products by the divisors of k and n; the same numbers are in the table",
            lambda ax, ink: _shapes(result, ax, ink), 3.9,
            _ALIGNMENT if result.simulated else "",
        ),
    ]  # fmt: skip


def _roofline(result: KernelReport, ax: Axes, ink: str) -> None:
    """What each shape reaches, and what the device could do at its FLOPs per byte; both axes logarithmic."""
    style.plain_axes(ax, ink)
    across = np.logspace(-1, 4, 200)
    for dtype, peak in result.peaks.items():
        colour, sign = _LOOK[dtype]
        ax.plot(across, np.minimum(peak, across * result.bytes_per_s) / 1e9, color=colour, linewidth=1.6)
        rows = [row for row in result.rows if row.dtype == dtype]
        points = [row.flops_per_byte for row in rows], [row.flops_per_s / 1e9 for row in rows]
        ax.plot(*points, sign, color=colour, markeredgecolor=ink, label=dtype)
    work = result.work
    if work.flops and work.bytes:
        x, y = work.flops / work.bytes, work.flops / result.step_s / 1e9
        label = "this training's step"
        ax.plot(x, y, "*", color=style.YELLOW, markeredgecolor=ink, markersize=16, label=label)
    ax.set_xscale("log")
    ax.set_yscale("log")
    style.axis_labels(ax, ink, "FLOPs per byte read or written", "GFLOP/s")
    ax.legend(frameon=False, labelcolor=ink, fontsize=0.9 * style.type_size(ax), loc="lower right")


def _shapes(result: KernelReport, ax: Axes, ink: str) -> None:
    """Products by the divisors of their sizes: a square is GFLOP/s, brighter where more is reached."""
    kinds, figure, size = ("64", "8", "4", "odd"), ax.get_figure(root=True), style.type_size(ax)
    assert figure is not None
    ax.remove()
    for at, dtype in enumerate(result.peaks):
        panel = figure.add_subplot(1, len(result.peaks), at + 1)
        rows = [row for row in result.rows if (row.kind, row.dtype) == ("matmul", dtype)][:16]
        reached = np.array([row.flops_per_s / 1e9 for row in rows]).reshape(4, 4)
        panel.imshow(reached, cmap="cividis", vmin=0, vmax=reached.max())
        for (down, across), value in np.ndenumerate(reached):
            colour = "white" if value < 0.55 * reached.max() else "black"
            panel.text(
                across, down, f"{value:,.0f}", ha="center", va="center", fontsize=0.85 * size, color=colour
            )
        panel.set_xticks(range(4), kinds)
        panel.set_yticks(range(4), kinds)
        panel.tick_params(colors=ink, labelsize=0.9 * size)
        style.axis_labels(panel, ink, "n divides by", "k divides by")
        panel.set_title(f"{dtype}, GFLOP/s", color=ink, fontsize=size)


def _step(result: KernelReport) -> list[list[str]]:
    work = result.work
    if not work.flops:
        return [["FLOPs", f"n/a: {work.why}"]]
    return [
        ["step", f"{1e3 * result.step_s:.2f} ms"],
        ["FLOPs", f"{work.flops / 1e9:,.2f} GFLOP in {work.dtype}"],
        ["bytes of all operators, unfused", units.size(work.bytes)],
        ["MFU (FLOP/s / measured peak)", f"{result.mfu:.1%}"],
        ["speed of light (every operator at its roof) / step", f"{result.light_share:.1%}"],
    ]


def syncs(report: SyncReport) -> list[Content]:
    """Lines that copy or wait between host and device, with a remedy for each; on a CPU nothing waits yet."""
    rows = [
        [place.where, place.call, place.kind, f"{place.count / report.steps:g}", place.fix]
        for place in report.places
    ]
    note = "" if rows else "no copy and no wait between host and device"
    if rows and report.device == "cpu":
        note = "This run is on the CPU: these are the places that would wait for a GPU."
    title = "Copies and waits between host and device"
    note = f"{report.simulated}. {note}".strip() if report.simulated else note
    return [Table(("line", "call", "is", "per step", "remedy"), rows, title, note)]
