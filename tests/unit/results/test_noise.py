"""The A/A noise of a device, and whether the losses of a script are still the same."""

import math
import subprocess
import sys

import pytest

from perfkit.results import noise, stats
from perfkit.results.parity import losses
from perfkit.results.stats import AAPair

PLAIN = [2.0, 1.5, 1.0]


def test_noise_is_kept_for_each_device_by_its_newest_pairs_and_unknown_before(data_dir):
    assert noise.load("cpu") is None
    pairs = [AAPair(0.01, 0.0), AAPair(-0.02, 1e-4)]
    noise.add("cpu", pairs[:1])
    noise.add("cuda", [AAPair(0.1, 0.0)])
    noise.add("cpu", pairs[1:])
    with (data_dir / "runs" / "noise.jsonl").open("a") as file:
        file.write('{damaged\n{"device": "cpu", "pair": ["x", 1]}\n')
    assert noise.load("cpu") == stats.aa_noise_bound(pairs)
    assert noise.load("cuda") == stats.aa_noise_bound([AAPair(0.1, 0.0)])
    noise.add("cpu", [AAPair(0.0, 0.0)] * 30)
    assert noise.load("cpu") == stats.aa_noise_bound([AAPair(0.0, 0.0)] * 30)


def test_processes_of_a_script_are_never_taken_to_differ_less_than_those_elsewhere(data_dir):
    assert noise.expected("cpu") == (stats.aa_noise_bound(()), True)
    assert noise.expected("cpu", script=True) == (0.05, True)
    assert noise.expected("cuda") == (None, False)
    noise.add("cpu", [AAPair(0.0, 0.0)] * 10)
    assert noise.expected("cpu") == (noise.load("cpu"), False)
    assert noise.expected("cpu", script=True) == (0.05, True)
    noise.add("cpu", [AAPair(0.1, 0.0)] * 10)
    assert noise.expected("cpu", script=True) == (noise.load("cpu"), False)


def test_two_kernels_that_add_at_once_lose_nothing(data_dir):
    script = (
        "import sys; from perfkit.results import noise\n"
        "for n in range(200): noise.add(sys.argv[1], [noise.AAPair(n, 0.0)])"
    )
    kernels = [subprocess.Popen([sys.executable, "-c", script, device]) for device in ("cpu", "cuda")]
    assert [kernel.wait() for kernel in kernels] == [0, 0]
    assert len((data_dir / "runs" / "noise.jsonl").read_text().splitlines()) == 400


@pytest.mark.parametrize(
    ("ours", "exactness", "sixteen_bits", "why_apart", "ok", "evidence"),
    [
        (PLAIN, "bitwise", False, "", True, "equal bit for bit for the first 3"),
        ([2.0, 1.5, 1.1], "bitwise", False, "", False, "from number 3 of 3 on, by at most 5%, though"),
        ([2.0, 1.7, 1.0], "bitwise", False, "it draws", True, "not compared one by one, because it draws"),
        ([9.0, 9.1, 9.0], "bitwise", False, "it draws", False, "further apart than their scatter"),
        ([2.0, 1.5002, 1.0], "tolerance", False, "", True, "within the 0.1%"),
        ([2.0, 1.52, 1.0], "tolerance", False, "", False, "more than the 0.1%"),
        ([2.0, 1.52, 1.0], "tolerance", True, "", True, "within the 2.0%"),
        ([9.0], "changes training", False, "", True, "other losses"),
        ([], "bitwise", False, "", False, "nothing called backward"),
        ([math.nan, 1.5], "bitwise", False, "", False, "from number 1 of 2"),
    ],
)
def test_losses_prove_a_switch_as_far_as_rounding_explains_them(
    ours, exactness, sixteen_bits, why_apart, ok, evidence
):
    check = losses(ours, PLAIN, exactness, sixteen_bits, why_apart)
    assert check.ok is ok
    assert evidence in check.evidence


def test_skipped_steps_have_the_same_infinite_losses():
    assert losses([math.nan, 1.0], [math.nan, 1.0], "bitwise", False).ok
