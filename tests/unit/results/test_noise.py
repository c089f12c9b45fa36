"""The A/A noise of a device is kept by device; what was never measured is not known."""

import subprocess
import sys
from pathlib import Path

from perfkit.results import noise, stats
from perfkit.results.stats import AAPair


def test_noise_is_kept_for_each_device_and_unknown_before(data_dir: Path) -> None:
    assert noise.load("cpu") is None
    pairs = [AAPair(0.01, 0.0), AAPair(-0.02, 1e-4)]
    noise.add("cpu", pairs[:1])
    noise.add("cuda", [AAPair(0.1, 0.0)])
    noise.add("cpu", pairs[1:])
    assert noise.load("cpu") == stats.aa_noise_bound(pairs)
    assert noise.load("cuda") == stats.aa_noise_bound([AAPair(0.1, 0.0)])


def test_processes_of_a_script_are_never_taken_to_differ_less_than_those_elsewhere(data_dir: Path) -> None:
    assert noise.expected("cpu") == (stats.aa_noise_bound(()), True)
    assert noise.expected("cpu", script=True) == (0.05, True)
    assert noise.expected("cuda") == (None, False)
    noise.add("cpu", [AAPair(0.0, 0.0)] * 10)
    known = noise.load("cpu")
    assert known is not None
    assert known < 0.05
    assert noise.expected("cpu") == (known, False)
    assert noise.expected("cpu", script=True) == (0.05, True)
    noise.add("cpu", [AAPair(0.1, 0.0)] * 10)
    assert noise.expected("cpu", script=True) == (noise.load("cpu"), False)


def test_only_the_newest_pairs_of_a_device_count(data_dir: Path) -> None:
    noise.add("cpu", [AAPair(0.5, 0.0)] * 30)
    noise.add("cpu", [AAPair(0.0, 0.0)] * 30)
    assert noise.load("cpu") == stats.aa_noise_bound([AAPair(0.0, 0.0)] * 30)


def test_two_kernels_that_add_at_once_lose_nothing(data_dir: Path) -> None:
    """Fails where a file is read, changed and written back."""
    script = (
        "import sys; from perfkit.results import noise\n"
        "for n in range(200): noise.add(sys.argv[1], [noise.AAPair(n, 0.0)])"
    )
    kernels = [subprocess.Popen([sys.executable, "-c", script, device]) for device in ("cpu", "cuda")]
    assert [kernel.wait() for kernel in kernels] == [0, 0]
    assert len((data_dir / "runs" / "noise.jsonl").read_text().splitlines()) == 400


def test_a_damaged_line_hides_no_other(data_dir: Path) -> None:
    noise.add("cpu", [AAPair(0.5, 0.0)])
    with (data_dir / "runs" / "noise.jsonl").open("a") as file:
        file.write('{damaged\n{"device": "cpu", "pair": ["x", 1]}\n')
    assert noise.load("cpu") == stats.aa_noise_bound([AAPair(0.5, 0.0)])
