"""`perfkit diff`: the stage alone, on the default ladder below it, as a patch with a heading."""

import pytest

from perfkit.cli.export import diff
from perfkit.cli.options import TrainingOptions
from perfkit.errors import InvalidValue
from perfkit.studies import staging


def test_the_patch_of_a_stage_is_printed_below_what_it_is(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(staging, "loaded", asked.append)
    monkeypatch.setattr(staging, "stage_diff", lambda source: ("What it changes", "--- before\n+++ after\n"))
    diff("amp", TrainingOptions(device="cpu", preset="smoke"))
    assert capsys.readouterr().out == "# What it changes\n--- before\n+++ after\n"
    (plan,) = asked
    assert (plan.ladder.stages, plan.ladder.below) == (("amp",), True)


def test_an_unknown_stage_is_refused_before_anything_starts():
    with pytest.raises(InvalidValue, match="unknown stage 'amb'. Did you mean 'amp'"):
        diff("amb", TrainingOptions(device="cpu", preset="smoke"))
