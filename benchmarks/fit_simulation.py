r"""Fits the constants of simulated GPUs to published measurements, and states errors on what was left out.

    python -m benchmarks.fit_simulation --figures FOLDER --cache FOLDER [--write]

FOLDER holds four tables of pytorch-image-models (github.com/huggingface/pytorch-image-models, revision
aa4b5850, results/), named in `FILES` with their checksums. The constants of Ada are fitted here, by inference
on an RTX 4090; those of the RTX 3090 and the V100 are kept, and checked. Errors of timm's models are those of
families that were left out of a fit; the ladder article takes part in none. Needs timm. One core takes 13
minutes for all, half of them to record the models the first time; the work is shared between cores.
"""

import argparse
import csv
import hashlib
import math
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torchvision
from msgspec import structs

import perfkit
from benchmarks import simulation_operators as operators
from benchmarks.simulation_fit import Case, Problem, case, fit, inherited
from perfkit.additions.simulate import article
from perfkit.additions.simulate.costs import Constants, Errors, ErrorTable, Gpu, constants, gpu
from perfkit.additions.simulate.fusion import fused
from perfkit.additions.simulate.step import StepEvents

MODELS = 150
"""Of each table."""
PACKAGE = Path(article.__file__).parent
FILES = {
    "rtx3090-train-amp-nchw.csv": "d7a3ee50db9dc64364c0accfe5093ea5ac1783920994d8e3a0dc8a935ae86841",
    "rtx3090-train-amp-nhwc.csv": "27fd15753cc52c75667c92a8f02239483b65ba5b8d43f53874356d11419a3ee2",
    "rtx4090-infer-amp-eager.csv": "1f7178fec5eab46424a187aea47e4fbc543a256c40dea8f3cd5724c4158f1764",
    "rtx4090-infer-amp-compiled.csv": "fc55877d985edc615b2d525d3c1badc23fd505a6b3d67714e2c8ee10338711b2",
}
"""SHA-256 of the rows of half of the models, chosen by a hash of the name; other rows give other errors."""
ADA = ["ada/l2_reach", "rtx4090.tensor", "rtx4090.float32", "ada/half_mn", "ada/half_k", "ada/wave"]
"""What is fitted beside the classes of kernels."""


RESNET50 = [
    ("v100", "float32", False, 128, 367), ("v100", "float16", True, 256, 1200),
    ("v100", "float32", False, 128, 369), ("v100", "float16", False, 256, 833),
    ("rtx3090", "tf32", False, 224, 513), ("rtx3090", "float16", False, 448, 905),
    ("rtx4090", "tf32", False, 224, 721), ("rtx4090", "float16", False, 448, 1301),
]  # fmt: skip
"""Training, whole steps on one GPU: card, precision, whether channels_last, batch size, images/s.

The first two: NVIDIA DeepLearningExamples; the others: lambdal/deeplearning-benchmark 0551cb70."""
NEVER_FITTED = {"vgg16": (26.2, 83.5), "resnet152": (38.7, 136.5), "densenet161": (48.3, 142.5)}
"""V100, fp32, batch 16, PyTorch 0.3 of 2018 (u39kun/deep-learning-benchmark 02ef7437): milliseconds of a
forward pass, and of forward and backward."""


# ---------------------------------------------------------------- published figures


def rows(figures: Path, name: str, keys: Sequence[str]) -> dict[tuple[str, ...], dict[str, str]]:
    """A published table by some of its columns."""
    path = figures / name
    if hashlib.sha256(path.read_bytes()).hexdigest() != FILES[name]:
        print(f"{path}: other rows than those of the constants in use", file=sys.stderr)
    with path.open(newline="") as lines:
        return {tuple(row[key] for key in keys): row for row in csv.DictReader(lines)}


def cases(figures: Path, cache: Path, train: bool) -> Iterator[Case]:
    """Training on the RTX 3090 in both layouts, or inference on the RTX 4090, eager and compiled.

    Models that today's timm builds otherwise are left out; of the others, the first in the order of a hash.
    """
    use, conditions = ("train", ("nchw", "nhwc")) if train else ("infer", ("eager", "compiled"))
    card, keys = ("rtx3090", ["model"]) if train else ("rtx4090", ["model", "infer_img_size"])
    tables = {name: rows(figures, f"{card}-{use}-amp-{name}.csv", keys) for name in conditions}
    common = set.intersection(*map(set, tables.values()))
    ordered = sorted(common, key=lambda key: hashlib.sha256(f"order{key[0]}".encode()).hexdigest())
    of_each = [{name: table[key] for name, table in tables.items()} for key in ordered[:MODELS]]
    with multiprocessing.Pool(maxtasksperchild=20) as pool:
        for found in pool.imap(partial(of_model, use, cache), of_each):
            yield from found


