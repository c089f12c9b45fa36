"""What studies found, as golden texts."""

from collections.abc import Callable
from types import SimpleNamespace

import msgspec

from perfkit.machine import Check
from perfkit.results.parity import Check as Checked
from perfkit.results.parity import Parity
from perfkit.results.run import Communication
from perfkit.show import tables_studies, terminal
from tests.unit.show.fake_runs import session

Golden = Callable[[str, str], None]


def test_the_check_of_the_machine(golden: Golden) -> None:
    checks = [Check("compiler", "none", "Install g++", blocking=True), Check("disk", "80 GB free", "")]
    stages = [SimpleNamespace(title="amp", reason=""), SimpleNamespace(title="pinning", reason="no GPU")]
    golden("doctor", terminal.text(tables_studies.doctor("2 cores", checks, stages), 60))


def test_a_failed_parity_is_visible_in_sign_and_words(golden: Golden) -> None:
    found = Parity("amp", "tolerance", [Checked("losses", False, "differ by 2")], False, {})
    golden("parity", terminal.text(tables_studies.parity(found), 80))


def test_communication_of_several_ranks(golden: Golden) -> None:
    times = Communication(
        bytes_per_step=44_000_000, step_s=0.05, compute_s=0.04, alone_s=0.02, rank_compute_s=[0.04, 0.044],
        start_s=1e-5, bytes_per_s=1e10,
    )  # fmt: skip
    run = msgspec.structs.replace(session()[0], communication=times)
    golden("communication", terminal.text([tables_studies.communication([run])], 120))
    assert tables_studies.communication(session()).note == "no run has several ranks"
