"""Tables of runs, checks and histories: whole pages as golden texts, and what these cannot show."""

import subprocess
import sys

import msgspec
import pytest

from perfkit.results import recordings
from perfkit.results.parity import Check, Parity
from perfkit.show import sentences, tables, terminal, units
from perfkit.show.document import Cell, Col, Table, find, tabulate
from tests.unit.show.fake_runs import again, disturbed, session

RUNS = session()
WRONG = [RUNS[4].mechanism[0], msgspec.structs.replace(RUNS[4].mechanism[1], name="amp", ok=False)]
CHECKS = [Check("losses", False, "0.1 apart"), Check("outputs", True, "")]
PARITY = Parity("uint8", "bitwise", CHECKS, False, {})

PAGES = {
    "gpu": [tables.ladder(session(gpu=True))],
    "simulated": [*sentences.notices(SIM := recordings.find("sim-v100")[:3]), tables.ladder(SIM)],
    "recipes": [tables.ladder([msgspec.structs.replace(RUNS[0], title="eager attention"), *again()[1::9]])],
    "disturbed": [
        *sentences.notices(disturbed(RUNS[:2])),
        tables.ladder(disturbed([*RUNS[:2], again()[-1]])),
    ],
    "proof": [tables.proof([RUNS[0], msgspec.structs.replace(RUNS[4], mechanism=WRONG)])],
    "parity": tables.parity(PARITY),
    "stored": [tables.stored([RUNS[3], RUNS[9]])],
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page(name, golden):
    golden(name, terminal.text(PAGES[name], 150))


def test_alignment_follows_from_types_not_from_text():
    text = Col("note", lambda rate: "2 workers" if rate else Cell(0))
    columns = [Col("name", str), Col("rate", "real"), text, Col("unknown", lambda _: Cell(None))]
    assert tabulate(columns, [16.2, 0.0]).numeric == [False, True, False, True], "'2 workers' is text"


def test_what_is_heavy_is_not_loaded_for_a_table_or_a_name_in_notebooks():
    heavy = "{'matplotlib', 'torch', 'ipywidgets'}"
    code = f"import sys, perfkit.show.tables, perfkit.notebook; sys.exit(bool({heavy} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_partial_values_of_a_failed_run_are_not_shown():
    (row,) = tables.ladder(session(status="failed", reason="killed")[:1]).rows
    assert set(map(str, row[1:])) == {"failed", "–", "n/a"}


def test_a_proof_has_the_switches_that_differ_from_what_a_stage_was_compared_with():
    """After a stage that was dropped, its switches are not changes of the next one."""
    base, dropped, last = RUNS[0], RUNS[3], RUNS[4]
    pairings = [msgspec.structs.replace(one, against=base.id) for one in last.pairings]
    last = msgspec.structs.replace(last, pairings=pairings)
    names = [str(row[0]) for row in tables.proof([base, dropped, last]).rows]
    changed = {name for name in last.recipe if last.recipe[name] != base.recipe[name]}
    proven = {check.name for check in last.mechanism} & changed
    assert {name.partition(": ")[2] for name in names if name.startswith(last.title)} == proven


def test_an_option_of_a_workload_does_not_hide_a_setting_of_the_run():
    run = msgspec.structs.replace(SIM[0], options={"seed": 7, "image_size": 32}, seed=3)
    line = tables.overview([run])[1]
    assert " · seed 3 · " in line and line.endswith("option seed 7 · image_size 32")


def test_losses_are_over_samples_and_nan_is_told():
    runs = session(gpu=True)
    lost = msgspec.structs.replace(runs[0], losses=[2.0, float("nan")])
    first, *_ = tables.loss_table([lost, *runs]).rows
    assert [*map(str, first)] == ["baseline", "2.00", "NaN", "64"]
    assert tables.loss_table(SIM).note == "no losses were kept"


def test_a_measured_ladder_says_why_its_rates_do_not_divide_to_its_ratios():
    """A stage and what was kept before it were measured together, and their rates hold for all of their rounds."""
    assert "ratios come from common rounds" in tables.ladder(recordings.find("cpu-quick")).note
    assert "common rounds" not in tables.ladder(SIM).note


@pytest.mark.parametrize("factor", [0.7, 1.4])
def test_the_plain_loop_once_more_has_an_interval_and_no_verdict(factor):
    """It shows the noise: equal runs whose interval misses 1 are neither faster nor slower."""
    *_, row = again()
    pairings = [
        msgspec.structs.replace(one, own_samples_per_s=[factor * rate for rate in one.own_samples_per_s])
        for one in row.pairings
    ]
    noisy = msgspec.structs.replace(row, pairings=pairings)
    ratio = noisy.speedup("baseline")
    assert ratio.is_faster or ratio.is_slower
    table = tables.ladder([RUNS[0], noisy])
    (shown,) = [str(cell) for cell in table.rows[-1] if "×" in str(cell)]
    assert shown == units.ratio(ratio) and table.note == ""


def test_of_two_tables_with_one_title_the_first_is_found():
    same = [tabulate((Col("a", str),), [number], "One title") for number in (1, 2)]
    assert find(same, Table, "one") is same[0]


def test_what_makes_a_run_doubtful_is_noted_with_the_switches_that_were_not_applied():
    run = msgspec.structs.replace(
        disturbed(RUNS[:1])[0], not_applied={"amp": "no bfloat16"}, facts={"a": "b"}
    )
    lines = [line.removeprefix("baseline: ") for line in tables.notes([run]).items]
    assert sentences.disturbance(run) in lines
    assert lines[-2:] == ["not applied: amp: no bfloat16", "a: b"]
