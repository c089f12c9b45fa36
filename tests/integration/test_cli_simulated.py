"""A simulated GPU from the command line: a ladder, a comparison, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import perfkit

pytestmark = pytest.mark.usefixtures("no_orphans")

SIMULATED = ("--device", "sim:v100", "--preset", "smoke")


def test_a_ladder_on_a_virtual_host(tmp_path: Path) -> None:
    files = tmp_path / "out.json", tmp_path / "out.html"
    outputs = ("--json", str(files[0]), "--html", str(files[1]))
    done = perfkit("run", *SIMULATED, "--stages", "data_loading,pinning", *outputs)
    assert "Simulated Tesla V100-SXM2-16GB: no kernel ran" in done.stdout
    document = json.loads(files[0].read_text())
    assert (document["device"], document["simulated"]) == ("sim:v100", True)
    for stage in document["stages"]:
        assert stage["status"] == "ok", stage["reason"]
        assert stage["losses"] == []
        assert stage["peak_memory_bytes"] > 10**7
        assert 0 < stage["utilization"] <= 1
    assert "no numbers on a simulated GPU" in files[1].read_text()


def test_a_virtual_host_measures_nothing_and_gates_nothing(tmp_path: Path) -> None:
    sides = ("compare", "workers=1", "workers=4")
    host = (*SIMULATED, "--host", "cores=4,fetch_ms=2")
    done = perfkit(*sides, *host, "--json", "-")
    result: dict[str, Any] = json.loads(done.stdout)
    assert (result["simulated"], result["verdict"]) == (True, "predicted faster")
    assert result["ratio"] == pytest.approx(4, rel=0.1), "four workers on four cores, the loader decides"
    refused = perfkit(*sides, *host, "--fail-if-slower", "3%", code=2)
    assert "refused on sim:v100" in refused.stderr