def of_model(use: str, cache: Path, published: dict[str, dict[str, str]]) -> list[Case]:
    """A model's cases under the conditions that its figures were published for."""
    found = []
    for condition, figures in published.items():
        row = figures if use == "train" else published["eager"]
        name, batch, image = row["model"], int(row[f"{use}_batch_size"]), int(row[f"{use}_img_size"])
        step = operators.step_of(name, batch, image, condition == "nhwc", use == "train", cache)
        if step and operators.is_the_model_of(step, row):
            seconds = batch / float(figures[f"{use}_samples_per_sec"])
            planned = fused(step) if condition == "compiled" else step
            about = name if use == "train" else f"{name} {image}"
            found.append(case(planned, about, operators.family(name), condition, seconds))
    return found


# ---------------------------------------------------------------- errors: log(published / predicted)


def held_out(problem: Problem, now: Constants, names: Sequence[str], folds: int = 5) -> np.ndarray:
    """Each case by constants that were fitted without its family."""
    families = {name: at % folds for at, name in enumerate(sorted({c.family for c in problem.cases}))}
    fold = np.array([families[c.family] for c in problem.cases])
    with multiprocessing.Pool() as pool:
        kept = pool.starmap(fit, [(problem, now, names, 5, fold != out) for out in range(folds)])
    predicted = np.choose(fold, [problem.predicted(each) for each in kept])
    return np.asarray(np.log(predicted / problem.measured))


def of_table(problem: Problem, errors: Any, gain: str, train: str) -> Iterator[Errors]:
    """Rates by condition, and the gain between the two conditions."""
    names = np.array([c.name for c in problem.cases])
    conditions = np.array([c.conditions for c in problem.cases])
    for condition in dict.fromkeys(conditions.tolist()):
        some = conditions == condition
        claim = "compiled" if condition == "compiled" else "rate"
        about = problem.gpu.key, claim, f"{train}, {condition}", "held out"
        yield summary(*about, errors[some], names[some])
    before, after = problem.pairs.T
    about = problem.gpu.key, gain, f"{train}, float16", "held out"
    yield summary(*about, errors[after] - errors[before], names[after])


def without_own(now: Constants, gpu: Gpu) -> Constants:
    """The constants of other GPUs: as if no figure of this one or its architecture were known."""
    own = (f"{gpu.key}.", f"{gpu.architecture}/", f"{gpu.architecture}.")
    values = {name: value for name, value in now.values.items() if not name.startswith(own)}
    return Constants(now.version, values, now.sources)


def summary(
    key: str,
    claim: str,
    conditions: str,
    use: str,
    errors: Sequence[float] | np.ndarray,
    names: Sequence[str],
) -> Errors:
    """Errors of some figures. Of fewer than twenty, the largest is the band."""
    sizes = np.abs(errors)
    limit = float(np.quantile(sizes, 0.9) if len(sizes) >= 20 else sizes.max())
    relative = np.expm1(errors)
    median, p90 = np.quantile(np.abs(relative), [0.5, 0.9])
    inside, worst = np.mean(sizes <= limit + 1e-9), int(np.argmax(sizes))
    shares = {"median": median, "p90": p90, "band": math.expm1(limit), "inside": inside}
    rounded = {name: round(float(share), 4) for name, share in shares.items()}
    largest = f"{names[worst]} {relative[worst]:+.0%}"
    return Errors(
        gpu=key, claim=claim, conditions=conditions, figures=len(sizes), use=use, worst=largest, **rounded
    )


def error(step: StepEvents, key: str, published_s: float, now: Constants) -> float:
    """log(published / predicted) of one step."""
    [seconds] = Problem([case(step, "", "", "", published_s)], gpu(key)).predicted(now)
    return math.log(published_s / float(seconds))


