"""Traces of looks do not pile up."""

from perfkit import machine
from perfkit.additions.shared import looking


def test_only_the_newest_traces_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "data_folder", lambda: tmp_path)
    folder = tmp_path / "runs" / "profiles"
    folder.mkdir(parents=True)
    names = [f"20260101T{number:06}-abcdef.pt.trace.json.gz" for number in range(looking.MOST_TRACES + 3)]
    for name in [*names, "mine.json"]:
        (folder / name).touch()
    path = looking.new_trace()
    assert path.parent == folder and not path.exists()
    path.touch()
    kept = sorted(file.name for file in folder.glob("*.gz"))
    assert kept == [*names[4:], path.name] and len(kept) == looking.MOST_TRACES
    assert (folder / "mine.json").exists()
