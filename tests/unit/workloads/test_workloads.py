"""What is trained: loading a workload by name, the built-in ones, the planted bottlenecks."""

import itertools
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from perfkit import export, rules, workloads
from perfkit.errors import InvalidValue, WorkloadError
from perfkit.ladder.catalogue import PRESETS
from perfkit.recipe import Recipe
from perfkit.studies import staging
from perfkit.studies.planning import plan
from perfkit.train import train
from perfkit.worker import checks
from perfkit.workloads import files
from perfkit.workloads.files import text_file
from perfkit.workloads.photos import Photos
from perfkit.workloads.tiny_gpt import TinyGPT
from tests.support import toy
from tests.support.chatty import Chatty

SMALL = {"context": 16, "width": 16, "layers": 2, "heads": 2}


def losses(workload, steps=2, **switches):
    recipe = Recipe().replace(**{"batch_size": 8, **switches})
    return [loss.item() for loss in itertools.islice(train(recipe, workload, torch.device("cpu")), steps)]


def test_a_name_is_a_built_in_one_or_a_reference():
    assert workloads.reference("photos") == "perfkit.workloads.photos:Photos"
    assert workloads.reference("mine:Work") == "mine:Work"
    with pytest.raises(InvalidValue, match="unknown workload 'photo'. Did you mean 'photos'"):
        workloads.reference("photo")
    with pytest.raises(InvalidValue, match="cannot be imported: ModuleNotFoundError: No module named 'none'"):
        workloads.find("none.at.all:Work")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise OSError('no disk')", "cannot be imported: OSError: no disk. Run `python -c 'from "),
        ("class Work:\n  def __init__(self): raise KeyError('k')", "cannot be built: KeyError: 'k'"),
        ("class Work:\n  def model(self): ...", "has no dataset, loss, optimizer"),
    ],
)
def test_a_workload_that_cannot_be_loaded_is_one_clear_message(tmp_path, monkeypatch, text, words):
    name = f"workload_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(WorkloadError) as caught:
        workloads.load(f"{name}:Work")
    assert words in str(caught.value)


def test_options_are_those_of_the_preset_and_then_the_given_ones():
    found = workloads.find("photos")
    assert workloads.options_for(found, "smoke", {"count": 3}) == {"image_size": 48, "count": 3}
    with pytest.raises(InvalidValue, match="takes no options"):
        workloads.options_for(object(), "smoke", {"count": 3})
    with pytest.raises(InvalidValue, match="'foo'. Allowed: image_size, count"):
        workloads.options_for(found, "smoke", {"foo": 1})


def test_without_reading_it_is_the_same_training():
    chatty, clean = (Chatty(clean) for clean in (False, True))
    assert losses(chatty, steps=3) == pytest.approx(losses(clean, steps=3))
    assert len(chatty.history) == 3 and not clean.history


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path))


@pytest.mark.usefixtures("folder")
def test_a_folder_is_made_once_with_the_same_photos_by_class():
    text = export.script(Recipe(), "photos", {"count": 9})
    assert files.photo_folder(9) in text, "the script finds its photos on a machine that measured nothing"
    photos = sorted(Path(files.photo_folder(9)).glob("*/*.jpg"))
    assert len(photos) == 9 and len({photo.parent.name for photo in photos}) == 8
    before = [(photo.read_bytes(), photo.stat().st_mtime_ns) for photo in photos]
    files.photo_folder(9)
    assert [(photo.read_bytes(), photo.stat().st_mtime_ns) for photo in photos] == before
    assert len(list(Path(files.photo_folder(9)).parent.iterdir())) == 1, "nothing unfinished is left"


@pytest.mark.usefixtures("folder")
def test_a_diff_makes_no_photos(tmp_path):
    wanted = plan("photos", "smoke", ["data_loading"], device="cpu")
    assert "num_workers" in staging.stage_diff(wanted.source())[1]
    assert not [*tmp_path.rglob("*.jpg")]


@pytest.mark.usefixtures("folder")
def test_a_folder_that_cannot_be_written_is_one_clear_message(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(WorkloadError, match="cannot be written to .*set PERFKIT_DATA"):
        Photos(count=1).dataset(Recipe())


@pytest.mark.usefixtures("folder")
def test_uint8_gives_the_same_images():
    workload = Photos(image_size=16, count=8, rounds=2)
    plain, raw = (workload.dataset(Recipe(uint8_copy=on)) for on in (False, True))
    assert len(plain) == 16
    assert raw[3][0].dtype == torch.uint8
    prepared = workload.prepare(raw[3][0][None], Recipe(uint8_copy=True))[0]
    torch.testing.assert_close(prepared, plain[3][0])


@pytest.mark.usefixtures("folder")
def test_photos_that_are_decoded_at_a_smaller_scale_are_nearly_the_same():
    def seen(dataset):
        return checks.View(SimpleNamespace(dataset=dataset)).scaled_decode()

    workload = Photos(image_size=96, count=8, rounds=2)
    plain, scaled = (workload.dataset(Recipe(scaled_decode=on)) for on in (False, True))
    assert scaled[3][0].shape == plain[3][0].shape
    assert seen(plain) == (False, "a photo of 500 × 375 is decoded as 500 × 375")
    assert seen(scaled) == (True, "a photo of 500 × 375 is decoded as 250 × 188")
    scaled.loader = str  # it gives no photo of PIL's, and a data set of one's own may have any loader
    assert seen(scaled) == seen(plain)
    assert seen(SimpleNamespace(loader=str)) == (False, "no photo is decoded")


def test_a_character_sees_only_those_before_it():
    model = TinyGPT(**SMALL).model()
    text = torch.randint(256, (1, 16))
    other = text.clone()
    other[0, 9:] = 0
    torch.testing.assert_close(model(text)[:, :9], model(other)[:, :9])


def test_a_target_is_the_next_character(tmp_path):
    (tmp_path / "own.txt").write_bytes(bytes(range(65)))
    data = TinyGPT(**SMALL, text=str(tmp_path / "own.txt")).dataset(Recipe())
    assert len(data) == 4
    inputs, targets = data[1]
    assert inputs.dtype == targets.dtype == torch.int64
    assert (inputs.tolist(), targets.tolist()) == ([*range(16, 32)], [*range(17, 33)])


def test_a_padded_line_is_a_sample_and_its_padding_teaches_nothing(tmp_path):
    (tmp_path / "own.txt").write_bytes(b"abc\n\na line that is longer than the context\n")
    workload = TinyGPT(**SMALL, text=str(tmp_path / "own.txt"), padded=True)
    data = workload.dataset(Recipe())
    short, long = data[0], data[1]
    assert len(data) == 2, "an empty line is not a sample"
    assert short[0].tolist() == [*b"abc", *[0] * 13] and short[1].tolist() == [*b"bc", *[0] * 14]
    assert bytes(long[0].tolist()) == b"a line that is l" and bytes(long[1].tolist()) == b" line that is lo"
    outputs = torch.randn(1, 16, 256)
    expected = workload.loss(outputs[:, :2], short[1][None, :2])
    torch.testing.assert_close(workload.loss(outputs, short[1][None]), expected)


def test_attention_that_stores_its_scores_computes_the_same():
    written_out, fused = (TinyGPT(**SMALL, stores_scores=stores).model() for stores in (True, False))
    fused.load_state_dict(written_out.state_dict())
    text = torch.randint(256, (2, 16))
    for model in (written_out, fused):
        with torch.profiler.profile() as profile:
            model.logits = model(text)
        used = {event.key for event in profile.key_averages()}
        model.is_written_out = "aten::_scaled_dot_product_attention_math" in used
    torch.testing.assert_close(written_out.logits, fused.logits)
    assert written_out.is_written_out and not fused.is_written_out


def test_a_text_is_found_in_the_data_folder_or_named(tmp_path, monkeypatch):
    assert Path(text_file("texts/workbook.txt")).stat().st_size > 50_000
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path))
    (tmp_path / "own.txt").write_text("mine")
    assert text_file("own.txt") == str(tmp_path / "own.txt")
    with pytest.raises(WorkloadError, match="there is no text 'absent.txt'. Name your own text file"):
        text_file("absent.txt")


def test_whether_a_model_convolves_is_told_without_its_weights():
    assert workloads.convolves(workloads.load("cifar_resnet18", {"image_size": 32, "samples": 8}))
    assert not workloads.convolves(toy.Toy())

    class NeedsRealTensors(toy.Toy):
        def model(self):
            return nn.Linear(int(torch.ones(3).sum()), 2)

    assert workloads.convolves(NeedsRealTensors())


@pytest.mark.parametrize("name", workloads.BUILT_IN)
def test_a_workload_has_sizes_for_every_preset_and_shows_what_it_offers_unloaded(name):
    found = workloads.find(name)
    assert all(workloads.options_for(found, preset, {}) for preset in PRESETS)
    assert rules.offers(found) == workloads.declared(name, "offers")
    assert workloads.declared("tests.support.toy:Toy", "offers") == set(), "it names none and inherits none"
    for unknown in ("tests.support.toy:Blocks", "tests.support.toy:LOSS", "tests.none:Work"):
        assert workloads.declared(unknown, "offers") is None


def test_to_read_what_a_class_declares_imports_no_package_of_its_module(tmp_path, monkeypatch):
    (tmp_path / "chosen").mkdir()
    (tmp_path / "chosen" / "__init__.py").write_text("raise RuntimeError('it was imported')\n")
    (tmp_path / "chosen" / "mine.py").write_text("class Mine:\n    offers = {'uint8_copy'}\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "chosen" / "none.py").write_text("class None_:\n    offers = frozenset()\n")
    (tmp_path / "chosen" / "asked.py").write_text("class Asked:\n    offers = supported()\n")
    assert workloads.declared("chosen.asked:Asked", "offers") is None, "only the class itself knows"
    assert workloads.declared("chosen.mine:Mine", "offers") == {"uint8_copy"}
    assert workloads.declared("chosen.none:None_", "offers") == set()
    assert workloads.declared("chosen.mine.deeper:Mine", "offers") is None
    assert workloads.declared("chosen.absent:Mine", "offers") is None
    assert "chosen" not in sys.modules


@pytest.mark.usefixtures("folder")
def test_photos_that_a_killed_process_left_unfinished_are_removed_after_an_hour():
    cache = Path(files.photo_folder(1)).parent
    old, young = cache / "photo-folder-2.4711", cache / "photo-folder-2.abcd"
    for place in (old, young):
        place.mkdir()
    os.utime(old, (0, 0))
    files.photo_folder(2)
    assert not old.exists() and young.exists(), "another process may be at work on the young one"


def test_the_code_of_a_workload_in_a_folder_without_an_init_is_found(tmp_path, monkeypatch):
    """A namespace package, which torch users have often: its panel could not be opened."""
    (tmp_path / "my_models").mkdir()
    (tmp_path / "my_models" / "small.py").write_text("class Small: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert workloads.source("my_models.small:Small") == b"class Small: ...\n"
    assert workloads.source("my_models.gone:Small") == b""
