"""The learner's file: written once, compared with what was kept, and the climb grows with what is faster."""

import itertools
import json
from types import SimpleNamespace

import pytest

from perfkit.additions.my_train import panel, steps
from perfkit.additions.referee.behaviour import Difference
from perfkit.additions.referee.match import Match
from perfkit.errors import InvalidValue
from perfkit.machine import devices
from perfkit.notebook import my_train
from perfkit.results.comparison import Comparison
from perfkit.results.stats import Ratio
from perfkit.show.document import Code, find
from perfkit.show.style import Figure
from tests.unit.show.fake_runs import session


@pytest.fixture
def compared(tmp_path, data_dir, monkeypatch):
    """A folder of the learner's, and what would be measured there; `outcome` is the verdict to come."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(panel, "photo_folder", lambda count: "")
    asked = SimpleNamespace(outcome="faster", differences=[], sides=[], allowed=set())
    asked.file = tmp_path / steps.NAME
    before, after = session()[:2]

    def compare(match, progress):
        rule, starter = match.plan.rule, match.plan.source().starter
        asked.budget_s = rule.budget.stage_s if rule.budget else 0.0
        launches = starter.launch, match.b.program or starter.launch
        texts = [dict(launch.replaced)[asked.file.resolve()].decode() for launch in launches]
        asked.sides.append(list(zip((match.a, match.b), texts, strict=True)))
        asked.allowed = match.allowed
        verdict = SimpleNamespace(
            outcome=asked.outcome,
            reason=f"so it is: {match.longer}",
            differences=asked.differences,
            sections=lambda result: ["proof", "verdict"],
        )
        result = Comparison(before, after, after.pairing("previous"))
        return SimpleNamespace(comparison=result, verdict=lambda precision: verdict)

    monkeypatch.setattr(Match, "compare", compare)
    return asked


def edit(file, old, new):
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def test_it_is_written_once_and_a_file_as_it_was_is_not_measured(compared):
    first = my_train()
    assert compared.file.read_text() == steps.after("00") and find_code(first) == steps.after("00")
    assert "Your turn" in repr(my_train()) and compared.sides == []
    compared.file.write_text(steps.after("00"), encoding="utf-8-sig")
    assert "Your turn" in repr(my_train()) and compared.sides == [], "a byte order mark is no edit"


def find_code(shown):
    return next(part.text for part in shown.sections() if isinstance(part, Code))


def find_text(shown):
    return "\n".join(part for part in shown.sections() if isinstance(part, str))


def test_a_faster_edit_is_kept_and_the_next_one_is_compared_with_it(compared):
    my_train()
    start = compared.file.read_text()
    edit(compared.file, "drop_last=True)", "drop_last=True, num_workers=1)")
    shown = my_train()
    second = compared.file.read_text()
    ((before, old), (now, new)) = compared.sides[-1]
    assert (before.title, old, now.title, new) == ("before", start, "the edited file", second)
    assert (
        "+    loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True, num_workers=1)"
        in find_code(shown)
    )
    chart = find(shown.sections(), Figure, "climb")
    ratio = session()[1].speedup("previous").ratio
    assert [row.pieces[0][0] for row in chart.rows] == [1.0, pytest.approx(ratio)]
    assert "samples/s" in chart.rows[0].text, "which was measured"
    assert "num_workers=1" in chart.rows[1].label
    compared.outcome = "not faster"
    assert "It is not kept: what is set outside the file stays" in repr(my_train(wait_policy="passive"))
    compared.outcome = "faster"
    my_train(wait_policy="passive")
    ((before, old), (now, new)) = compared.sides[-1]
    assert old == new == second and (before.changes, now.changes) == ({}, {"wait_policy": "passive"})
    assert now.title == "02 sleeping threads", "no edit of the file"
    assert my_train().found[-1].switches == {"wait_policy": "passive"}, "it stays set"
    chart = find(my_train(whole=True).sections(), Figure, "climb")
    ((length, look),) = chart.rows[-1].pieces
    assert length == pytest.approx(ratio) and look.label == "measured at once"
    assert chart.title == f"my_train.py: {ratio:.2f}× as fast as the plain loop", (
        "not the product of the gains"
    )
    assert compared.sides[-1][0] == (before._replace(changes={}), start)
    assert len(steps.load()) == 3, "the whole is no step"


def test_the_whole_keeps_nothing_so_keep_is_refused(compared):
    my_train()
    with pytest.raises(InvalidValue, match="keep=True would do nothing"):
        my_train(whole=True, keep=True)


def test_gains_are_multiplied_with_their_intervals_and_give_no_rate_that_was_not_measured():
    first = steps.Version("", rate=243.0)
    edits = [("02 a worker", Ratio(1.25, 1.0, 1.5625, "faster")), ("03 pinned memory", None)]
    edits += [("04 memory reuse", Ratio(2.0, 1.6, 2.5, "faster"))]
    chart = steps.chart([first, *(steps.Version("", {}, what, gain) for what, gain in edits)])
    plain, worker, pinned, reuse = chart.rows
    assert [plain.text, pinned.text] == ["243 samples/s", "not measured: changes nothing here"]
    assert worker.text == "1.25× (1.00–1.56)\nthis edit: 1.25× (1.00–1.56)"
    factor = 1.25**2**0.5  # each interval is a factor of 1.25 to either side
    assert reuse.pieces[0][0] == reuse.interval.ratio == pytest.approx(2.5)
    assert (reuse.interval.low, reuse.interval.high) == pytest.approx((2.5 / factor, 2.5 * factor))
    assert not pinned.pieces and "samples/s" not in worker.text + reuse.text + chart.unit
    assert chart.title == "my_train.py: the gains multiply to 2.50×" and chart.svg()


def test_the_lines_of_the_course_have_names_in_the_chart_and_others_their_end(compared):
    texts = dict.fromkeys(["00", *(edit["chapter"] for edit in steps.edits())])
    texts = {chapter: steps.after(chapter) for chapter in texts}
    passive = {"wait_policy": "passive"}

    def named(old, new, switches):
        return steps.named(steps.Version(old), steps.Version(new, switches))

    assert named(texts["00"], texts["02"], passive) == "02 a worker, sleeping threads"
    names = [named(*pair, {}) for pair in itertools.pairwise(texts.values())]
    assert names[1:4] == ["03 pinned memory", "04 batches of 64", "05 photos decoded smaller"]
    assert names[4] == "06 channels_last, 16 bits, a core for the worker"
    assert names[5] == "07 uint8 batches, torch.compile"
    assert named(texts["02"], texts["02"], passive) == "02 sleeping threads"
    mine = texts["00"].replace("drop_last=True)", "drop_last=True, num_workers=2, prefetch_factor=8)")
    assert named(texts["00"], mine, {"seed": 1}) == "… num_workers=2, prefetch_factor=8), seed=1"
    assert "… lr=0.1, " in named(texts["02"], texts["02"].replace("lr=0.05", "lr=0.1"), {})
    both = texts["02"].replace("batch_size=32", "batch_size=64").replace("lr=0.05", "lr=0.1")
    assert not named(texts["02"], both, {}).startswith("04"), "more than that line was changed"


@pytest.mark.parametrize(("outcome", "keep", "kept"), [
    ("not faster", False, 1), ("not faster", True, 2), ("trains differently", True, 1),
    ("undecided", False, 1), ("undecided", True, 2),
])  # fmt: skip
def test_what_is_not_faster_is_kept_only_if_the_learner_says_so_and_what_trains_differently_never(
    outcome, keep, kept, compared
):
    my_train()
    edit(compared.file, "lr=0.05", "lr=0.06")
    compared.outcome = outcome
    shown = my_train(keep=keep, allow=["losses"])
    assert len(shown.found) == len(steps.load()) == kept and compared.allowed == {"losses"}
    assert ("It is not kept" in repr(shown)) is (kept == 1)
    assert shown.found[-1].what.endswith(f", kept by you ({outcome})") is (kept == 2)
    if kept == 1:
        assert find(shown.sections(), Figure, "climb").alt.endswith("Nothing is kept yet.")


def test_what_trains_differently_is_allowed_by_its_names_and_not_by_keep(compared):
    """`keep` does not cover it: who is told to use it waits a minute for the same sentence."""
    my_train()
    compared.outcome = "trains differently"
    compared.differences = [Difference("samples", "64, not 32", allowed=True), Difference("updates", "half")]
    edit(compared.file, "batch_size=32", "batch_size=64")
    for shown in (my_train(allow=["samples"]), my_train(keep=True), my_train(batch_size=64)):
        assert 'add `allow=["samples", "updates"]` to the call' in find_text(shown)
        assert "keep=True" not in find_text(shown) and len(shown.found) == len(steps.load()) == 1
    my_train(restore="00")
    assert 'add `allow=["samples", "updates"]`' in find_text(my_train(batch_size=64)), "without an edit, too"


@pytest.mark.parametrize(
    ("gpus", "old", "new", "is_measured"),
    [
        ([], "drop_last=True)", "drop_last=True, pin_memory=device == 'cuda')", False),
        ([], ".to(device), labels.to(device)", ".to(device, non_blocking=True), labels.to(device)", False),
        (["T4"], "drop_last=True)", "drop_last=True, pin_memory=True)", True),
        ([], "drop_last=True)", "drop_last=True, pin_memory=True, num_workers=1)", True),
        ([], "drop_last=True)", "drop_last=True", True),
    ],
)
def test_an_edit_that_cannot_act_here_is_kept_and_not_measured(
    gpus, old, new, is_measured, compared, monkeypatch
):
    """Of two equal programs, a measurement shows noise: nobody is told to undo a line because of that."""
    monkeypatch.setattr(devices, "accelerators", lambda: devices.Accelerators(cuda=gpus))
    my_train()
    edit(compared.file, old, new)
    shown = my_train()
    assert len(compared.sides) == is_measured and len(shown.found) == 2
    assert ("Not measured: on a CPU no batch is copied" in repr(shown)) is not is_measured
    if not is_measured:
        assert shown.found[-1].gain is None and "undo" not in repr(shown)
        assert "Your turn" in repr(my_train()), "the next edit is compared with it"
        edit(compared.file, "lr=0.05", "lr=0.06")
        my_train()
        assert new in compared.sides[-1][0][1]


def test_more_time_is_asked_for_in_words_of_a_notebook(compared):
    my_train()
    edit(compared.file, "lr=0.05", "lr=0.06")
    usual = repr(my_train())
    assert f"pk.my_train(budget_s={2 * max(60, compared.budget_s):.0f})" in usual and "--budget" not in usual
    edit(compared.file, "lr=0.06", "lr=0.07")
    shown = my_train(budget_s=200)
    assert compared.budget_s == 200 and "pk.my_train(budget_s=400)" in repr(shown)


def test_who_joins_late_gets_the_file_of_a_chapter_and_loses_nothing(compared):
    my_train()
    compared.file.write_text("mine")
    shown = my_train(restore="02")
    assert compared.file.read_text() == steps.after("02") and "num_workers=1" in steps.after("02")
    assert (compared.file.parent / "old_my_train.py").read_text() == "mine" and len(shown.found) == 1
    assert shown.found[0].switches == {"wait_policy": "passive"}, "a worker needs threads that sleep"
    with pytest.raises(InvalidValue, match="00, 02, 03"):
        my_train(restore="99")


@pytest.mark.parametrize("more", [{"allow": ["samples"]}, {"keep": True}, {"whole": True}, {"budget_s": 9}])
def test_what_a_restored_climb_would_ignore_is_refused_before_the_file_is_written(more, compared):
    my_train()
    text = compared.file.read_text()
    with pytest.raises(InvalidValue, match=f"compares nothing, so {next(iter(more))} would do nothing"):
        my_train(restore="02", **more)
    assert compared.file.read_text() == text


def test_a_whole_climb_is_as_fast_as_the_file_that_it_began_with(compared):
    ratio = f"my_train.py: {session()[1].speedup('previous').ratio:.2f}× as fast as"
    my_train(restore="02")
    edit(compared.file, "lr=0.05", "lr=0.06")
    chart = find(my_train(whole=True).sections(), Figure, "climb")
    assert chart.title == f"{ratio} the file after 02" and chart.rows[0].label == "the file after 02"
    my_train(restore="00")
    edit(compared.file, "lr=0.05", "lr=0.06")
    assert find(my_train(whole=True).sections(), Figure, "climb").title == f"{ratio} the plain loop"


def test_each_file_has_its_climb(compared, tmp_path, monkeypatch):
    """The data folder is one for all working directories: another one's file does not end this climb."""
    my_train()
    edit(compared.file, "lr=0.05", "lr=0.06")
    kept = my_train().found
    assert len(kept) == 2
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    (other / steps.NAME).write_text("print(1)")
    shown = my_train()
    assert [version.what for version in shown.found] == ["your first version"], "it is not the plain loop"
    assert f"Those of other files are kept: {compared.file.resolve()}." in find_text(shown)
    assert len(steps.load()) == 1 and len(compared.sides) == 1
    monkeypatch.chdir(tmp_path)
    assert [version.text for version in steps.load()] == [version.text for version in kept]
    assert "Your turn" in repr(my_train())


