"""What older versions wrote: prose becomes fields, pairs of processes become incarnations."""

import pytest

from perfkit.results.upgrade import upgraded


@pytest.mark.parametrize(
    ("words", "decision"),
    [
        ("kept", {"kept": True, "by": "climb", "why": ""}),
        ("dropped: slower", {"kept": False, "by": "climb", "why": "slower"}),
    ],
)
def test_what_became_of_a_stage_and_the_command_of_a_script_are_fields(words, decision):
    old = {"schema": 1, "facts": {"rung": words, "command": "train.py", "precision": "ieee"}}
    fields = {"decision": decision, "script": "train.py", "facts": {"precision": "ieee"}}
    assert upgraded(old) == {"schema": 2, **fields}
    assert old["facts"]["command"] == "train.py", "what was read stays as it was"


def test_further_pairs_of_processes_are_incarnations_in_every_run_of_a_recording():
    first = {"own_samples_per_s": [1.0, 2.0], "other_samples_per_s": [3.0, 4.0], "disturbed": [0.1, 0.2]}
    further = {"own_samples_per_s": [5.0], "other_samples_per_s": [6.0]}
    old = {"schema": 1, "runs": [{"pairings": [{**first, "further_pairs": [further], "noise": 0.0}]}]}
    (pairing,) = upgraded(old)["runs"][0]["pairings"]
    assert pairing == {
        "own_samples_per_s": [1.0, 2.0, 5.0],
        "other_samples_per_s": [3.0, 4.0, 6.0],
        "disturbed": [0.1, 0.2],
        "incarnations": [2, 1],
        "spread": [0.0, 4],
    }


def test_what_is_no_data_of_a_run_is_left_for_the_reader_to_refuse():
    assert upgraded({"runs": "none", "facts": 3}) == {"runs": "none", "facts": 3, "schema": 2}
