"""The recipe at the end of the ladder: what was kept, or faster; the newest result of each rung counts."""

from perfkit import notebook as pk
from perfkit.results.store import RunStore
from tests.unit.notebook.fakes import plain
from tests.unit.show.fake_runs import session

RUNS = {run.stage: run for run in session()}


def keep(number, *stages, **recipe):
    """Stores a session of these stages, in the place where a ladder of this test would be measured."""
    plan = pk.LadderPanel().plan
    for stage in ("baseline", *stages):
        run = RUNS[stage]
        RunStore().add(
            plain(
                run, id=f"{stage}-{number}", session=f"s{number}", created=f"2026-11-{number:02}T00:00:00+00:00",
                workload=plan.workload, preset=plan.preset.name, device=plan.device,
                recipe={**run.recipe, **recipe},
            )
        )  # fmt: skip


def test_nothing_measured_means_the_first_change_of_the_course():
    assert pk.kept() == {"workers": 1, "wait_policy": "passive"}


def test_faster_rungs_are_kept_until_a_person_decides():
    keep(1, "data_loading", workers=3, prefetch_factor=4)
    keep(2, "channels_last", channels_last=True)
    settings = pk.kept()
    assert settings["workers"] == 3 and settings["channels_last"] is True
    assert "amp" not in settings
    RunStore().mark("channels_last-2", note="dropped")
    assert "channels_last" not in pk.kept()


def test_the_newest_result_of_a_rung_counts_and_a_whole_ladder_does_not():
    keep(1, "data_loading", workers=3)
    keep(2, "data_loading", workers=2)
    keep(3, "data_loading", "channels_last", workers=9)
    assert pk.kept()["workers"] == 2
