"""Sessions that never ran: made-up numbers of the right kind, in `tests/data/sessions.json`."""

from pathlib import Path

import msgspec

from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.results.schema import Busiest

_SESSIONS = Path(__file__).parents[2] / "data" / "sessions.json"


def again(gpu=False):
    """Ten stages on a CPU (one n/a, one failed, one slower), or five on a GPU (one cancelled); an A/A row."""
    runs = msgspec.json.decode(_SESSIONS.read_bytes(), type=dict[str, list[Run]])["gpu" if gpu else "cpu"]
    return [msgspec.structs.replace(run, recipe=Recipe(**run.recipe).to_dict()) for run in runs]


def session(gpu=False, **changes):
    """The same without the A/A row."""
    return [msgspec.structs.replace(run, **changes) for run in again(gpu)[:-1]]


def many(count, gpu=False):
    """This number of stages, with titles that get longer and longer."""
    base = session(gpu)
    words = " of a stage whose title nobody thought of keeping short"
    picked = [base[at % len(base)] for at in range(count)]
    titles = [(run.title + words)[: 12 + 4 * at] for at, run in enumerate(picked)]
    return [msgspec.structs.replace(run, title=title) for run, title in zip(picked, titles, strict=True)]


def disturbed(runs, share=0.37):
    """The same session with another program beside it in all rounds."""
    busiest = Busiest("chrome (process 7)", share)

    def changed(run):
        shares = [share] * len(run.raw.block_samples_per_s)
        pairings = [msgspec.structs.replace(one, disturbed=shares) for one in run.pairings]
        raw = msgspec.structs.replace(run.raw, disturbed=shares)
        return msgspec.structs.replace(run, raw=raw, pairings=pairings, busiest=busiest)

    return [changed(run) if run.status == "ok" else run for run in runs]