@pytest.mark.parametrize("restore", [None, "00"])
def test_a_climb_that_starts_again_says_what_it_is_without(restore, compared):
    my_train()
    edit(compared.file, "lr=0.05", "lr=0.06")
    assert "starts again" not in repr(my_train())
    what = steps.load()[-1].what
    if restore is None:
        compared.file.unlink()
    said = find_text(my_train(restore=restore))
    assert f"The climb starts again, without what was kept: {what}." in said and "Wrote" in said
    assert len(steps.load()) == 1


def test_a_climb_that_was_stored_without_its_file_goes_on(compared, data_dir):
    compared.file.write_text("print(1)")
    (data_dir / "my_train").mkdir()
    old = [{"text": "print(0)"}, {"text": "print(1)", "what": "one"}]
    (data_dir / "my_train" / "climb.json").write_text(json.dumps(old))
    assert "Your turn" in repr(my_train())
    compared.file.write_text("print(2)")
    assert len(my_train().found) == 3
    assert {version.place for version in steps.load()} == {str(compared.file.resolve())}


def test_on_a_gpu_nothing_is_set_that_a_comparison_would_refuse(compared, monkeypatch):
    """The course sets threads and memory of the CPU outside the file."""
    assert steps.outside("03", {"amp": "bf16"}) == {"wait_policy": "passive", "amp": "bf16"}
    assert steps.outside("08", {"wait_policy": "default"}) == {"wait_policy": "default", "allocator": "keep"}
    monkeypatch.setattr(devices, "accelerators", lambda: devices.Accelerators(cuda=["T4"]))
    assert steps.outside("08", {"amp": "bf16"}) == {"amp": "bf16"}
    my_train()
    said = find_text(my_train(allocator="keep"))
    assert "hasn't changed" in said and "`allocator` isn't set: it is for CPUs." in said
    assert "isn't set" not in find_text(my_train())


