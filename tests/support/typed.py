"""What a type checker says of the public names: `make types` reads this file, and nothing runs it."""

from collections.abc import Sequence
from typing import assert_type

import perfkit
from perfkit import notebook as pk
from perfkit.additions.scripts.study import ScriptSession, ScriptStarter, script_plan
from perfkit.additions.scripts.watched import Launch
from perfkit.results.stats import Estimate
from perfkit.studies.sources import Session


def _typed() -> None:
    plan = perfkit.plan("photos")
    assert_type(plan, perfkit.Plan)
    assert_type(perfkit.compare("baseline", "workers=2", plan).ratio.low, float)
    assert_type(perfkit.climb(plan)[0].samples_per_s, Estimate | None)
    assert_type(pk.StagePanel("amp").runs, Sequence[perfkit.Run])
    pk.Workbench("photos", device="cpu", settings={"workers": 1})
    pk.LadderPanel(prset="quick")  # type: ignore[call-arg]
    pk.RecipePanel({}, prset="quick")  # type: ignore[call-arg]
    pk.StagePanel("amp", prset="quick")  # type: ignore[call-arg]
    assert_type(pk.recording("cpu-quick").found, list[perfkit.Run])
    perfkit.profile(recipe="amp", seed=1, device="cpu")
    perfkit.profile(prset="quick")  # type: ignore[call-arg]
    pk.profile(prset="quick")  # type: ignore[call-arg]
    pk.memory({"AMP": {"amp": "bf16"}}, prset="quick")  # type: ignore[call-arg]
    pk.kernels(prset="quick")  # type: ignore[call-arg]
    pk.lanes("sim-v100-pinning", prset="quick")  # type: ignore[call-arg]
    pk.tune(prset="quick")  # type: ignore[call-arg]
    plan.trying(bellow=True)  # type: ignore[call-arg]
    plan.trying(below="amp")  # type: ignore[arg-type]
    with plan.open() as session:
        assert_type(session, Session)
    with script_plan(ScriptStarter(Launch("train.py"))).open() as started:
        assert_type(started, ScriptSession)
