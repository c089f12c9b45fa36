"""Sessions that never ran: made-up numbers of the right kind, for looking at and for tests."""

import msgspec
import numpy as np

from perfkit.recipe import Recipe
from perfkit.results.run import AGAIN, Mechanism, Pairing, Raw, Run

# stage, title, samples/s, share of waiting, ceiling, batch size, peak memory in bytes; or the reason of none
Row = tuple[str, str, float, float, float, int, float]

_CPU = [
    ("baseline", "baseline", 16.2, 0.41, 27.5, 32, 1.21e9),
    ("data_loading", "data loading", 24.9, 0.04, 26.1, 32, 1.24e9),
    ("pinning", "pinning", "not_applicable", "Pin memory needs a CUDA device; this run is on cpu"),
    ("batch_size", "batch size", 25.1, 0.03, 26.3, 128, 3.9e9),
    ("uint8_copy", "uint8 copy", 24.8, 0.03, 26.0, 128, 3.6e9),
    ("zero_grad", "zero_grad", 24.9, 0.03, 26.2, 128, 3.6e9),
    ("device_resize", "resize on device", 22.1, 0.01, 22.3, 128, 3.5e9),
    ("channels_last", "channels_last", 31.7, 0.02, 32.1, 128, 3.4e9),
    ("amp", "AMP", 47.9, 0.05, 50.3, 128, 2.6e9),
    ("compile", "compile", "failed", "torch.compile found no C++ compiler. Install g++ and run again"),
]

_GPU = [
    ("baseline", "baseline", 402.0, 0.54, 2600.0, 32, 1.05e9),
    ("data_loading", "data loading", 1865.0, 0.12, 2610.0, 32, 1.05e9),
    ("pinning", "pinning", 2200.0, 0.02, 2620.0, 32, 1.05e9),
    ("batch_size", "batch size", 4584.0, 0.02, 4790.0, 512, 11.3e9),
    ("amp", "AMP", "cancelled", "Stopped by the person at round 3 of 7"),
]

_MACHINE = {
    "os": "Linux 6.1",
    "cpu": {"model": "Fake CPU 9000", "cores_usable": 2},
    "memory_bytes": 17_179_869_184,
    "gpus": [],
    "versions": {"python": "3.11.7", "torch": "2.11.0"},
}


def session(gpu=False, **changes):
    """Ten stages on a CPU (one n/a, one failed, one slower), or five on a GPU (one cancelled)."""
    made = []
    for row in _GPU if gpu else _CPU:
        made.append(_run(row, made, gpu))
    return [msgspec.structs.replace(run, **changes) for run in made]


def many(count, gpu=False):
    """This number of stages, with titles that get longer and longer."""
    base = session(gpu)
    words = " of a stage whose title nobody thought of keeping short"
    picked = [base[at % len(base)] for at in range(count)]
    return [
        msgspec.structs.replace(run, title=(run.title + words)[: 12 + 4 * at])
        for at, run in enumerate(picked)
    ]


def _run(row, before, gpu):
    known = {
        "id": f"fake-{row[0]}", "session": "fake", "created": "2026-11-20T12:00:00+00:00", "stage": row[0],
        "title": row[1], "workload": "perfkit.workloads.cifar_resnet18:CifarResNet18", "preset": "quick",
        "device": "cuda:0" if gpu else "cpu", "machine": _MACHINE, "options": {"image_size": 224},
    }  # fmt: skip
    if isinstance(row[2], str):
        return Run(**known, recipe=Recipe().to_dict(), status=row[2], reason=row[3])
    return Run(**known, **_results(row, before, gpu))


def _results(row, before, gpu):
    stage, _, rate, wait, ceiling, batch, memory = row
    noise = np.random.default_rng(len(before))
    blocks = rate * noise.normal(1, 0.012, 7)
    steps = batch / rate * np.concatenate([[3.0, 1.6], noise.normal(1, 0.04, 40)])
    busy = np.clip(100 * rate / ceiling + noise.normal(0, 4, 30), 0, 100)
    measured = [run for run in before if run.status == "ok"]
    recipe = Recipe(batch_size=batch, uint8_copy=stage == "uint8_copy", workers=min(len(before), 2))
    evidence = [Mechanism("uint8_copy", True, "batch is uint8 on the wire: 3,072 B a sample, was 602,112 B")]
    evidence += [Mechanism("workers", True, f"{recipe.workers} worker processes live")]
    bytes_per_sample = 602_112 if len(before) < 4 else 3_072
    return {
        "recipe": recipe.to_dict(),
        "raw": Raw(
            step_s=list(steps), data_wait_s=list(steps * wait), warmup_steps=2,
            block_samples_per_s=list(blocks), ceiling_samples_per_s=list(ceiling * noise.normal(1, 0.01, 7)),
            gpu_utilization_nvml=list(busy) if gpu else [],
        ),
        "samples_per_step": batch, "mechanism": evidence, "startup_s": 4.2,
        "pairings": _pairings(measured, blocks),
        "losses": list(2.4 - 0.12 * np.arange(8) * (1 + len(before) / 20) + noise.normal(0, 0.04, 8)),
        "peak_memory_bytes": int(memory), "peak_reserved_bytes": int(1.18 * memory) if gpu else None,
        "batch_bytes_per_sample": bytes_per_sample, "h2d_bytes_per_sample": bytes_per_sample if gpu else None,
        "facts": {"weights": "random"},
        "warnings": ["blocks differ by more than 10%: close other programs"] if stage == "batch_size" else [],
    }  # fmt: skip


def _pairings(measured, own):
    sides = [("previous", measured[-1]), ("baseline", measured[0])] if measured else []
    return [_pairing(role, other, own) for role, other in sides]


def _pairing(role, other, own, **more):
    return Pairing(
        own_samples_per_s=list(own), other_samples_per_s=other.raw.block_samples_per_s, against=other.id,
        role=role, interleaved=True, **more,
    )  # fmt: skip


def again(runs):
    """The same session with its A/A row."""
    first = runs[0]
    blocks = [1.004 * rate for rate in reversed(first.raw.block_samples_per_s)]
    row = msgspec.structs.replace(
        first, id=f"fake-{AGAIN}", stage=AGAIN, title=f"{first.title} (again)",
        pairings=[_pairing("baseline", first, blocks)],
        raw=msgspec.structs.replace(first.raw, block_samples_per_s=blocks),
    )  # fmt: skip
    return [*runs, row]


def disturbed(runs, share=0.37):
    """The same session with another program beside it in all rounds."""
    took = f"{share:.0%} of the cores (chrome (process 7) {share:.0%})"
    warning = f"other programs took {took}: close them, then run it again"

    def changed(run):
        shares = [share] * len(run.raw.block_samples_per_s)
        pairings = [msgspec.structs.replace(one, disturbed=shares) for one in run.pairings]
        raw = msgspec.structs.replace(run.raw, disturbed=shares)
        return msgspec.structs.replace(run, raw=raw, pairings=pairings, warnings=[warning, *run.warnings])

    return [changed(run) if run.status == "ok" else run for run in runs]
