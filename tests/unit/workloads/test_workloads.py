from __future__ import annotations

from pathlib import Path

import pytest

from perfkit import workloads
from perfkit.errors import InvalidValue, WorkloadError


def module(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))


def test_a_name_is_a_built_in_one_or_a_reference() -> None:
    assert workloads.reference("photos") == "perfkit.workloads.photos:Photos"
    assert workloads.reference("mine:Work") == "mine:Work"
    with pytest.raises(InvalidValue, match="unknown workload 'photo'. Did you mean 'photos'"):
        workloads.reference("photo")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "has no 'Work'. Define Work in it"),
        ("raise OSError('no disk')", "cannot be imported: OSError: no disk. Run `python -c 'import "),
        ("class Work:\n  def __init__(self): raise KeyError('k')", "cannot be built: KeyError: 'k'"),
        ("class Work:\n  def model(self): ...", "has no dataset, loss, optimizer"),
    ],
)
def test_a_workload_that_cannot_be_loaded_is_one_clear_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    name = f"workload_{abs(hash(text))}"
    module(tmp_path, text, monkeypatch, name)
    with pytest.raises(WorkloadError) as caught:
        workloads.load(f"{name}:Work")
    assert words in str(caught.value)


def test_options_are_those_of_the_preset_and_then_the_given_ones() -> None:
    found = workloads.find("photos")
    assert workloads.options_for(found, "smoke", {"count": 3}) == {"image_size": 48, "count": 3}
    assert workloads.options_for(object(), "smoke", {}) == {}
    with pytest.raises(InvalidValue, match="takes no options"):
        workloads.options_for(object(), "smoke", {"count": 3})
