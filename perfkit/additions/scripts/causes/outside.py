"""Causes outside of the steps: evaluations, starts of epochs, checkpoints."""

from msgspec import structs

from perfkit.additions.advice.finding import Causes, Found
from perfkit.additions.scripts import messages
from perfkit.additions.scripts.messages import BETWEEN, CHECKPOINTS, EPOCHS, EVALUATION, LEAST, Symptoms

_CAUSES = Causes(__name__)
LIMIT = _CAUSES.limits


def _evaluation(seen: Symptoms) -> Found:
    run = seen.run
    share = run.running(EVALUATION)
    with_gradients = seen.site("evaluation with gradients")
    if share >= LEAST:
        where = seen.site("evaluation") or with_gradients or seen.site("eval mode")
        cause = "evaluation" if run.evaluations <= run.steps / 2 else "frozen_model"
        place, most = _most(seen, EVALUATION)
        yield _CAUSES.found(cause, place or where, share, seen=seen, most=most)
    if with_gradients:
        grew = run.evaluation_bytes if run.evaluation_bytes > messages.MUCH_MEMORY else None
        yield _CAUSES.found("evaluation_with_gradients", with_gradients, grew=grew)


def _starts_of_epochs(seen: Symptoms) -> Found:
    data, epochs = seen.evidence.data, len(seen.run.epochs)
    share = seen.run.running(EPOCHS)
    if epochs > 1 and share >= LEAST:
        cause = "workers_restart" if data and data.workers and not data.keeps_workers else "epochs_start"
        if epochs >= 0.9 * seen.run.steps and not (data and data.batches == 1):
            cause = "epoch_in_each_step"
        place, most = _most(seen, "start")
        of_any_batch = {line.where for line, _ in seen.loading_lines() if line.part != "sampler"}
        if cause == "epochs_start" and place in of_any_batch:
            return  # the first batch is loaded as each is; few were observed
        where = place if place and cause != "workers_restart" else seen.site("loader")
        yield _CAUSES.found(cause, where, share, seen=seen, most=most)


def _most(seen: Symptoms, part: str) -> tuple[str, str]:
    """The line with most of a part of the run, and its text; of a loop, a function of a library in it."""
    line = next((line for line, _ in seen.lines(part)), None)
    if line is None or line.calls_layer or line.seconds < LIMIT.most * seen.evidence.parts[part]:
        return "", ""
    if line.text.startswith("for ") and line.calls:
        return "", line.calls[0]
    return line.where, f"`{line.text}`"


def _checkpoints(seen: Symptoms) -> Found:
    # Other programs make steps long, but not those of the looks with one thread.
    parts = seen.evidence.parts
    looked_at = parts.get("checkpoint", 0.0) / (sum(parts.values()) or 1.0)
    share = seen.run.running(CHECKPOINTS) or looked_at
    if max(share, looked_at) >= LEAST / 2:
        saved, state = seen.script.saved_bytes, seen.script.state_bytes
        holds_more = 0 < state < min(saved / LIMIT.much_more, saved - LIMIT.more_bytes)
        about = {"looked_at": looked_at, "holds_more": holds_more}
        yield _CAUSES.found("checkpoints", seen.site("checkpoint"), share, seen=seen, **about)


def _between_steps(seen: Symptoms) -> Found:
    share = seen.run.running(BETWEEN)
    line = next((line for line, _ in seen.lines(BETWEEN)), None)
    if line:
        share *= line.seconds / seen.evidence.parts[BETWEEN]
    if share >= LEAST:
        yield _CAUSES.found("between_steps", line.where if line else "", share, line=line)


def _start(seen: Symptoms) -> Found:
    """What takes long before the first step: it comes only once, so in a long run it is nothing."""
    run = seen.run
    rest_s = max(run.seconds - run.parts.get(messages.START, 0.0), 1e-9)
    if not run.start_lines:
        return
    line = run.start_lines[0]
    if line.seconds >= LIMIT.long_start_s and not line.text.startswith(("import ", "from ")):
        told = _CAUSES.found("start", line.where, seen=seen, line=line)
        yield structs.replace(told, urgency=LIMIT.of_start * min(1.0, line.seconds / rest_s))


CAUSES = (_start, _evaluation, _starts_of_epochs, _checkpoints, _between_steps)
