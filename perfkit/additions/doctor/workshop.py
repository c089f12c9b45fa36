"""Checks in half a minute whether this machine is ready for a workshop, with a line per check."""

import platform
import time

from perfkit.additions.doctor import checkup
from perfkit.additions.doctor.checkup import HealthCheck
from perfkit.ladder.catalogue import StopRule
from perfkit.machine import cores
from perfkit.show import sentences
from perfkit.studies import planning, staging
from perfkit.studies.climb import climb
from perfkit.studies.sources import Plan, Progress

CHAPTERS = {
    "data_loading": "02", "pinning": "03", "batch_size": "04", "uint8_copy": "05", "scaled_decode": "05",
    "channels_last": "06", "amp": "06", "amp_fewer_threads": "06", "compile": "07",
}  # fmt: skip
"""The chapter that measures each stage."""
PANELS, SIDES = 1, 2  # of chapter 02: how many panels measure, and how many recipes they have


def checks(plan: Plan, progress: Progress) -> list[HealthCheck]:
    """Everything that determines how a workshop will go on this machine, including a short training."""
    python = HealthCheck("Python", platform.python_version())
    found = [python, *checkup.checkup(), other_programs(seconds=3.0)]
    if any(check.status == "red" for check in found):
        return found  # nothing can be trained
    started = time.monotonic()
    trial = planning.plan(stages=["data_loading"], preset="smoke", device=plan.subject.device)
    climb(trial, progress=progress)
    return [*found, absent(plan), chapter_02(time.monotonic() - started, plan.rule)]


def other_programs(seconds: float) -> HealthCheck:
    """The share of the cores that other programs take during the next `seconds`."""
    before = cores.cpu_times()
    programs = cores.OtherPrograms()
    time.sleep(seconds)
    share = cores.taken_share(before, cores.cpu_times())
    detail = f"{share:.0%} of the cores now"
    if share < 0.1:
        return HealthCheck("other programs", detail)
    detail += f" ({sentences.busiest(*programs.busiest(), share)})"
    return HealthCheck("other programs", detail, "Close them: the rounds that they disturb do not count")


def absent(plan: Plan) -> HealthCheck:
    """The chapters whose stage cannot act on this machine. They show a recording or a simulation instead."""
    ladder = planning.plan(stages=[*CHAPTERS], preset=plan.subject.size.name, device=plan.subject.device)
    stages = [stage for stage in staging.all_stages(ladder.source()) if stage.reason]
    told = [f"{CHAPTERS[stage.name]} ({stage.name}): {stage.reason}" for stage in stages]
    return HealthCheck("chapters with n/a", "; ".join(told) or "none")


def chapter_02(trial_s: float, rule: StopRule) -> HealthCheck:
    """How long measuring chapter 02 takes, judging by a trial: most of its seconds are the start-up."""
    least_s = PANELS * trial_s + SIDES * (rule.warmup_s + rule.rounds * rule.slice.seconds)
    stage_s = rule.budget.stage_s if rule.budget else 0.0
    most_s = max(least_s, PANELS * (SIDES - 1) * stage_s)  # the first recipe is compared with nothing
    minutes = f"{least_s / 60:.1f} to {most_s / 60:.1f} min"
    detail = f"{minutes} of measuring, judging by a trial that took {trial_s:.0f} s"
    remedy = "Close other programs, or share a host among fewer people" if trial_s > 60 else ""
    return HealthCheck("chapter 02", detail, remedy)
