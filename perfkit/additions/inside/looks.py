"""Looks inside a step: asks a training in a new process, and shows the answer."""

from collections.abc import Sequence
from typing import Unpack

from perfkit.additions.inside import KERNELS, MEMORY, KernelReport, MemoryReport, SyncReport
from perfkit.additions.shared.looking import Chosen, prepared
from perfkit.cli import options
from perfkit.show import style, units
from perfkit.show.document import Cell, Col, Content, Notice, Table, tabulate
from perfkit.show.style import Figure, Look, Row
from perfkit.studies.planning import Where
from perfkit.studies.sources import Progress

_KINDS = (
    Look("weights", style.BLUE), Look("gradients", style.SKY, "//"), Look("optimizer", style.PURPLE, "xx"),
    Look("batch", style.GREEN, "--"), Look("activations", style.VERMILLION, ".."),
    Look("workspace", style.GREY, "\\\\"),
)  # fmt: skip


def memory(workload: str | None, recipe: Chosen, progress: Progress, **where: Unpack[Where]) -> MemoryReport:
    """Reports what holds memory in a training step; arguments as for `prepared`."""
    with prepared(workload, recipe, where, progress) as (session, used):
        return session.ask_training(used, MEMORY, warm=False)  # type: ignore[no-any-return]


def memory_command(
    training: options.RecipeOptions, output: options.OutputOptions, stage: options.StageName = None
) -> None:
    """Shows what holds memory in a training step, by kind."""
    with options.progress() as follow:
        report = memory(recipe=stage, progress=follow, **training.where())
    output.deliver("memory of a step", memory_sections([report]), report)


def memory_sections(reports: Sequence[MemoryReport]) -> list[Content]:
    """Shows the bytes at the peak by kind: a bar and a column for each recipe."""
    first = reports[0]
    scale, unit = units.size_unit(max(report.peak for report in reports))
    rows = list[Row]()
    columns = [Col("what", str)]
    for report in reports:
        pieces = [(report.parts[look.label] / scale, look) for look in _KINDS]
        rows.append(Row(report.recipe, pieces, units.size(report.peak)))
        columns.append(Col(report.recipe, _sizes(report).get, units.size))
    title = f"{'Simulated: what' if first.simulated else 'What'} holds memory at the peak of a step"
    kinds = [kind for kind, size in _sizes(first).items() if size is not None]
    return [
        *([Notice(f"{first.simulated}.")] if first.simulated else []),
        Figure("held", title, rows, f"{unit} at the peak"),
        tabulate(columns, kinds, f"At the peak (in {first.peak_phase})"),
    ]


def _sizes(report: MemoryReport) -> dict[str, int | None]:
    allocator = {"allocator: allocated": report.allocated, "allocator: reserved": report.reserved}
    return {**report.parts, "total": report.peak, **allocator}


def kernels(workload: str | None, recipe: Chosen, progress: Progress, **where: Unpack[Where]) -> KernelReport:
    """Measures the device by shape, and how much of it a training uses; arguments as for `prepared`."""
    with prepared(workload, recipe, where, progress, "a look at kernels") as (session, used):
        return session.ask_training(used, KERNELS)  # type: ignore[no-any-return]


def kernel_sections(report: KernelReport) -> list[Content]:
    """Shows roofs, shapes, and the step's share of them."""

    def gflops(flops: float) -> str:
        return f"{flops / 1e9:,.0f}"

    shapes = (
        Col("shape", "shape"),
        Col("type", "dtype"),
        Col("time", "seconds", units.duration),
        Col("GFLOP/s", "flops_per_s", gflops),
        Col("of the peak", lambda row: row.flops_per_s / report.peaks[row.dtype], units.percent),
        Col("FLOPs per byte", "flops_per_byte", units.number),
    )
    roofs = [[name, f"{gflops(peak)} GFLOP/s"] for name, peak in report.peaks.items()]
    roofs.append(["copying", f"{report.bytes_per_s / 1e9:,.1f} GB/s"])
    step: list[list[Cell | str]] = [
        ["step", Cell(report.step_s, units.duration)],
        ["FLOPs", Cell(report.flops, lambda flops: f"{flops / 1e9:,.2f} GFLOP in {report.dtype}")],
        ["share of the measured peak (FLOP/s)", Cell(report.mfu, "{:.1%}".format)],
    ]
    note = "" if report.flops else "FLOPs are not counted in a compiled model or in cuDNN's recurrent layers."
    return [
        Table(("quantity", "at most"), roofs, "Roofs, measured"),
        tabulate(shapes, report.rows, "By shape", "Of a slow type only the first shapes are measured."),
        Table(("quantity", "value"), step, f"A step of {report.recipe}", note),
    ]


def sync_table(report: SyncReport) -> Table:
    """Lines that copy or wait between host and device, each with a remedy. On a CPU they do not wait yet."""
    columns = (
        Col("line", "where"),
        Col("call", "call"),
        Col("per step", lambda place: place.count / report.steps, lambda count: f"{count:g}"),
        Col("remedy", "fix"),
        Col("kind", "kind"),
    )
    note = ""
    if report.device == "cpu":
        note = "This run is on the CPU. On a GPU, these places wait for it if their tensors are there."
    return tabulate(columns, report.places, "Copies and waits between host and device", note)
