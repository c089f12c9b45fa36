"""Lanes: workers stamp their batches, a trace's kernels belong to their batch, and one axis shows both sides."""

import contextlib
import json
import math
import os
import re
import time
import types
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Drawing
from torch.utils.data import DataLoader, Dataset

from docs.colours import FIXED
from perfkit import machine
from perfkit.additions import pages
from perfkit.additions.lanes import figures, panel, sides, stamps, step
from perfkit.additions.lanes.figures import KINDS, Bar, DrawnSide, Lanes
from perfkit.additions.trace.profile import LOOKS
from perfkit.errors import InvalidValue
from perfkit.results import recordings
from perfkit.results.stats import Ratio
from perfkit.show import style
from perfkit.studies import planning
from perfkit.studies.sources import Plan, Progress

TRACES = Path(__file__).parents[4] / "data" / "recordings" / "traces"


class Slow(Dataset[torch.Tensor]):
    """Samples that say which process fetched them, and when."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.tensor([index, os.getpid(), time.perf_counter()], dtype=torch.float64)


class DrawnBar(NamedTuple):
    """The start and end of a bar on the axis, its upper edge, its colour, and the width of its edge."""

    start: float
    end: float
    row: float
    colour: str
    edge: float


def bars_of(axes):
    """The bars of a picture, in the order of drawing."""
    bars = []
    for drawn in axes.collections:
        if isinstance(drawn, PolyCollection):
            colour, (edge,) = to_hex(drawn.get_facecolor()[0]), drawn.get_linewidths()
            for path in drawn.get_paths():
                start, row = path.vertices.min(axis=0)
                bars.append(DrawnBar(start, path.vertices.max(axis=0)[0], row, colour, edge))
    return bars


def test_workers_stamp_when_they_begin_and_end_a_batch():
    with stamps.noted() as noted:
        how = {"persistent_workers": True, "multiprocessing_context": "fork"}  # as in a measuring process
        loader = DataLoader(Slow(), 2, num_workers=2, **how)
        batches = [batch for _ in range(2) for batch in loader]
        found = noted.read()
    numbers = stamps.numbers(found, workers=2, batches=5)
    assert sorted(numbers) == list(range(10))
    for stamp, number in zip(found, numbers, strict=True):
        assert all(stamp.start < at < stamp.end for at in batches[number][:, 2].tolist())


def test_the_process_that_trains_and_loads_itself_leaves_no_stamp():
    with stamps.noted() as noted:
        list(DataLoader(Slow(), 2))
        assert noted.read() == []


def test_batches_are_counted_over_epochs_that_no_number_of_workers_divides():
    order = [0, 1, 2, 0, 1, 0, 1, 2, 0, 1]  # 5 batches an epoch, 3 workers, two epochs
    given = [stamps.Stamp(worker, 0.0, 1.0) for worker in order]
    assert stamps.numbers(given, workers=3, batches=5) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_stamps_never_make_a_worker_wait_for_a_reader():
    noted = stamps.Stamps()
    try:
        os.write(noted._to, bytes(stamps._LAYOUT.size * 2))
        full = 0
        with pytest.raises(BlockingIOError):
            while full < 1_000_000:
                full += os.write(noted._to, bytes(stamps._LAYOUT.size * 128))
        assert len(noted.read()) > 2
    finally:
        noted.close()


def test_in_a_simulated_trace_each_batch_is_copied_before_its_kernels_run():
    side = sides.of_trace(TRACES / "sim-v100-data_loading.pt.trace.json.gz", "before")
    copies = {bar.batch: bar for bar in side.rows["copy"]}
    kernels = {bar.batch: bar for bar in side.rows["kernels"]}
    assert copies.keys() == kernels.keys() and len(kernels) == 2
    assert all(copies[batch].end_ms <= kernels[batch].start_ms + 0.01 for batch in kernels)
    assert {bar.kind for bar in side.rows["host"]} >= {"wait", "launch"}
    assert "ahead" not in {bar.kind for bar in side.rows["host"]}, "it waits for copies from pageable memory"
    assert side.note == "simulated" and side.computing_ms == pytest.approx(25.2, abs=0.1)


def test_a_simulated_worker_has_its_batches(tmp_path):
    step = {"ph": "X", "pid": 1, "tid": 1, "cat": "user_annotation", "dur": 100}
    events = [{**step, "name": f"ProfilerStep#{at}", "ts": 100 * at} for at in range(3)]
    worker = {"ph": "X", "pid": 1, "cat": "loader_worker", "dur": 50}
    events += [{**worker, "name": f"batch {at}", "tid": 100 + at % 2, "ts": 90 * at} for at in range(5)]
    # Whatever else says that it is one: without a worker's number, and with one that no batch has.
    events += [{**worker, "name": "batch 1", "tid": "x", "ts": 90}]
    events += [{**worker, "name": f"batch {'9' * 5000}", "tid": 100, "ts": 90}]
    (tmp_path / "a.json").write_text(json.dumps(events))
    side = sides.of_trace(tmp_path / "a.json", "before")
    bars = sorted((bar.batch, bar.lane, round(bar.start_ms, 3), bar.kind) for bar in side.rows["worker"])
    assert bars == [(1, 101, -0.01, "load"), (2, 100, 0.08, "load"), (3, 101, 0.17, "load")]


def two(**later):
    first = DrawnSide(
        title="before", step_ms=10, rows={"kernels": [Bar(4, 10, "compute", 0), Bar(14, 20, "compute", 1)]}
    )
    after = {
        "title": "after",
        "step_ms": 6.5,
        "rows": {"kernels": [Bar(0.5, 6.5, "compute", 0), Bar(7, 13, "compute", 1)]},
    }
    return Lanes([first, DrawnSide(**(after | later))])


def test_the_gap_that_closed_is_named_and_marked_where_it_was():
    assert two().closed == ("idle 4 → 0.5 ms", (0.0, 4.0))
    faster = two(step_ms=6, rows={"kernels": [Bar(4, 6, "compute"), Bar(10, 12, "compute")]})
    assert faster.closed == ("kernels 6 → 2 ms", (4.0, 10.0))
    assert two(step_ms=10, rows=two().sides[0].rows).closed is None
    larger = two(samples=2, step_ms=14, rows={"kernels": [Bar(2, 14, "compute"), Bar(16, 28, "compute")]})
    assert larger.closed == ("idle 4 → 1 ms for 1 samples", (0.0, 4.0))


@pytest.mark.parametrize(("verdict", "is_told"), [
    ("", True), ("faster", True), ("predicted faster", True), ("undecided", False), ("slower", False),
    ("no measurable difference", False), (panel.NOT_COMPARED, False),
])  # fmt: skip
def test_two_steps_claim_no_gap_that_the_comparison_did_not_find(verdict, is_told):
    picture = Lanes(two().sides, verdict)
    assert (picture.closed is not None) is is_told and ("idle 4" in picture.alt) is is_told
    assert any("idle 4" in text for text in texts(picture)) is is_told


def test_the_note_about_a_gap_is_below_the_rows_and_its_arrow_is_in_that_of_the_kernels():
    """In the row it would cover the very gaps that it is about."""
    sides = [
        msgspec.structs.replace(side, rows={**side.rows, "sent": [Bar(0, 1, "exchange", 1)]})
        for side in two().sides
    ]
    picture = Lanes(sides)
    assert texts(picture)["idle 4 → 0.5 ms"].get_position()[1] == 3, "between the rows of both sides"
    assert list(picture.draw().axes[0].get_yticks()) == [1, 2, 5, 6]
    (arrow,) = [one for one in picture.draw().axes[0].texts if getattr(one, "arrow_patch", None)]
    assert arrow.xy[1] == 1, "the row below is not idle"


@pytest.mark.parametrize(("rows", "label", "inside"), [
    ({"kernels": [(0, 4, "compute", 7)], "sent": [(4, 8, "exchange")]}, "ms; a number for each batch", "7"),
    ({"kernels": [(0, 4, "compute")], "sent": [(4, 8, "exchange", 3)]}, "ms; a number for each bucket", "3"),
    ({"rank 0": [(0, 4, "compute"), (4, 9.5, "wait")]}, "ms", "5.5"),
])  # fmt: skip
def test_the_axis_says_what_the_numbers_in_the_bars_are(rows, label, inside):
    picture = panel.made({"one": rows}, None, {}, Progress())
    assert inside in texts(picture) and picture.draw().axes[0].get_xlabel() == label


def test_bars_that_are_narrower_than_a_pixel_are_not_all_edge():
    bars = [Bar(at, at + 0.01, "compute") for at in range(9)] + [Bar(9, 10, "compute")]
    (axes,) = Lanes([DrawnSide(title="one", step_ms=10, steps=1, rows={"kernels": bars})]).draw().axes
    edges = [bar.edge for bar in bars_of(axes)]
    assert edges == [0.0] * 9 + [0.3]


def test_only_a_host_that_waits_for_data_or_a_copy_waits_and_one_before_a_full_queue_is_ahead(tmp_path):
    step = {"ph": "X", "pid": 1, "tid": 1, "cat": "user_annotation", "dur": 100}
    events = [{**step, "name": f"ProfilerStep#{at}", "ts": 100 * at} for at in range(3)]
    call = {"ph": "X", "pid": 1, "tid": 1, "cat": "cuda_runtime", "dur": 20}
    copy = {"ph": "X", "pid": 0, "tid": 7, "cat": "gpu_memcpy", "dur": 10, "ts": 150}
    for at, name, memory in (
        (110, "cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)"),
        (140, "cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)"),
        (170, "cudaLaunchKernel", None),
        (230, "cudaStreamSynchronize", None),
        (270, "cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)"),
    ):
        events.append({**call, "name": name, "ts": at, "args": {"correlation": at}})
        if memory:
            events.append({**copy, "name": memory, "args": {"correlation": at}})
    (tmp_path / "a.json").write_text(json.dumps(events))
    host = sides.of_trace(tmp_path / "a.json", "one").rows["host"]
    found = sorted((round(bar.start_ms * 1e3), bar.kind, bar.words) for bar in host)
    assert found == [
        (10, "wait", "copy"),
        (40, "ahead", ""),
        (70, "ahead", ""),
        (130, "wait", ""),
        (170, "wait", ""),
    ]


@pytest.mark.parametrize(("before", "awaited"), [
    ("aten::_amp_foreach_non_finite_check_and_unscale_", "scaler"), ("aten::sum", ""),
])  # fmt: skip
def test_a_value_that_is_read_right_after_gradients_were_checked_is_the_scalers(before, awaited, tmp_path):
    step = {"ph": "X", "pid": 1, "tid": 1, "cat": "user_annotation", "dur": 100}
    events = [{**step, "name": f"ProfilerStep#{at}", "ts": 100 * at} for at in range(3)]
    op = {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op"}
    events += [
        {**op, "name": before, "ts": 110, "dur": 5},
        {**op, "name": "aten::item", "ts": 120, "dur": 30},
    ]
    events.append({**op, "name": "aten::_local_scalar_dense", "ts": 121, "dur": 28})
    call = {"ph": "X", "pid": 1, "tid": 1, "cat": "cuda_runtime", "dur": 25, "args": {"correlation": 1}}
    events.append({**call, "name": "cudaStreamSynchronize", "ts": 122})
    (tmp_path / "a.json").write_text(json.dumps(events))
    (bar,) = sides.of_trace(tmp_path / "a.json", "one").rows["host"]
    assert (bar.kind, bar.words) == ("wait", awaited)


def texts(picture):
    """What is written into a picture, and where."""
    picture.draw().canvas.draw()
    return {text.get_text(): text for text in picture.draw().axes[0].texts}


def test_what_is_waited_for_is_written_where_there_is_room():
    host = [Bar(0, 6, "wait", 0, words="copy"), Bar(6, 6.5, "wait", 1, words="copy")]
    host.append(Bar(7, 12, "wait", words="scaler"))
    written = texts(Lanes([DrawnSide(title="one", step_ms=6, rows={"host": host})]))
    assert written.keys() >= {"0 copy", "1", "scaler"} and "1 copy" not in written


def test_numbers_of_many_workers_do_not_pile_up():
    loads = [Bar(0, 20, "load", number, lane=number) for number in range(8)]
    written = texts(Lanes([DrawnSide(title="one", step_ms=10, rows={"worker": loads})]))
    assert {text for text in written if text.isdigit()} == {"0", "4"}


@pytest.mark.parametrize("gap", [(0.0, 1.0), (0.0, 4.0), (18.0, 20.0)])
def test_the_note_about_a_gap_never_covers_the_names_of_the_rows(gap):
    drawing = Drawing((style.WIDTH, 3))
    renderer = FigureCanvasAgg(drawing).get_renderer()
    axes = drawing.add_subplot()
    axes.set_xlim(0, 20)
    axes.set_yticks([1], ["kernels"])
    with style.theme():
        figures._arrow(axes, ("kernels 25.2 → 23.1 ms for 32 samples", gap), 1, 2)
        note = axes.texts[-1].get_window_extent(renderer)
    frame = axes.get_window_extent()
    assert frame.x0 - 3 <= note.x0 and note.x1 <= frame.x1 + 3


def test_the_two_steps_that_are_shown_are_those_nearest_to_what_was_compared():
    lengths = [1.0] * 8 + [2.0, 2.0, 3.0, 3.0, 1.0, 1.0, 2.0]
    begins = {batch: sum(lengths[:batch]) for batch in range(len(lengths))}
    assert step.nearest(begins, 3.0) == 10
    assert step.nearest(begins, 1.1) == 12
    assert step.nearest(begins, None) == 8, "the median of all steps"
    uneven = dict(enumerate([*range(9), 9.5, 10.9, 12.1]))
    assert step.nearest(uneven, 1.25) == 9, "1.4 and 1.2, and not 1 and 1.5, though these sum to 2.5"


def test_the_two_steps_that_are_shown_have_a_load_of_a_worker_if_any_two_have():
    """On busy cores a worker was ahead by two steps: the picture had no worker, and said that none is forked."""
    begins = {batch: float(batch) for batch in range(16)}
    assert step.nearest(begins, None) == 7
    assert step.nearest(begins, None, [stamps.Stamp(0, 11.5, 12.5)]) == 10
    assert step.nearest(begins, None, [stamps.Stamp(0, 1.5, 2.5)]) == 7, "before the loader was ahead"


def test_a_step_is_as_many_batches_as_are_accumulated():
    parts = step.Parts(is_loading=True)
    for name in ["data", "forward", "backward"] * 8:
        with parts.note(name):
            pass
    loads = [start for kind, start, _, _ in parts.bars if kind == "load"]
    assert parts.begins(1) == dict(enumerate(loads))
    assert parts.begins(4) == {0: loads[0], 1: loads[4]}


@pytest.mark.parametrize(("low", "high", "contradicts"), [
    (1.4, 1.7, False), (1.58, 1.7, False), (1.63, 1.7, True), (0.8, 0.95, True),
])  # fmt: skip
def test_a_picture_whose_steps_are_not_those_that_were_compared_is_not_shown(low, high, contradicts):
    ratio = Ratio(math.sqrt(low * high), low, high, "faster")
    assert two().contradicts(ratio) is contradicts  # 10 / 6.5 = 1.54
    assert not two().contradicts(None) and not Lanes(two().sides[:1]).contradicts(ratio)


def test_both_sides_have_one_axis_and_a_steady_step_is_repeated_for_as_many_samples():
    with style.theme():
        (axes,) = two().draw().axes
        assert axes.get_xlim() == (0, 20)
        assert sorted(bar.start for bar in bars_of(axes)) == [0.5, 4, 7, 14]
        (axes,) = two(samples=2, step_ms=14).draw().axes
        assert axes.get_xlim() == (0, 40)
        firsts = [bar for bar in bars_of(axes) if bar.end - bar.start == 6 and bar.row < 2]
        assert sorted(bar.start for bar in firsts) == [4, 14, 24, 34]


def test_a_picture_is_svg_with_its_numbers_in_words():
    svg = two().figure().svg()
    assert svg.startswith("<svg") and 'aria-label="before: 10 ms a step; after: 6.5 ms a step; idle 4 ' in svg
    assert "before: 10 ms a step (these 2)" in svg, "a table has the median of all steps"


def test_one_palette_is_used_by_lanes_bars_timelines_and_the_pipeline():
    page = (Path(pages.__file__).parent / "pipeline.html").read_text(encoding="utf-8")
    found = json.loads(re.search(r"const KINDS = (\{.*?\})", page)[1])
    of_one_rank = {kind: look.colour for kind, look in KINDS.items() if kind not in ("own", "exchange")}
    assert found == of_one_rank
    assert LOOKS["communication"].colour == KINDS["exchange"].colour
    assert len({(look.colour, look.hatch) for look in KINDS.values()}) == len(KINDS)
    assert {look.colour for look in KINDS.values()} <= {*FIXED}, "a stored picture keeps them"
    assert (
        LOOKS["kernel"].colour == KINDS["compute"].colour and LOOKS["memcpy"].colour == KINDS["copy"].colour
    )
    assert LOOKS["dataloader"].colour == KINDS["wait"].colour
    (axes,) = two().draw().axes
    assert {bar.colour for bar in bars_of(axes)} == {style.BLUE}


@pytest.mark.usefixtures("data_dir")
def test_runs_of_a_recording_have_its_picture_and_others_are_measured_once(monkeypatch):
    runs = recordings.find("sim-v100")
    both = [run for run in runs if run.stage in ("data_loading", "pinning")]
    plan = planning.plan(device="recorded:sim-v100")
    assert "after: pinning" in panel.of_runs(both, plan).alt.lower()
    assert panel.of_runs(runs[-1:], plan) is None, "what no recording has"
    here = planning.plan("tests.support.toy:Toy", "smoke", ["baseline"], device="cpu")
    mine = [msgspec.structs.replace(run, device="cpu") for run in both]
    assert panel.of_runs(mine, here) is None, "nothing is measured without a progress"
    asked, faster = [], mine[-1].speedup("previous").ratio

    def looked(source, recipe, title, run):
        asked.append(recipe)
        step_ms = 10 / faster if recipe.pin_memory else 10
        return msgspec.structs.replace(
            two().sides[0], title=title, step_ms=step_ms, samples=run.samples_per_step
        )

    monkeypatch.setattr(panel, "_looked", looked)
    source = types.SimpleNamespace(progress=Progress())
    monkeypatch.setattr(Plan, "open", lambda plan, progress, study: contextlib.nullcontext(source))
    for _ in range(2):
        assert "before: data loading: 10 ms" in panel.of_runs(mine, here, Progress()).alt
    assert [recipe.pin_memory for recipe in asked] == [False, True]
    (file,) = (machine.data_folder() / "lanes").glob("*.json")
    whole = file.read_bytes()
    other = whole.replace(b'"compute"', b'"reckon"')
    for damaged in (whole[:-20], whole.replace(b"step_ms", b"length_ms"), b"\xff", other):
        file.write_bytes(damaged)
        assert panel.of_runs(mine, here) is None, "a panel that shows an earlier answer has bars"
    assert panel.of_runs(mine, here, Progress()).alt
    doubled = [mine[0], msgspec.structs.replace(mine[1], samples_per_step=2 * mine[1].samples_per_step)]
    assert panel.of_runs(doubled, here) is None, "a picture of another batch"
    assert len(asked) == 4, "the next measurement draws it again"
    faster = 0.5
    others = [msgspec.structs.replace(run, id=f"{run.id}-later") for run in mine[1:]]
    assert panel.of_runs([mine[0], *others], here, Progress()) is None, (
        "its steps contradict what was compared"
    )
    several = [msgspec.structs.replace(run, id="x", recipe={**run.recipe, "accumulation": 2}) for run in mine]
    assert panel.of_runs(several, here, Progress()) is None


def test_the_ceiling_of_a_measured_run_is_the_one_that_its_sentence_and_table_have(monkeypatch):
    first, second = [run for run in recordings.find("cpu-quick") if run.ceiling_samples_per_s][:2]
    none = msgspec.structs.replace(second, raw=msgspec.structs.replace(second.raw, ceiling_samples_per_s=[]))
    own = msgspec.structs.replace(two().sides[0], ceiling_ms=7.0)
    monkeypatch.setattr(panel, "_looked", lambda source, recipe, title, run: own)
    drawn = [side.ceiling_ms for side in panel.of_measured([first, none], types.SimpleNamespace()).sides]
    assert drawn == [pytest.approx(1e3 * first.samples_per_step / first.ceiling_samples_per_s), 7.0]


@pytest.mark.usefixtures("data_dir")
def test_an_older_picture_has_the_ceiling_of_its_run_as_well():
    runs = recordings.find("cpu-quick")
    shown = panel.of_runs(runs[:1], planning.plan(device="recorded:cpu-quick")).drawn()
    dashed = [line for line in shown.axes[0].collections if line.get_linestyle()[0][1]]
    ceiling_ms = 1e3 * runs[0].samples_per_step / runs[0].ceiling_samples_per_s
    assert [line.get_segments()[0][0][0] for line in dashed] == [pytest.approx(2 * ceiling_ms)]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"wrkers": 1}, "unknown switch 'wrkers'"),
        ({"pin_memory": True}, "cannot act here: Pin memory"),
        ({"host": [(0, 5, "loading")]}, "unknown kind of bar"),
        ("none.json", "cannot read none.json"),
    ],
)
def test_both_sides_are_checked_before_one_is_measured(monkeypatch, second, words):
    monkeypatch.setattr(panel, "prepared", None)
    with pytest.raises(InvalidValue, match=words):
        panel.lanes({"before": {}, "after": second}, device="cpu")


@pytest.mark.parametrize("which", [{}, {key: {} for key in "abc"}])
def test_one_side_or_two_are_drawn(which):
    with pytest.raises(InvalidValue, match="before and after"):
        panel.lanes(which)


def test_rows_with_names_of_their_own_such_as_ranks_are_drawn_and_no_gap_is_claimed():
    """Without a row of kernels, nothing says when the device is idle."""
    late = {"rank 1": [(0.0, 20.0, "load")], "rank 0": [(0.0, 1.0, "compute"), (1.0, 20.0, "wait")]}
    mended = {"rank 0": [(0.0, 1.0, "compute")], "rank 1": [(0.0, 1.0, "compute")]}
    picture = panel.made({"late": late, "mended": mended}, None, {}, Progress())
    assert [side.shown for side in picture.sides] == [["rank 0", "rank 1"]] * 2
    assert picture.closed is None and picture.alt == "late: 20 ms a step; mended: 1 ms a step"
    assert len(picture.draw().axes[0].get_yticks()) == 4


def test_own_code_and_exchanges_between_ranks_have_names_of_their_own():
    bars = [(0.0, 4.0, "own"), (4.0, 6.0, "exchange"), (6.0, 9.0, "compute")]
    (axes,) = panel.made({"one": {"rank 0": bars}}, None, {}, Progress()).draw().axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "own code",
        "exchanges",
        "computes",
    ]


def test_an_unknown_picture_is_answered_with_those_that_there_are():
    with pytest.raises(InvalidValue, match="sim-v100-pinning"):
        panel.lanes("99")


@pytest.mark.integration
@pytest.mark.usefixtures("data_dir", "no_orphans")
def test_a_training_on_a_cpu_is_measured_with_its_workers():
    recipes = {"before": {}, "after": {"workers": 1}}
    where = {"device": "cpu", "preset": "smoke"}
    before, after = panel.made(recipes, "tests.support.toy:Toy", where, Progress()).sides
    assert before.shown == ["host", "kernels"] and {bar.kind for bar in before.rows["host"]} == {"load"}
    assert after.shown == ["worker", "host", "kernels"] and {bar.kind for bar in after.rows["host"]} == {
        "wait"
    }
    assert len(before.computing) == 2 and before.ceiling_ms > 0
    first, second = before.rows["kernels"]
    assert second.batch == first.batch + 1


@pytest.mark.integration
@pytest.mark.usefixtures("data_dir", "no_orphans")
def test_a_training_that_accumulates_is_drawn_with_all_batches_of_its_steps():
    """A step was drawn as one of its batches, and told as that much shorter."""
    recipe = {"batch_size": 4, "accumulation": 2, "workers": 1}
    where = {"device": "cpu", "preset": "smoke"}
    (side,) = panel.made({"accumulated": recipe}, "tests.support.toy:Toy", where, Progress()).sides
    batches = [bar.batch for bar in side.rows["host"]]
    assert batches == list(range(batches[0], batches[0] + 4)) and batches[0] % 2 == 0
    assert side.samples == 8 and 0 < side.middle_ms < 2 * side.step_ms


def test_steady_steps_are_repeated_up_to_the_end_of_the_other_side():
    bars = [Bar(0, 10, "compute", 0), Bar(10, 20, "compute", 1)]
    small = DrawnSide(title="before", step_ms=10, rows={"kernels": bars}, samples=64)
    large = DrawnSide(title="after", step_ms=10, rows={"kernels": bars}, samples=160)
    (ax,) = Lanes([small, large]).draw().axes
    ends = [bar.end for bar in bars_of(ax) if bar.row < 2]
    assert max(ends) == pytest.approx(50.0), "two and a half times its two steps"


@pytest.mark.parametrize(
    ("ceiling_ms", "step_ms", "is_drawn"),
    [(0.5, 1.0, True), (3.0, 1.0, False), (None, 1.0, False), (1.03, 2.0, True), (1.4, 2.0, False)],
)
def test_a_cached_batch_that_took_longer_than_its_loop_or_than_what_it_computes_is_no_ceiling(
    ceiling_ms, step_ms, is_drawn
):
    rows = {"kernels": [Bar(0.0, 1.0, "compute", 1)]}
    side = DrawnSide(title="one", step_ms=step_ms, rows=rows, steps=1, ceiling_ms=ceiling_ms)
    (ax,) = Lanes([side]).draw().axes
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert ("ceiling: a cached batch" in labels) == is_drawn


def test_a_picture_from_a_profile_leaves_no_trace_behind(data_dir):
    picture = panel.made({"plain": {}}, "cifar_resnet18", {"device": "sim:v100"}, Progress())
    assert picture.sides[0].rows
    assert not [*data_dir.rglob("*.trace.json*")]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(0, 5, "loading")], "unknown kind of bar 'loading'. Did you mean 'load'"),
        (((0, 5, "loading"),), "unknown kind of bar"),
        ([(0, 5)], r"\(0, 5\) is not a bar"),
        ([(0, "x", "load")], r"\(0, 'x', 'load'\) is not a bar"),
        ([(0, math.nan, "load")], "is not a bar"),
        ([(0, 10**400, "load")], "is not a bar"),
        ([(0, 5, "load", *range(9))], "is not a bar"),
        ([], "the rows of 'mine' have no bars"),
    ],
)
def test_a_bar_that_cannot_be_drawn_is_refused(rows, words):
    with pytest.raises(InvalidValue, match=words):
        panel.lanes({"mine": {"host": rows}})


@pytest.mark.parametrize("steps", [0, "2", True])
def test_rows_are_of_some_steps(steps):
    with pytest.raises(InvalidValue, match="'steps' is"):
        panel.lanes({"mine": {"host": [(0, 5, "load")], "steps": steps}})
