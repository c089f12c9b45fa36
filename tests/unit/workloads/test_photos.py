from pathlib import Path

import pytest
import torch

from perfkit import export
from perfkit.errors import WorkloadError
from perfkit.recipe import Recipe
from perfkit.workloads import files
from perfkit.workloads.photos import Photos


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path))


def test_a_folder_is_made_once_with_the_same_photos_by_class() -> None:
    photos = sorted(Path(files.photo_folder(9)).glob("*/*.jpg"))
    assert len(photos) == 9 and len({photo.parent.name for photo in photos}) == 8
    before = [(photo.read_bytes(), photo.stat().st_mtime_ns) for photo in photos]
    files.photo_folder(9)
    assert [(photo.read_bytes(), photo.stat().st_mtime_ns) for photo in photos] == before
    assert len(list(Path(files.photo_folder(9)).parent.iterdir())) == 1, "nothing unfinished is left"


def test_an_exported_script_finds_its_photos_on_a_machine_that_measured_nothing(tmp_path: Path) -> None:
    text = export.script(Recipe(), "photos", {"count": 9})
    assert str(tmp_path) in text
    assert len(list(tmp_path.rglob("*.jpg"))) == 9


def test_a_folder_that_cannot_be_written_is_one_clear_message(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(WorkloadError, match="cannot be written to .*set PERFKIT_DATA"):
        Photos(count=1).dataset(Recipe())


def test_uint8_and_batches_give_the_same_images() -> None:
    workload = Photos(image_size=16, count=8, rounds=2)
    plain = workload.dataset(Recipe())
    assert len(plain) == 16
    raw = workload.dataset(Recipe(uint8_copy=True))[3][0]
    assert raw.dtype == torch.uint8
    prepared = workload.prepare(raw[None], Recipe(uint8_copy=True))[0]
    torch.testing.assert_close(prepared, plain[3][0])
    images, labels = workload.dataset(Recipe(batched_fetch=True)).__getitems__([3, 0])
    assert labels.tolist() == [plain[3][1], plain[0][1]]
    assert float((images[0] - plain[3][0]).square().mean().sqrt()) < 0.05
