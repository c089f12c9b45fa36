"""What is read of a measuring process's log."""

from perfkit.process import child


def test_of_a_long_log_only_the_end_is_read(tmp_path, monkeypatch):
    log = tmp_path / "rank0.log"
    log.write_text("a step\n" * child.LOG_BYTES + "the last words\n")
    found = child.last_lines(log)
    assert found.endswith("the last words")
    assert len(found) <= child.LOG_BYTES
    assert child.last_lines(tmp_path / "none.log") == ""
