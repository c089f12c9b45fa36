"""What a step on a simulated GPU is made of, from its plan: memory, copies and waits."""

from perfkit.simulate.prediction import Prediction, memory_band, peak
from perfkit.simulate.step import Allocate, Copy, Event, Operator, Wait
from perfkit.worker.messages import ITEM_REMEDY, TO_HOST_REMEDY, MemoryReport, Place, SyncReport, copy_remedy


def memory(prediction: Prediction) -> MemoryReport:
    """What holds device memory in a step."""
    step = prediction.step
    allocated, at = peak(step)
    held: dict[int, tuple[str, str, int]] = {
        block.block: (block.kind, block.kind, block.nbytes) for block in step.resident
    }
    phase = where = "data"
    for event in step.events[: at + 1]:
        match event:
            case Operator():
                phase = "data" if event.phase in ("copy", "prepare") else event.phase
                where = event.module or event.phase
            case Copy():
                phase = where = "data"
            case Allocate() if event.nbytes > 0:
                held[event.block] = where, event.kind, event.nbytes
            case Allocate():
                held.pop(event.block, None)
    return MemoryReport.of(
        held.values(), peak_phase=phase, allocated=allocated, reserved=None,
        recipe=prediction.recipe.describe(),
        simulated=f"Simulated {prediction.gpu.name}: no kernel ran. Predicted, ±{memory_band(step):.0%}",
    )  # fmt: skip


def syncs(prediction: Prediction, steps: int) -> SyncReport:
    """Lines that copy or wait between host and device, in so many steps."""
    places: dict[tuple[str, str], Place] = {}
    for event in prediction.step.events:
        if place := _place(event):
            known = places.setdefault((place.call, place.where), place)
            known.count += steps
    ordered = sorted(places.values(), key=lambda place: (-place.count, place.where))
    note = f"Simulated {prediction.gpu.name}: these are the copies and waits of the step's plan; nothing ran"
    return SyncReport(ordered, steps, "cuda", note)


def _place(event: Event) -> Place | None:
    where = getattr(event, "site", "").replace("\\", "/").rpartition("/")[2] or "the training loop"
    match event:
        case Wait(streams=None):
            return Place(event.what, where, "wait", ITEM_REMEDY)
        case Copy(to="host"):
            return Place("cpu", where, "device to host", TO_HOST_REMEDY)
        case Copy():
            kind = "pinned" if event.pinned else "pageable"
            fix = copy_remedy(kind, event.non_blocking)
            return Place("to", where, "host to device", fix, kind)
    return None
