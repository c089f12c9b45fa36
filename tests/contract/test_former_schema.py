"""What older versions have left behind: stored runs still load, and their recipes give the same scripts.

`tests/data/*-schema-1.json.gz` were written by the last version with schema 1: the runs of two ladders with
what that version derived from them, and scripts as it exported them.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfkit import export, former_names, workloads
from perfkit.recipe import Recipe, parse_settings, switches
from perfkit.results import run

DATA = Path(__file__).parents[1] / "data"


def _read(name: str) -> Any:
    return json.loads(gzip.decompress((DATA / name).read_bytes()))


RUNS, SCRIPTS = _read("runs-schema-1.json.gz"), _read("scripts-schema-1.json.gz")


def test_there_is_something_to_read() -> None:
    assert len(RUNS) == 16
    assert len(SCRIPTS) == 85


@pytest.mark.parametrize("known", RUNS, ids=lambda known: known["run"]["id"])
def test_a_stored_run_says_what_it_said(known: dict[str, Any]) -> None:
    loaded = run.decode(json.dumps(known["run"]))
    assert set(loaded.recipe) == set(switches())
    assert Recipe.from_dict(loaded.recipe).to_dict() == loaded.recipe
    assert {proof.switch for proof in loaded.mechanism} <= set(switches())
    raw = loaded.raw  # the former medians of rounds; rates are geometric means now, as ratios are
    rates, ceilings = np.array(raw.block_samples_per_s), np.array(raw.ceiling_samples_per_s)
    assert (np.median(rates) if rates.size else None) == known["samples_per_s"]
    assert loaded.data_wait_share == known["data_wait_share"]
    assert (np.median(rates / ceilings) if ceilings.size else None) == known["pipeline_efficiency"]
    if loaded.samples_per_s:
        assert loaded.samples_per_s.value == pytest.approx(known["samples_per_s"], rel=0.3)
    for role, (ratio, low, high, verdict) in known["ratios"].items():
        found = loaded.speedup(role)
        assert found is not None
        assert (found.ratio, found.low, found.high) == pytest.approx((ratio, low, high))
        assert found.verdict == verdict
    assert run.decode(run.encode(loaded)) == loaded


def _code(source: str) -> str:
    """The program without its comments and docstrings, its definitions in the order of their names."""
    tree = ast.parse(source)
    tree.body.sort(key=lambda node: getattr(node, "name", ""))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


# Where `photos` looks for perfkit's own folder: the one line that has changed since.
MOVED = (
    "checkouts = [folder for folder in Path(__file__).resolve().parents "
    "if (folder / 'perfkit/cards').is_dir()]",
    "folders = Path(__file__).resolve().parents\n"
    "    checkouts = [folder for folder in folders if (folder / 'perfkit/workloads').is_dir()]",
)


LAYOUT = "    model = model.to(memory_format=torch.channels_last)\n"


def _with_layout_first(script: str) -> str:
    """The script with the model's memory layout set before it goes to its device, as today, not after."""
    if LAYOUT not in script:
        return script
    created = re.search(r"    model(: Any)? = workload\.model\(\)\n", script)
    assert created
    plain = script.replace(LAYOUT, "")
    return plain[: created.end()] + LAYOUT + plain[created.end() :]


def _in_torchs_new_words(script: str) -> str:
    """The script with torch 2.9's settings in place of the two flags that meant the same."""
    flags = re.compile(
        r"torch\.backends\.cuda\.matmul\.allow_tf32 = (True|False)\n"
        r"( *)torch\.backends\.cudnn\.allow_tf32 = \1"
    )
    parts = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")

    def settings(match: re.Match[str]) -> str:
        precision = "'tf32'" if match[1] == "True" else "'ieee'"
        return f"\n{match[2]}".join(f"torch.backends.{part}.fp32_precision = {precision}" for part in parts)

    script, count = flags.subn(settings, script)
    assert count == 1
    return script


def _without_relics(script: str) -> str:
    """Scripts no longer spell out torch's defaults, nor a preparation that does nothing."""
    defaults = "collate_fn=None|prefetch_factor=None|set_to_none=True|" + "|".join(
        f"{name}=False"
        for name in (
            "gradient_as_bucket_view", "non_blocking", "persistent_workers", "pin_memory", "static_graph",
        )
    )  # fmt: skip
    script = re.sub(rf"(?<=\(|,) ?({defaults})(,|(?=\)))", "", script).replace(",)", ")")
    script = re.sub(r"\n +torch\.backends\.cudnn\.benchmark = False", "", script)
    idle_method = r"\n+ +def prepare\(self, images: torch.Tensor\)[^\n]+\n +return images\b"
    script, idle = re.subn(idle_method, "", script)
    call = r"(\n +)if hasattr\(workload, 'prepare'\):\n +(inputs = [^\n]+)"
    return re.sub(call, "" if idle else r"\1\2", script)


@pytest.mark.parametrize("at", range(len(SCRIPTS)))
def test_a_recipe_gives_the_script_it_gave(at: int) -> None:
    recipe, workload, device, script = SCRIPTS[at]
    made = export.script(Recipe.from_dict(recipe), workloads.reference(workload), {}, device, 0, 8)
    assert _code(made) == _without_relics(
        _with_layout_first(_in_torchs_new_words(_code(script).replace(*MOVED)))
    )


def test_the_plain_program_of_before_is_not_that_of_today() -> None:
    """It had TF32 off in convolutions too, and zeroed gradients; recipes that hold this keep it."""
    before = Recipe.from_dict({"tf32": False, "set_to_none": False})
    assert before == Recipe(fp32_precision="ieee", zero_grad_set_to_none=False) != Recipe()
    assert "zero_grad(set_to_none=False)" in export.script(before, "photos", {})
    today = export.script(Recipe(), "photos", {})
    assert "zero_grad()" in today
    assert not re.search("tf32|precision", today)


def test_settings_and_names_of_before_are_understood() -> None:
    assert (
        parse_settings(["tf32=on"]) == parse_settings(["fp32_precision=tf32"]) == {"fp32_precision": "tf32"}
    )
    assert parse_settings(["tf32=False"]) == {"fp32_precision": "ieee"}
    assert parse_settings(["placement=cpu_embedding", "bucket_mb=100"]) == {
        "embedding_device": "cpu", "bucket_cap_mb": 100,
    }  # fmt: skip
    assert not set(former_names.SWITCHES) & set(switches())
    assert set(former_names.SWITCHES.values()) <= set(switches())


def test_a_run_of_a_moved_workload_gives_a_script() -> None:
    moved, today = (f"perfkit.workloads.{module}:HostBound" for module in ("seeded", "bottlenecks"))
    assert export.script(Recipe(), moved, {}) == export.script(Recipe(), today, {})
