r"""Fits the constants of simulated GPUs to published measurements, and states errors on what was left out.

    python -m benchmarks.fit_simulation --figures FOLDER \
        --trace FILE.json --cache FOLDER [--models 400] [--inference 150] [--write]

Three stages: (1) classes of kernels, by training on an RTX 3090 and inference on an RTX 4090, for hundreds of
models; (2) what is Volta's own, by the operators of one trace and ResNet-50; (3) factors of A100, H100 and
TF32, by ResNet-50. The ladder article takes part in none. Stage 1 is repeated without each fold of model
families, and the errors stated are those of the models left out. Needs timm; takes an hour the first time,
then five minutes.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.simulation_fit import Case, Problem, case, fit
from benchmarks.simulation_volta import of_trace
from perfkit.simulate.anchors import Anchor, Anchors, Claim, grouped, summary
from perfkit.simulate.constants import Constants
from perfkit.simulate.gpus import gpu
from perfkit.simulate.step import Step, Tensor

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "perfkit" / "simulate"
INFERENCE = {"eager": "inference, NCHW", "compiled": "inference, compiled"}
SHARED = [
    "overlap", "kernel_us", "l2_saving", "half_mn", "half_k", "wave", "host.operator_us", "host.launch_us",
    "rtx3090.tensor", "rtx4090.memory", "rtx4090.tensor", "rtx4090.float32",
]  # fmt: skip
VOLTA = [
    "volta/wave", "volta/half_mn", "volta/half_k", "volta.float32", "volta.tensor", "v100.memory",
    "winograd_fused", "winograd_unfused", "volta/batch_norm.forward.nchw.memory",
    "volta/batch_norm.backward.nchw.memory", "volta/convert.conv.memory", "volta/convert.conv1x1.memory",
    "volta/pool.backward.nchw.memory",
    *(f"volta/{kind}.{part}.nchw.fp32.compute" for kind in ("conv", "conv1x1")
      for part in ("forward", "dgrad", "wgrad")),
]  # fmt: skip
FACTORS = {
    "a100": [
        "a100.tensor", "a100.tf32", "a100.memory", "convert.conv.tf32.memory", "convert.conv1x1.tf32.memory",
    ],
    "h100": ["h100.tensor", "h100.tf32", "h100.memory"],
    "rtx3090": ["rtx3090.tf32"],
    "rtx4090": ["rtx4090.tf32"],
}  # fmt: skip


class Published(NamedTuple):
    """ResNet-50 training, whole steps on one GPU, data not the limit."""

    gpu: str
    precision: str
    layout: str
    batch_size: int
    rate: float
    source: str


SOURCES = {
    "timm": "pytorch-image-models aa4b5850, results/, half of its models (by a hash of the name)",
    "nvidia": "NVIDIA DeepLearningExamples, PyTorch ResNet-50 v1.5: training performance, 1 GPU",
    "lambda": "lambdal/deeplearning-benchmark 0551cb70, PyTorch 22.10: ResNet-50, synthetic data; batch size "
    "by its configuration for the GPU's memory",
    "lambda-2": "lambdal/deeplearning-benchmark 0551cb70, newer software (1CC H100 SXM5): ResNet-50",
    "u39kun": "u39kun/deep-learning-benchmark 02ef7437: PyTorch 0.3 (2018) on the V100 of an Amazon "
    "p3, batch 16, without an optimizer",
    "hta": "HolisticTraceAnalysis, traces of ResNet-50 (kernels less communication; batch size inferred)",
}
ORIGINS = {
    "": "fitted to training on an RTX 3090 (AMP, both layouts): " + SOURCES["timm"],
    "ada/": "fitted to inference on an RTX 4090 (AMP, eager and torch.compile): " + SOURCES["timm"],
    "rtx4090.": "fitted with ada/; tf32: " + SOURCES["lambda"],
    "rtx3090.": "fitted with the first; tf32: " + SOURCES["lambda"],
    "volta": "fitted to the operators of a trace of ResNet-50 on a V100 (pytorch/kineto samples) and to "
    "ResNet-50 training; never to the ladder article",
    "v100.": "fitted with volta",
    "winograd": "fitted with volta",
    "a100": "fitted to ResNet-50 training: "
    + SOURCES["nvidia"]
    + "; "
    + SOURCES["lambda"]
    + "; "
    + SOURCES["hta"],
    "h100.": "fitted to ResNet-50 training: " + SOURCES["lambda"],
    "convert.conv.tf32": "fitted with a100",
    "convert.conv1x1.tf32": "fitted with a100",
    "host.": "fitted with the first; badly determined: few of those steps wait for their host",
    "other.": "round numbers: classes of kernels about which no figure says anything",
}
RESNET50 = [
    Published("v100", "float32", "nchw", 32, 32 / 0.09363, "hta"),
    Published("v100", "float32", "nchw", 128, 367, "nvidia"),
    Published("v100", "float16", "nhwc", 256, 1200, "nvidia"),
    Published("v100", "float32", "nchw", 128, 369, "lambda"),
    Published("v100", "float16", "nchw", 256, 833, "lambda"),
    Published("a100-40", "tf32", "nchw", 32, 32 / 0.0387, "hta"),
    Published("a100", "tf32", "nchw", 256, 938, "nvidia"),
    Published("a100", "float16", "nhwc", 256, 2470, "nvidia"),
    Published("a100", "tf32", "nchw", 640, 1066, "lambda"),
    Published("a100", "float16", "nchw", 1280, 1582, "lambda"),
    Published("h100", "tf32", "nchw", 640, 1753, "lambda"),
    Published("h100", "float16", "nchw", 1280, 2616, "lambda"),
    Published("h100", "tf32", "nchw", 640, 1898, "lambda-2"),
    Published("h100", "float16", "nchw", 1280, 2791, "lambda-2"),
    Published("rtx3090", "tf32", "nchw", 224, 513, "lambda"),
    Published("rtx3090", "float16", "nchw", 448, 905, "lambda"),
    Published("rtx4090", "tf32", "nchw", 224, 721, "lambda"),
    Published("rtx4090", "float16", "nchw", 448, 1301, "lambda"),
]
NEVER_FITTED = {"vgg16": (26.2, 83.5), "resnet152": (38.7, 136.5), "densenet161": (48.3, 142.5)}
"""Other models on a V100, fp32: milliseconds of a forward pass, and of forward and backward, at batch 16."""


def resnet50_cases() -> list[tuple[Published, Case]]:
    """Planned by the simulator itself."""
    import torchvision

    from perfkit.simulate import operators

    steps: dict[tuple[Any, ...], Step] = {}
    found = []
    for one in RESNET50:
        amp = "fp16" if one.precision == "float16" else "off"
        key = one.batch_size, amp, one.layout
        if key not in steps:
            image = Tensor((one.batch_size, 3, 224, 224), "float32")
            steps[key] = operators.of_model(
                torchvision.models.resnet50, [image], amp=amp, channels_last=one.layout == "nhwc"
            )
        precision = "tf32" if one.precision == "tf32" else "ieee"
        step = msgspec.structs.replace(steps[key], fp32_precision=precision, matmul_precision=precision)
        name = f"{one.source} {one.precision} {one.layout} {one.batch_size}"
        seconds, whole = one.batch_size / one.rate, one.source != "hta"
        found.append(
            (
                one,
                case(
                    step,
                    name,
                    "resnet50",
                    one.gpu,
                    f"training, {one.layout.upper()}",
                    seconds,
                    3.0,
                    whole,
                    one.precision,
                ),
            )
        )
    return found


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as lines:
        yield from csv.DictReader(lines)


def timm_cases(figures: Path, cache: Path, models: int | None, inference: int) -> list[Case]:
    """The first models in the order of a hash; those that today's timm builds otherwise are left out."""
    from benchmarks import simulation_operators as recorded

    found: list[Case] = []
    training = {
        k: {r["model"]: r for r in _rows(figures / f"rtx3090-train-amp-{k}.csv")} for k in ("nchw", "nhwc")
    }
    for model in sorted(set(training["nchw"]) & set(training["nhwc"]), key=_order)[:models]:
        for layout, rows in training.items():
            row = rows[model]
            batch, image = int(row["train_batch_size"]), int(row["train_img_size"])
            calls = recorded.attempt(model, batch, image, layout == "nhwc", True, cache)
            if calls and recorded.has_parameters(calls, 1e6 * float(row["param_count"])):
                seconds, step = batch / float(row["train_samples_per_sec"]), recorded.step_of(calls, batch)
                found.append(
                    case(
                        step, model, recorded.family(model), "rtx3090", f"training, {layout.upper()}", seconds
                    )
                )
    rows_of = {
        kind: {(r["model"], r["infer_img_size"]): r for r in _rows(figures / f"rtx4090-infer-amp-{kind}.csv")}
        for kind in ("eager", "compiled")
    }
    both = set(rows_of["eager"]) & set(rows_of["compiled"])
    for model, image_size in sorted(both, key=_order)[:inference]:
        row = rows_of["eager"][model, image_size]
        batch = int(row["infer_batch_size"])
        calls = recorded.attempt(model, batch, int(image_size), False, False, cache)
        if not calls or not recorded.has_macs(calls, batch, 1e9 * float(row["infer_gmacs"] or 0)):
            continue
        for kind, step in (
            ("eager", recorded.step_of(calls, batch)),
            ("compiled", recorded.fused(calls, batch)),
        ):
            seconds = batch / float(rows_of[kind][model, image_size]["infer_samples_per_sec"])
            name = f"{model} {image_size}"
            found.append(case(step, name, recorded.family(model), "rtx4090", INFERENCE[kind], seconds))
    return found


