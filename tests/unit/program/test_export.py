"""The script of a recipe: short, without perfkit, with the losses of the measured program."""

import ast
import inspect
import itertools
import runpy
from pathlib import Path

import pytest
import torch

from perfkit import export, lookup, workloads
from perfkit.errors import InvalidValue
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import LADDER, OPTIMIZATIONS
from perfkit.recipe import Recipe
from perfkit.rules import Target, applicable, offers
from perfkit.train import train
from perfkit.workloads.files import photo_folder
from tests.unit.ladder.test_ladder import SIZES

CPU = torch.device("cpu")
OPTIONS = {
    "photos": {"image_size": 32, "count": 48},
    "cifar_resnet18": {"image_size": 40, "samples": 64},
    "tiny_gpt": {"context": 16, "width": 16, "layers": 2, "heads": 2},
}
ON_CPU = [
    {"workers": 1, "prefetch_factor": 4, "uint8_copy": True, "channels_last": True, "amp": "bf16"},
    {"device_resize": True, "scaled_decode": True, "optimizer_impl": "fused", "accumulation": 2},
    {"zero_grad_set_to_none": False, "optimizer_impl": "loop", "fp32_precision": "ieee", "cpu_threads": 1},
]


def changed(before, after):
    lines = export.diff(before, after, "it").splitlines()
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


