"""A file with another content in the mirror of a folder; the real one stays."""

from perfkit.scripts.scratch import mirror, put


def test_a_file_deep_in_a_linked_folder(tmp_path):
    project, root = tmp_path / "project", tmp_path / "mirror"
    (project / "package").mkdir(parents=True)
    root.mkdir()
    for name in ("a.py", "b.py"):
        (project / "package" / name).write_text(name)
    folder = mirror(root, project)
    place = put(root, project / "package" / "a.py", b"edited")
    assert place == folder / "package" / "a.py" and place.read_text() == "edited"
    assert (folder / "package" / "b.py").read_text() == "b.py"
    assert (project / "package" / "a.py").read_text() == "a.py"