def _order(key: Any) -> str:
    return hashlib.sha256(("order" + (key if isinstance(key, str) else key[0])).encode()).hexdigest()


def folds_of(cases: Sequence[Case], count: int) -> dict[str, int]:
    """Families, spread over folds of about the same number of cases."""
    sizes: dict[str, int] = {}
    for one in cases:
        sizes[one.family] = sizes.get(one.family, 0) + 1
    loads, fold = [0] * count, {}
    for family in sorted(sizes, key=lambda name: (-sizes[name], name)):
        fold[family] = int(np.argmin(loads))
        loads[fold[family]] += sizes[family]
    return fold


def classes(problems: Sequence[Problem], first: Constants, **options: Any) -> Constants:
    """Stage 1: classes of kernels; those of inference on Ada are its own, since its libraries are newer."""
    train, infer = problems
    names = dict.fromkeys([*SHARED, *train.constants_of(), *infer.constants_of("ada")])
    return fit(problems, first, list(names), **{"ridge": 0.08, "rounds": 14, **options})


def machines(first: Constants, anchors: Sequence[tuple[Published, Case]], trace: Path) -> Constants:
    """Stages 2 and 3: Volta, then the factors of the others."""
    by_gpu: dict[str, list[Case]] = {}
    for published, one in anchors:
        by_gpu.setdefault(published.gpu, []).append(one)
    volta = Problem(by_gpu["v100"] + of_trace(trace), gpu("v100"))
    now = fit([volta], first, VOLTA, ridge=0.1, rounds=40)
    for key, names in FACTORS.items():
        now = fit([Problem(by_gpu[key], gpu(key))], now, names, ridge=0.15, rounds=40)
    shared = {f"a100-40.{name}": now.values[f"a100.{name}"] for name in ("tensor", "tf32", "memory")}
    return Constants(now.version, {**now.values, **shared}, now.sources)