@pytest.mark.parametrize("workload", OPTIONS)
def test_the_baseline_has_at_most_sixty_lines(workload):
    text = export.script(Recipe(), workload, OPTIONS[workload])
    assert len(text.splitlines()) <= 60
    assert "perfkit" not in text.replace(photo_folder(48), "")
    assert "recipe" not in {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def test_a_script_reads_as_a_person_would_write_it(golden):
    recipe = Recipe(
        workers=2,
        uint8_copy=True,
        pin_memory=True,
        device_prefetch=True,
        amp="fp16",
        compile=True,
        optimizer_impl="fused",
        accumulation=2,
        wait_policy="passive",
    )
    for name, used in (("script_baseline", Recipe()), ("script_of_many_switches", recipe)):
        text = export.script(used, "photos", {"count": 48}, "cuda:1", seed=7, steps=3)
        golden(name, text.replace(photo_folder(48), "data/photos"))


def test_a_program_of_another_shape_is_refused_with_the_name_of_its_file(monkeypatch):
    plain = export._read
    later = (
        "    for inputs, targets in batches:",
        "    batches = batches\n    while True:\n        inputs, targets = next(batches)",
    )
    monkeypatch.setattr(export, "_read", lambda module: plain(module).replace(*later))
    with pytest.raises(AssertionError, match=r"train\.py: `train` must end with its loop"):
        export.script(Recipe(), "tiny_gpt", OPTIONS["tiny_gpt"], set_up=False)


@pytest.mark.parametrize("switches", [{}, *ON_CPU], ids=lambda switches: next(iter(switches), "baseline"))
@pytest.mark.usefixtures("settings_kept")
@pytest.mark.parametrize(
    "workload", ["photos", pytest.param("cifar_resnet18", marks=pytest.mark.integration), "tiny_gpt"]
)
def test_a_script_gives_the_losses_of_the_program(workload, switches, tmp_path):
    built, options = workloads.load(workload, OPTIONS[workload]), OPTIONS[workload]
    target = Target("cpu", offers(built), convolves=workload != "tiny_gpt")
    recipe = applicable(Recipe(batch_size=4, **switches), target)[0]
    expected = [loss.item() for loss in itertools.islice(train(recipe, built, CPU, seed=5), 2)]
    (tmp_path / "train.py").write_text(export.script(recipe, workload, options, seed=5))
    program = runpy.run_path(str(tmp_path / "train.py"))["train"]
    assert [loss.item() for loss in itertools.islice(program(CPU), 2)] == expected


@pytest.mark.usefixtures("settings_kept")
@pytest.mark.parametrize("option", ["padded", "stores_scores"])
def test_an_option_of_the_gpt_is_in_its_script_and_else_no_line_of_it(option, tmp_path):
    plain, chosen = (OPTIONS["tiny_gpt"] | {option: value} for value in (False, True))
    lines = {"padded": "padded_lines(", "stores_scores": "WrittenOut("}
    assert lines[option] not in export.script(Recipe(), "tiny_gpt", plain)
    recipe = Recipe(batch_size=4)
    text = export.script(recipe, "tiny_gpt", chosen, seed=5)
    assert lines[option] in text
    (tmp_path / "train.py").write_text(text)
    program = runpy.run_path(str(tmp_path / "train.py"))["train"]
    expected = train(recipe, workloads.load("tiny_gpt", chosen), CPU, seed=5)
    assert next(program(CPU)).item() == next(expected).item()


def test_what_a_script_has_otherwise_is_named_as_train_has_it():
    source = ast.unparse(ast.parse(Path(inspect.getfile(train)).read_text()))
    for absent, expressions in lookup.toml("perfkit", "export")["without"].items():
        assert expressions and all(f"{absent}." in expression for expression in expressions)
        assert all(expression in source for expression in expressions)


@pytest.mark.parametrize("workload", OPTIONS)
@pytest.mark.parametrize("amp", ["off", "bf16", "fp16"])
def test_a_script_names_no_program_and_a_scaler_only_for_fp16(amp, workload):
    recipe = Recipe(amp=amp, device_prefetch=True, pin_memory=True)
    text = export.script(recipe, workload, OPTIONS[workload], "cuda", set_up=False)
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert "program" not in names and ("scaler" in names) is (amp == "fp16")


def test_a_quote_in_an_option_stays_in_its_string():
    text = export.script(Recipe(), "tiny_gpt", {"text": """a "b" isn't.txt"""}, set_up=False)
    compile(text, "train.py", "exec")
    assert repr("""a "b" isn't.txt""") in text


def test_a_script_whose_batch_is_larger_than_its_data_set_ends_with_both_sizes(tmp_path):
    text = export.script(Recipe(batch_size=64), "cifar_resnet18", {"image_size": 32, "samples": 8})
    (tmp_path / "train.py").write_text(text)
    program = runpy.run_path(str(tmp_path / "train.py"))["train"]
    with pytest.raises(AssertionError, match="8 samples do not fill a batch of 64"):
        next(program(CPU))


@pytest.mark.parametrize("workload", ["photos", "tiny_gpt"])
def test_a_stage_of_the_ladder_changes_its_own_lines_only(workload):
    target = Target("cuda", offers(workloads.load(workload)), convolves=workload != "tiny_gpt")
    stages = [catalogue.Stage("baseline", "baseline", Recipe(batch_size=SIZES["batch_size"]))]
    for name in LADDER[1:]:
        stages.append(catalogue.stage(OPTIMIZATIONS[name], stages[-1].recipe, SIZES, target))
    scripts = [export.script(stage.recipe, workload, OPTIONS[workload]) for stage in stages]
    for stage, (before, after) in zip(stages[1:], itertools.pairwise(scripts), strict=True):
        lines = changed(before, after)
        added = [line for line in lines if line[0] == "+"]
        most = 12 if stage.name == "scaled_decode" else 4  # a function of its own, and what that imports
        assert not lines if stage.reason else 0 < len(added) <= most, (stage.name, lines)


def test_a_workload_of_one_s_own_is_imported_and_gets_the_recipe(tmp_path, monkeypatch):
    text = export.script(Recipe(batch_size=8), "tests.support.toy:Toy", {"delay_s": 0.0})
    assert "from tests.support.toy import Toy" in text and "workload = Toy(delay_s=0.0)" in text
    (tmp_path / "train.py").write_text(text)
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    program = runpy.run_path(str(tmp_path / "train.py"))["train"]
    expected = train(Recipe(batch_size=8), workloads.load("tests.support.toy:Toy"), CPU)
    assert next(program(CPU)).item() == next(expected).item()


@pytest.mark.parametrize(
    ("workload", "options", "words"),
    [
        ("tests.support.toy:Toy", {"a=print(), b": 1}, "'a=print.., b' is not a name"),
        ("tests.support.toy:Toy", {"class": 1}, "'class' is not a name"),
        ("string:Template; print()", {}, "'Template; print\\(\\)' is not a name"),
        ("../../etc/x:y", {}, "is not a name"),
        ("perfkit.workloads.photos:Renamed", {}, "no workload perfkit.workloads.photos:Renamed"),
        ("perfkit.workloads.renamed:Photos", {}, "no module workloads/renamed"),
    ],
)
def test_what_a_recording_names_is_never_code_in_a_script(workload, options, words):
    with pytest.raises(InvalidValue, match=words):
        export.script(Recipe(), workload, options)


@pytest.mark.parametrize(
    ("workload", "options", "words"),
    [
        ("tiny_gpt", {"context": "x"}, "'x' . 1 cannot be computed: .*Check the options"),
        ("photos", {"count": "x"}, "photo_folder.'x'. cannot be computed"),
    ],
)
def test_an_option_of_another_type_is_told_and_no_bug(workload, options, words):
    """Such as one of a recording: every report of it failed with a traceback."""
    with pytest.raises(InvalidValue, match=words):
        export.script(Recipe(), workload, options)


def test_only_known_operators_are_computed_and_a_chain_is_not():
    chosen = export._Chosen(set(), set_up=False)
    for source in ("9 ** 9 ** 9", "3 > 2 > 1", "-1"):
        assert ast.unparse(chosen.visit(ast.parse(source, mode="eval").body)) == source
    assert chosen.visit(ast.parse("not 1 + 2 == 3", mode="eval").body).value is False


def test_a_default_is_left_out_of_the_function_that_has_it_and_of_no_other():
    source = "loss = own(torch.compile(model, mode='default'), mode='default', enabled=True)"
    (tidied,) = export._Tidied().visit(ast.parse(source)).body
    assert ast.unparse(tidied) == "loss = own(torch.compile(model), mode='default', enabled=True)"


def test_a_device_that_torch_does_not_have_is_cuda_in_a_script():
    for device in ('cpu")), 1)); print()', "sim:v100", "cuda:0; print()"):
        assert 'torch.device("cuda")' in export.script(Recipe(), "photos", OPTIONS["photos"], device)
    assert 'torch.device("cuda:1")' in export.script(Recipe(), "photos", OPTIONS["photos"], "cuda:1")


@pytest.mark.parametrize("workload", ["photos", "tiny_gpt"])
def test_a_script_to_look_at_makes_nothing_and_names_no_place_of_this_machine(workload, data_dir):
    options = {**OPTIONS[workload], **({"text": "a colleague's.txt"} if workload == "tiny_gpt" else {})}
    text = export.script(Recipe(), workload, options, set_up=False)
    assert str(data_dir) not in text and str(Path.cwd()) not in text
    assert not data_dir.exists() or not [*data_dir.rglob("*.jpg")]
