"""What a step is made of, as sections: memory, kernels, copies and waits."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit.show import figures_inside, units
from perfkit.show.document import Content, Section, Table
from perfkit.worker.reports import KernelReport, MemoryReport, SyncReport


def memory(ledgers: Sequence[MemoryReport]) -> list[Content]:
    """Bytes at the peak by kind, the highest in each phase, and the largest places; a column for each recipe.

    Args:
        ledgers: of one or more recipes.
    """
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
    places = [
        Table(
            ("module (line)", "what", "bytes"),
            [[where, kind, units.size(size)] for where, kind, size in ledger.places],
            f"Largest at the peak: {ledger.recipe}",
        )
        for ledger in ledgers
    ]
    tables = [
        Table(["what", *titles], kinds, f"At the peak (in {first.peak_phase})"),
        Table(["phase", *titles], highest, "Highest in each phase"),
    ]
    return [Section("Memory of a step", [figures_inside.held(ledgers), *tables, *places])]


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
        Table(("what", "at most"), roofs, "Roofs, measured"),
        Table(("kind", "shape", "type", "time", "GFLOP/s", "of the peak"), shapes, "By shape"),
        Table(("what", "how much"), _step(result), f"A step of {result.recipe}"),
        Table(
            ("layer", "kind", "sizes", "padded", "FLOPs"), padded,
            "Layers with sizes that are not multiples of 8", "" if padded else "none",
        ),
    ]  # fmt: skip
    return [Section("What the device can do", [*figures_inside.roofs(result), *tables])]


def _step(result: KernelReport) -> list[list[str]]:
    work = result.work
    if not work.flops:
        return [["FLOPs", f"n/a: {work.why}"]]
    return [
        ["step", f"{1e3 * result.step_s:.2f} ms"],
        ["FLOPs", f"{work.flops / 1e9:,.2f} GFLOP in {work.dtype}"],
        ["bytes of all operators, unfused", units.size(work.bytes)],
        ["MFU (FLOP/s / measured peak)", f"{result.mfu:.1%}"],
        ["speed of light (FLOPs/peak + bytes/bandwidth) / step", f"{result.light_share:.1%}"],
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
    return [Table(("line", "call", "is", "per step", "remedy"), rows, title, note)]