def held_out(problems: Sequence[Problem], first: Constants, all_in: Constants, count: int) -> list[Anchor]:
    """Each case as constants predict it that were fitted without its family."""
    fold = folds_of([one for problem in problems for one in problem.cases], count)
    seconds = [np.zeros(len(problem.cases)) for problem in problems]
    for left_out in range(count):
        now = classes(
            problems, first, rounds=7, begin=all_in, keep=lambda one, out=left_out: fold[one.family] != out
        )
        for problem, found in zip(problems, seconds, strict=True):
            mask = np.array([fold[one.family] == left_out for one in problem.cases])
            found[mask] = problem.predicted(now)[mask]
    cases = [one for problem in problems for one in problem.cases]
    return of_cases(cases, [float(value) for value in np.concatenate(seconds)])


def of_cases(cases: Sequence[Case], seconds: Sequence[float]) -> list[Anchor]:
    """Anchors of rates, and of the gain of channels_last or torch.compile where both sides are there."""
    found = []
    by_name: dict[tuple[str, str], list[tuple[Case, float]]] = {}
    for one, predicted in zip(cases, seconds, strict=True):
        rates = one.batch_size / one.measured_s, one.batch_size / predicted
        found.append(_anchor("rate", one, *rates, "held out", SOURCES["timm"]))
        by_name.setdefault((one.gpu, one.name), []).append((one, predicted))
    for pair in by_name.values():
        if len(pair) == 2:
            (plain, before), (better, after) = sorted(pair, key=lambda p: GAINS.index(p[0].configuration))
            claim: Claim = "compile" if "inference" in plain.configuration else "channels_last"
            published = better.batch_size / better.measured_s / (plain.batch_size / plain.measured_s)
            predicted = better.batch_size / after / (plain.batch_size / before)
            found.append(_anchor(claim, better, published, predicted, "held out", SOURCES["timm"]))
    return found


GAINS = ["training, NCHW", "training, NHWC", "inference, NCHW", "inference, compiled"]
"""Configurations; of two neighbours, the gain of the second is stated."""