def test_the_lines_of_the_course_are_each_made(compared):
    text = steps.after("00")
    for line in steps.edits():
        assert text.count(line["old"]) == 1, line
        text = text.replace(line["old"], line["new"])
    assert text == steps.after("07")


def test_what_a_learner_wrote_is_never_lost(compared):
    my_train()
    for text in ("# mine", "# mine again"):
        compared.file.write_text(text)
        my_train(restore="00")
    kept = [(compared.file.parent / name).read_text() for name in ("old_my_train.py", "old_2_my_train.py")]
    assert kept == ["# mine", "# mine again"]


def test_a_file_in_another_encoding_is_told_and_kept_under_another_name(compared):
    my_train()
    compared.file.write_bytes(b"# caf\xe9\n")
    with pytest.raises(InvalidValue, match="my_train.py is not in UTF-8"):
        my_train()
    my_train(restore="00")
    assert (compared.file.parent / "old_my_train.py").read_bytes() == b"# caf\xe9\n"


def test_damaged_versions_are_told_with_what_to_do(compared, data_dir):
    my_train()
    (file,) = data_dir.rglob("climb.json")
    file.write_text("[{")
    with pytest.raises(InvalidValue, match=r"is damaged.*Move it away"):
        my_train()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"wait_polcy": "passive"}, "Did you mean 'wait_policy'"),
        ({"accumulation": 2}, "unknown switch that is set outside the file 'accumulation'"),
        ({"workers": "many"}, "'workers' was given 'many'"),
    ],
)
def test_a_switch_that_cannot_be_set_is_refused_before_anything_is_stored(given, words, compared):
    """Each later call would set it again, and fail."""
    for _ in range(2):  # without a file, and with one
        with pytest.raises(InvalidValue, match=words):
            my_train(**given)
        assert all(not version.switches for version in steps.load())
        my_train()
    assert compared.file.exists()
