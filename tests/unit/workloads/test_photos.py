from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from perfkit.recipe import Recipe
from perfkit.workloads import photos
from perfkit.workloads.photos import Photos


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path))


def test_the_same_photos_are_generated_every_time() -> None:
    assert photos.make_photo(3) == photos.make_photo(3) != photos.make_photo(4)


def test_damaged_and_missing_files_are_generated_again() -> None:
    files = photos.photo_files(3)
    whole = [file.read_bytes() for file in files]
    kept = files[0].stat().st_mtime_ns
    files[1].write_bytes(b"half")
    files[2].unlink()
    assert [file.read_bytes() for file in photos.photo_files(3)] == whole
    assert files[0].stat().st_mtime_ns == kept


@pytest.mark.parametrize("listing", ["[]", "{", ""])
def test_a_damaged_list_of_digests_is_no_obstacle(listing: str) -> None:
    files = photos.photo_files(1)
    files[0].with_name("digests.json").write_text(listing)
    assert photos.photo_files(1) == files


@pytest.mark.skipif(os.name == "nt", reason="a file in place of a folder is another error on Windows")
def test_a_folder_that_cannot_be_written_is_one_clear_message(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(RuntimeError, match="cannot be written to .*set PERFKIT_DATA"):
        photos.photo_files(1)


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(batched_fetch=True)])
def test_a_crop_depends_on_the_epoch_and_not_on_who_loads_it(recipe: Recipe) -> None:
    def epochs() -> list[torch.Tensor]:
        torch.manual_seed(5)
        data = Photos(image_size=16, count=2, rounds=1).dataset(recipe)
        get = (lambda: data.__getitems__([0, 1])[0]) if recipe.batched_fetch else (lambda: data[0][0])
        return [get(), get()]

    first, second = epochs()
    assert not torch.equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip(epochs(), (first, second), strict=True))


def test_uint8_is_cast_and_normalised_on_the_device() -> None:
    workload = Photos(image_size=16, count=1, rounds=1)
    torch.manual_seed(0)
    plain, _ = workload.dataset(Recipe())[0]
    torch.manual_seed(0)
    raw, _ = workload.dataset(Recipe(uint8_copy=True))[0]
    assert raw.dtype == torch.uint8
    prepared = workload.prepare(raw[None], Recipe(uint8_copy=True))[0]
    torch.testing.assert_close(prepared, plain)