def resnet50(now: Constants) -> Iterator[Errors]:
    """ResNet-50, which took part in the fit of the V100 alone."""
    errors: dict[str, list[float]] = {}
    for key, precision, channels_last, batch, rate in RESNET50:
        model, shape = torchvision.models.resnet50(), (batch, 3, 224, 224)
        step = operators.recorded(model, shape, channels_last, {"momentum": 0.9}, amp=precision == "float16")
        step = structs.replace(step, conv_precision=precision, matmul_precision=precision)
        errors.setdefault(key, []).append(error(step, key, batch / rate, now))
    for key, some in errors.items():
        use = "fitted" if key == "v100" else "never fitted"
        yield summary(key, "rate", "training of ResNet-50", use, some, ["resnet50"] * len(some))


def old_models(now: Constants) -> Iterator[Errors]:
    """Three other models on a V100, in inference and in training without an optimizer."""
    for at, kind in enumerate(("inference", "training")):
        errors = []
        for name, milliseconds in NEVER_FITTED.items():
            model, update = getattr(torchvision.models, name)(), {"momentum": 0.9} if at else None
            step = operators.recorded(model, (16, 3, 224, 224), False, update, amp=False)
            events = [e for e in step.events if getattr(e, "phase", "") != "optimizer"]
            step = structs.replace(step, events=events)
            errors.append(error(step, "v100", 1e-3 * milliseconds[at], now))
        yield summary("v100", "rate", f"{kind}, fp32, PyTorch 0.3", "never fitted", errors, [*NEVER_FITTED])


def of_article() -> Iterator[Errors]:
    """The article's stages that the GPU decides; by kernel time, so that the host is left out."""
    errors = {}
    for run in perfkit.climb(perfkit.plan(device="sim:v100", host="article")):
        published = next(each for each in article.ARTICLE.stages if each.stage == run.stage)
        rate = run.samples_per_s
        assert run.utilization, run.reason
        assert rate
        errors[run.stage] = math.log(rate.value / published.samples_per_s) / run.utilization
        print(f"article {run.stage:13} {rate.value:6.0f} published {published.samples_per_s:6.0f}")
    about, decided = ("training, the ladder article", "never fitted"), [*errors][2:]
    yield summary("v100", "rate", *about, [errors[name] for name in decided], decided)
    for before, after in (("uint8_copy", "amp"), ("amp", "compile")):
        yield summary("v100", after, *about, [errors[after] - errors[before]], [after])


# ---------------------------------------------------------------- the command


def main() -> None:
    """Fits, states the errors, and with `--write` replaces the package's files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    training = Problem([*cases(options.figures, options.cache, train=True)], gpu("rtx3090"))
    inference = Problem([*cases(options.figures, options.cache, train=False)], gpu("rtx4090"))
    ada = list(dict.fromkeys([*ADA, *inference.constants_of("ada")]))
    sheet_alone = without_own(constants(), inference.gpu)
    first = partial(inherited, sheet_alone, gpu=inference.gpu)
    now = fit(inference, sheet_alone, ada)
    values = {name: float(f"{value:.4g}") for name, value in sorted(now.values.items())}
    for name in ada:
        if math.isclose(values[name], first(name), rel_tol=0.01):
            del values[name]  # the data sheet alone gives it
    now = Constants(now.version, values, now.sources)
    print(f"at a bound: {', '.join(name for name in ada if values.get(name) in (1.0, 1.5))}")
    held = held_out(training, now, training.constants_of())
    errors = [*of_table(training, held, "channels_last", "training")]
    errors += of_table(inference, held_out(inference, sheet_alone, ada), "compile", "inference")
    errors += [*resnet50(now), *old_models(now), *of_article()]
    alone = np.log(inference.predicted(sheet_alone) / inference.measured)
    for line in [*errors, *of_table(inference, alone, "compile", "data sheet alone")]:
        about = f"{line.gpu:8} {line.claim:13} {line.conditions:32} {line.use:12} {line.figures:4}"
        print(f"{about} median {line.median:6.1%}  90% {line.p90:6.1%}  band {line.band:.1%}")
    if options.write:
        for name, content in (("constants.json", now), ("errors.json", ErrorTable(now.digest, errors))):
            text = msgspec.json.format(msgspec.json.encode(content), indent=1)
            (PACKAGE / name).write_bytes(text + b"\n")


if __name__ == "__main__":
    main()