def _anchor(claim: Claim, one: Case, published: float, predicted: float, use: Any, source: str) -> Anchor:
    return Anchor(
        gpu=one.gpu, precision=one.precision, claim=claim, model=one.name.removesuffix(" 224"),
        family=one.family, what=f"{one.configuration}, batch {one.batch_size}", use=use, source=source,
        published=float(f"{published:.5g}"), predicted=float(f"{predicted:.5g}"),
    )  # fmt: skip


def in_sample(anchors: Sequence[tuple[Published, Case]], now: Constants) -> list[Anchor]:
    """ResNet-50, which took part in the fit, and its gains by AMP."""
    found, rates = [], {}
    for published, one in anchors:
        [seconds] = Problem([one], gpu(one.gpu)).predicted(now)
        rate = one.batch_size / float(seconds)
        source, named = SOURCES[published.source], one._replace(name="resnet50")
        found.append(_anchor("rate", named, published.rate, rate, "fitted", source))
        key = published.gpu, published.source, published.precision == "float16"
        if published.layout == "nchw" and published.batch_size > 32:
            rates[key] = published.rate, rate
        if (plain := rates.get((*key[:2], False))) and key in rates and key[2]:
            gain = published.rate / plain[0], rate / plain[1]
            found.append(_anchor("amp", named, *gain, "fitted", source))
    return found


def never_fitted(now: Constants) -> list[Anchor]:
    """Other models on a V100 than ResNet-50, to which Volta is fitted: errors that cancel there show here."""
    import torchvision

    from perfkit.simulate import operators

    found = []
    for name, published in NEVER_FITTED.items():
        for train, milliseconds in zip((False, True), published, strict=True):
            image = Tensor((16, 3, 224, 224), "float32")
            step = operators.of_model(getattr(torchvision.models, name), [image], train=train)
            kept = [one for one in step.events if getattr(one, "phase", "") != "optimizer"]
            step = msgspec.structs.replace(step, events=kept, fp32_precision="ieee", matmul_precision="ieee")
            what = f"{'training' if train else 'inference'}, NCHW"
            one = case(step, name, name, "v100", what, milliseconds / 1e3, precision="float32")
            [seconds] = Problem([one], gpu("v100")).predicted(now)
            rates = 16 / one.measured_s, 16 / float(seconds)
            found.append(_anchor("rate", one, *rates, "never fitted", SOURCES["u39kun"]))
    return found


def write(now: Constants, found: list[Anchor]) -> None:
    """Both files of the package; the errors carry the digest of the constants."""
    rounded = {name: float(f"{value:.4g}") for name, value in sorted(now.values.items())}
    kept = Constants(now.version, rounded, ORIGINS)
    (PACKAGE / "constants.json").write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
    lines = b",\n".join(msgspec.json.encode(one) for one in found)
    head = msgspec.json.encode(Anchors(kept.digest, []))
    (PACKAGE / "anchors.json").write_bytes(head.removesuffix(b"[]}") + b"[\n" + lines + b"\n]}\n")


def report(found: Sequence[Anchor]) -> Iterator[str]:
    """Errors by GPU and claim."""
    for key, some in grouped(
        found, lambda a: (a.gpu, a.claim, a.what.partition(", batch")[0], a.use)
    ).items():
        errors = summary(some)
        yield (
            f"{' '.join(key):50} {errors.count:4}  median {errors.median:6.1%}  90% {errors.p90:6.1%}  "
            f"worst {errors.worst.model} {errors.worst.error:+.0%}"
        )


def main() -> None:
    """Fits, states the errors, and with `--write` replaces the package's files."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("figures", "trace", "cache"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--models", type=int, help="of training (default: all)")
    parser.add_argument("--inference", type=int, default=150, help="models of inference (default: 150)")
    parser.add_argument("--folds", type=int, default=6)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    first = msgspec.json.decode((HERE / "simulation_first.json").read_bytes(), type=Constants)
    cases = timm_cases(given.figures, given.cache, given.models, given.inference)
    problems = [Problem([c for c in cases if c.gpu == key], gpu(key)) for key in ("rtx3090", "rtx4090")]
    resnets = resnet50_cases()
    all_in = classes(problems, first)
    now = machines(all_in, resnets, given.trace)
    anchors = held_out(problems, first, all_in, given.folds)
    anchors += in_sample(resnets, now) + never_fitted(now)
    print("\n".join(report(anchors)))
    if given.write:
        write(now, anchors)


if __name__ == "__main__":
    main()
