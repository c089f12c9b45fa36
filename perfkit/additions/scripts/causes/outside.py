"""Causes outside of the steps: evaluations, starts of epochs, checkpoints."""

from msgspec import structs

from perfkit.additions.advice.finding import Causes, Found
from perfkit.additions.scripts import messages
from perfkit.additions.scripts.messages import BETWEEN, CHECKPOINTS, EPOCHS, EVALUATION, LEAST, Symptoms

_CAUSES = Causes(__name__)
LIMIT = _CAUSES.limits


def _evaluation(symptoms: Symptoms) -> Found:
    run = symptoms.run
    share = run.running(EVALUATION)
    with_gradients = symptoms.site("evaluation with gradients")
    if share >= LEAST:
        call = symptoms.site("evaluation") or with_gradients or symptoms.site("eval mode")
        cause = "evaluation" if run.evaluations <= run.steps / 2 else "frozen_model"
        place, text = _main_line(symptoms, EVALUATION)
        yield _CAUSES.found(cause, place or call, share, symptoms=symptoms, main=text)
    if with_gradients:
        grew = run.evaluation_bytes if run.evaluation_bytes > messages.MUCH_MEMORY else None
        yield _CAUSES.found("evaluation_with_gradients", with_gradients, grew=grew)


def _starts_of_epochs(symptoms: Symptoms) -> Found:
    data, epochs = symptoms.evidence.data, len(symptoms.run.epochs)
    share = symptoms.run.running(EPOCHS)
    if epochs > 1 and share >= LEAST:
        cause = "workers_restart" if data and data.workers and not data.keeps_workers else "epochs_start"
        if epochs >= 0.9 * symptoms.run.steps and not (data and data.batches == 1):
            cause = "epoch_in_each_step"
        place, text = _main_line(symptoms, "start")
        loading_places = {line.where for line, _ in symptoms.loading_lines() if line.part != "sampler"}
        if cause == "epochs_start" and place in loading_places:
            return  # the first batch takes as long as the others, of which few were observed
        where = place if place and cause != "workers_restart" else symptoms.site("loader")
        yield _CAUSES.found(cause, where, share, symptoms=symptoms, main=text)


def _main_line(symptoms: Symptoms, part: str) -> tuple[str, str]:
    """The place and text of the main line of a part, if there is one; of a loop, only what it calls."""
    line = next((line for line, _ in symptoms.lines(part)), None)
    if line is None or line.calls_layer or line.seconds < LIMIT.most * symptoms.evidence.parts[part]:
        return "", ""
    if line.text.startswith("for ") and line.calls:
        return "", line.calls[0]
    return line.where, f"`{line.text}`"


def _checkpoints(symptoms: Symptoms) -> Found:
    # While other programs take the cores, the run has longer steps, but the looks have one thread.
    parts = symptoms.evidence.parts
    looked_at = parts.get("checkpoint", 0.0) / (sum(parts.values()) or 1.0)
    share = symptoms.run.running(CHECKPOINTS) or looked_at
    if max(share, looked_at) >= LEAST / 2:
        saved, state = symptoms.script.saved_bytes, symptoms.script.state_bytes
        holds_more = 0 < state < min(saved / LIMIT.much_more, saved - LIMIT.more_bytes)
        facts = {"looked_at": looked_at, "holds_more": holds_more}
        yield _CAUSES.found("checkpoints", symptoms.site("checkpoint"), share, symptoms=symptoms, **facts)


def _between_steps(symptoms: Symptoms) -> Found:
    between = symptoms.run.running(BETWEEN)
    line = next((line for line, _ in symptoms.lines(BETWEEN)), None)
    if line is None:
        if between >= LEAST:
            yield _CAUSES.found("between_steps", share=between, line=None)
        return
    of_second = between / symptoms.evidence.parts[BETWEEN]  # the share of a second that was looked at
    if line.seconds * of_second >= LEAST:
        finding = _CAUSES.found("between_steps", line.where, line.seconds * of_second, line=line)
        yield symptoms.found_around(finding, line, of_second)


def _start(symptoms: Symptoms) -> Found:
    """A line that takes long before the first step; it runs once, so it matters less in a longer run."""
    run = symptoms.run
    rest_s = max(run.seconds - run.parts.get(messages.START, 0.0), 1e-9)
    if not run.start_lines:
        return
    line = run.start_lines[0]
    if line.seconds >= LIMIT.long_start_s and not line.text.startswith(("import ", "from ")):
        finding = _CAUSES.found("start", line.where, symptoms=symptoms, line=line)
        yield structs.replace(finding, urgency=LIMIT.of_start * min(1.0, line.seconds / rest_s))


CAUSES = (_start, _evaluation, _starts_of_epochs, _checkpoints, _between_steps)
