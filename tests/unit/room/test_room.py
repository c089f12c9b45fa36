"""The room: nothing that was acknowledged is lost, nothing hostile gets in or is shown as it came."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit.errors import InvalidValue, StoreError
from perfkit.results.run import Run
from perfkit.room import server, shared
from perfkit.room.board import MAX_ENTRIES, Board
from perfkit.show.calibration import judgement
from tests.unit.room.conftest import TOKEN, Room, measured, post
from tests.unit.show.test_html import EVIL, Page


def test_a_prediction_then_its_result_are_one_row(room: Room) -> None:
    run = measured()
    alone = post(workload=run.workload, stage=run.stage, title=run.title)
    assert room.post(alone) == (200, "")
    assert "not yet" in room.board.body()
    assert room.post(post(run=run, prediction=None, confidence=None)) == (200, "")
    (row,) = room.board.entries
    ratio = run.speedup("previous")
    assert row.prediction == 1.5 and row.confidence == 0.8
    assert row.ratio == ratio and ratio is not None
    text = Page(room.board.body()).text
    assert judgement(1.5, ratio) in text
    assert "1.50×" in text and "80% sure" in text and ratio.verdict in text and "2 cores" in text


def test_a_row_says_where_its_result_comes_from(room: Room) -> None:
    recorded = msgspec.structs.replace(measured(), facts={"recording": "Recorded elsewhere"})
    room.post(post(1, run=recorded))
    room.post(post(2, run=measured("pinning"), device="cuda"))
    rows = room.board.entries
    assert [row.origin for row in rows] == ["recorded", ""]
    assert "n/a: " in Page(room.board.body()).text


def test_thirty_clients_at_once_lose_nothing_and_a_restart_neither(open_room: Callable[[], Room]) -> None:
    room, answers = open_room(), list[int]()
    run = measured()

    def client(number: int) -> None:
        for stage in range(4):
            about = post(number, run=run if stage == 0 else None)
            answers.append(room.post(about | {"device": f"cuda:{stage}"})[0])

    threads = [threading.Thread(target=client, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert answers == [200] * 120
    room.stop()
    again = open_room()
    assert {row.key for row in again.board.entries} == {
        (f"{number:032x}", run.workload if stage == 0 else "here:Photos", "data_loading", f"cuda:{stage}")
        for number in range(30) for stage in range(4)
    }  # fmt: skip
    status, _, text = again.ask("GET", "/board")
    assert status == 200 and all(f"learner {number}" in text for number in range(30))


def _with(field: str, value: bytes) -> bytes:
    """A post with a field that no JSON library of ours would write."""
    return json.dumps(post())[:-1].encode() + f', "{field}": '.encode() + value + b"}"


DEEP = b"[" * 90_000 + b"]" * 90_000


def _with_rates(rate: str) -> bytes:
    run = measured()
    text = json.dumps(post(run=run))
    return text.replace('"other_samples_per_s": [', f'"other_samples_per_s": [{rate}, ', 1).encode()


HOSTILE: dict[str, tuple[Any, int]] = {
    "no json": (b"\xff\xfe", 422),
    "nothing": (b"", 422),
    "deep": (_with("client", DEEP), 422),
    "deep inside the run": (_with("run", DEEP), 422),
    "NaN": (json.dumps(post(prediction=float("nan"))).encode(), 422),
    "infinite": (b'{"prediction": 1e999}', 422),
    "a huge number": (post(prediction=1e300), 422),
    "a digit string": (_with("confidence", b"9" * 5000), 422),
    "a negative prediction": (post(prediction=-2), 422),
    "an unknown field": (post(admin=True), 422),
    "an empty name": (post(name="   "), 422),
    "a long name": (post(name="x" * 41), 422),
    "a client that is no number": (post() | {"client": "../../etc/passwd"}, 422),
    "neither": (post(prediction=None), 422),
    "a run that is none": (post(run=None) | {"run": {"schema": 4}}, 422),
    "a run of a newer perfkit": (post() | {"run": {"schema": 999}}, 422),
    "a run of another stage": (post(run=measured(), stage="amp"), 422),
    "a rate of zero": (_with_rates("0"), 422),
    "a rate without end": (_with_rates("1e300"), 422),
    "rates without end": (_with_rates(", ".join(["1.5"] * 5000)), 422),
    "a machine that is none": (post(run=msgspec.structs.replace(measured(), machine={"cpu": 7})), 422),
    "too large": (b"x" * (shared.MAX_BYTES + 1), 413),
    "far too large": (b"x" * (5 * 1024**2), 413),
}  # fmt: skip


def test_what_is_hostile_is_refused_with_a_sentence_and_the_room_goes_on(
    room: Room, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, (body, expected) in HOSTILE.items():
        status, sentence = room.post(body)
        assert (status, bool(sentence)) == (expected, True), f"{name}: {status} {sentence}"
        assert "Traceback" not in sentence and len(sentence) < 600, name
    assert room.board.entries == []
    assert room.post(post()) == (200, "")
    assert capfd.readouterr().err == "", "a refusal is no event"


def test_what_is_text_stays_text(room: Room) -> None:
    run = msgspec.structs.replace(measured(), machine={"cpu": {"model": EVIL, "cores_usable": 1}}, title=EVIL)
    assert room.post(post(run=run, name=EVIL[:40], device=EVIL))[0] == 200
    _, _, text = room.ask("GET", f"/?token={TOKEN}")
    page = Page(text)
    assert {tag for tag, _ in page.tags} <= {
        "html", "head", "meta", "title", "link", "body", "header", "h1", "p", "code", "svg", "path", "g",
        "line", "circle", "main", "section", "h2", "table", "thead", "tbody", "tr", "th", "td", "small", "br",
        "text", "script",
    }  # fmt: skip
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [{"src": "board.js"}]
    assert "<script>alert(1)" in page.text, "it is shown, as text"


@pytest.mark.parametrize("path", ["/", "/board", "/share"])
def test_without_the_token_there_is_nothing(room: Room, path: str) -> None:
    method = "POST" if path == "/share" else "GET"
    for token in ("", "wrong", TOKEN[:-1]):
        status, _, text = room.ask(method, path, json.dumps(post()).encode(), token)
        assert status == 401 and "token" in json.loads(text)["error"]
        assert TOKEN not in text
    assert room.board.entries == []


def test_a_page_runs_no_script_of_others_and_is_not_kept(room: Room) -> None:
    status, headers, _ = room.ask("GET", f"/?token={TOKEN}", token="")
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
    assert [room.ask("GET", path, token="")[0] for path in ("/board.css", "/board.js", "/board.py")] == [
        200, 200, 404,
    ]  # fmt: skip


def test_one_address_cannot_flood_the_room() -> None:
    now = [0.0]
    limit = server.Limit(3, lambda: now[0])
    assert [limit.take("a") for _ in range(5)] == [True] * 3 + [False] * 2
    assert limit.take("b")
    now[0] = 61
    assert limit.take("a")


def test_too_many_posts_are_refused_with_a_time_to_wait(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.Limit, "take", lambda *_: False)
    status, headers, text = room.ask("POST", "/share", json.dumps(post()).encode())
    assert status == 429 and headers["Retry-After"] and "again" in json.loads(text)["error"]


def test_a_full_board_refuses_new_rows_but_not_old_ones(tmp_path: Path) -> None:
    board = Board(tmp_path / "room.json")
    row = shared.entry(json.dumps(post()).encode())
    board._by_key = {(str(at),): row for at in range(MAX_ENTRIES - 1)} | {row.key: row}
    board.add(row)
    with pytest.raises(InvalidValue, match="full"):
        board.add(msgspec.structs.replace(row, client="f" * 32))


def test_a_row_that_cannot_be_written_is_not_kept(tmp_path: Path) -> None:
    board = Board(tmp_path / "folder" / "room.json")
    board.path = tmp_path / "room.json"
    board.path.mkdir()
    with pytest.raises(StoreError, match="cannot write"):
        board.add(shared.entry(json.dumps(post()).encode()))
    assert board.entries == []


def test_a_restart_keeps_the_token_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "room.json"
    first = Board(path)
    assert Board(path).token == first.token and len(first.token) >= 12
    assert Board(path, "another token").token == Board(path).token == "another token"
    path.write_text("{}")
    with pytest.raises(StoreError, match="not the board of a room"):
        Board(path)


def test_an_address_that_is_taken_is_refused(tmp_path: Path) -> None:
    import asyncio

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InvalidValue, match="cannot listen"):
            asyncio.run(server.serve(Board(tmp_path / "room.json"), "127.0.0.1", port, print))


def test_a_slim_run_has_the_same_ratio_and_less_to_carry() -> None:
    run: Run = measured()
    assert shared.slim(run).speedup("previous") == run.speedup("previous")
    assert not shared.slim(run).raw.step_s and run.raw.step_s
