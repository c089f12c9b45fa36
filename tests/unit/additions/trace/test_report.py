"""What is shown of a trace: findings, tables, figures."""

from pathlib import Path

import pytest

from perfkit.additions.trace.analysis import analyse
from perfkit.additions.trace.profile import Profile
from perfkit.show import document, terminal
from perfkit.show.style import Figure
from tests.unit.additions.trace.recording import LOADER, step

RECORDED = Path(__file__).parents[4] / "data" / "recordings" / "traces"


def test_the_pages_of_a_cpu_and_of_a_simulated_gpu(golden):
    pages = []
    for name in ("photos-baseline", "sim-v100-data_loading"):
        pages.append(Profile(analyse(RECORDED / f"{name}.pt.trace.json.gz")).sections()[:-1])
    golden("report", "\n".join(map(terminal.text, pages)))
    cpu, gpu = pages
    (axes,) = document.find(cpu, Figure, "breakdown").draw().axes
    assert len(axes.patches) == 3 * 4, "three steps and the mean: loader, operators, other"
    assert document.find(gpu, Figure, "breakdown").title == "Simulated: Where the time goes"


def launches(*kernels, **head):
    recording = step(**head)
    for name, at, run in kernels:
        cat = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        recording.launch(name, at, run, cat=cat, cost=0.5)
    return recording


def copy(host):
    return launches((f"Memcpy HtoD ({host} -> Device)", 0, (2, 40)), ("k", 41, (42, 58)))


A100 = {"deviceProperties": [{"id": 0, "name": "A100", "computeMajor": 8, "computeMinor": 0, "numSms": 108}]}
SLOW = launches(*(("k", at + 4, (at + 7, 1)) for at in range(0, 100, 10)))
WAITS = launches(("k", 0, (2, 40)), ("k", 62, (63, 35))).add("cuda_runtime", "cudaStreamSynchronize", 42, 20)
TALK = (
    step().op("MmBackward0", 0, 1).launch("gemm", 0, (2, 50)).launch("ncclDevKernel", 1, (40, 58), stream=9)
)
FINE = launches(*(("gemm_mystery", at / 10, (at + 2, 7.5)) for at in range(0, 100, 10)))
LOST = step().add("cuda_runtime", "cudaLaunchKernel", 50, 2, correlation=99)


@pytest.mark.parametrize(
    ("recording", "bottleneck", "exposed", "first"),
    [
        (step().op(LOADER, 0, 50).launch("k", 50, (52, 46)), "data-bound", 50, "workers"),
        (SLOW, "host-bound", 63, "compile"),
        (copy("Pageable"), "copy-bound", 40, "pin_memory"),
        (copy("Pinned"), "copy-bound", 40, "non_blocking"),
        (WAITS, "sync-bound", 20, None),
        (TALK, "communication-bound", 46, "accumulation"),
        (launches(("implicit_convolve_sgemm", 0, (2, 95))), "device-bound", 95, "channels_last"),
        (launches(("ampere_sgemm", 0, (2, 95)), **A100), "device-bound", 95, "amp"),
        (step().op("aten::mm", 2, 96), "device-bound", 96, "cpu_threads"),
        (step().op("aten::mm", 2, 50), "host-bound", 50, "compile"),
        (step().op("MmBackward0", 2, 50), "host-bound", 50, "batch_size"),
        (FINE, "late-start", 24, None),
        (LOST, None, 0, None),
    ],
)  # fmt: skip
def test_findings_have_their_time_a_bound_and_a_switch(tmp_path, recording, bottleneck, exposed, first):
    findings = {finding.bottleneck: finding for finding in recording.analyse(tmp_path).diagnosis}
    if bottleneck is None:
        assert findings == {}
        return
    finding = findings[bottleneck]
    assert finding.exposed_us == pytest.approx(exposed)
    is_bounded = exposed < 95 and bottleneck != "late-start"
    assert finding.gain_at_most == (pytest.approx(100 / (100 - exposed)) if is_bounded else None)
    assert next(iter(finding.try_next), None) == first
