"""Pictures of runs. matplotlib is imported only when a picture is drawn."""

from collections.abc import Sequence

from perfkit.results import Estimate, Run
from perfkit.show import sentences, style, units
from perfkit.show.style import Figure, Look, Row

_REST = Look("rest of the step", style.BLUE)
_RATE = Look("samples/s", style.SKY)
_DROPPED = Look("not kept", "none")


def headline(runs: Sequence[Run]) -> Figure:
    """The main picture of a result: before and after on one axis of time, under the result in words."""
    both, ratio = sentences.pair(runs)
    picture = step_time(both or runs, by_rounds=ratio is not None)
    return picture._replace(title=sentences.headline(runs) or picture.title)


def _figure(name: str, title: str, runs: Sequence[Run], rows: Sequence[Row], unit: str) -> Figure:
    if runs:
        title = " · ".join(filter(None, (title, runs[0].workload_name, runs[0].device)))
    if any(run.simulated for run in runs):
        unit = f"simulated {unit}"
    return Figure(name, title, rows, unit)


def step_time(runs: Sequence[Run], by_rounds: bool = False) -> Figure:
    """A step of each run as timelines of loader and host. `by_rounds`: means, which divide to the ratio."""
    runs = sentences.stages(runs)
    samples = max((max(1, run.samples_per_step) for run in runs if run.step_s), default=0)
    rows: list[Row] = []
    for run in runs:
        rows += _timeline(run, _mean_step(run) if by_rounds else run.step_s, samples)
    unit = f"ms for {samples:,} samples, {'means of all rounds' if by_rounds else 'medians'}"
    return _figure("step_time", "Where a step's time goes", runs, rows, unit)


def _mean_step(run: Run) -> Estimate | None:
    """The mean step by the rates of the rounds, with everything between steps; None if there is no rate."""
    rate = run.samples_per_s
    if rate is None or run.step_s is None:
        return None
    samples = max(1, run.samples_per_step)
    return Estimate(samples / rate.value, samples / rate.high, samples / rate.low)


def _timeline(run: Run, own: Estimate | None, samples: int) -> list[Row]:
    """A run in words, then its loader and host for some samples. A step starts by waiting for its batch."""
    if own is None:
        words = sentences.outcome(run) or "the time of a step is not known"
        return [Row("", (), f"{sentences.run_name(run)}: {words}")]
    scale = 1e3 * samples / max(1, run.samples_per_step)
    step = Estimate(scale * own.value, scale * own.low, scale * own.high)
    wait = (run.data_wait_share or 0.0) * step.value
    rows = [Row("", (), _step_in_words(run, own))]
    if run.recipe.get("workers") == 0:
        rows.append(Row("loader", [(wait, style.LOADS)]))
    host = "host and device" if run.device == "cpu" else "host"
    rows.append(Row(host, [(wait, style.WAITS), (step.value - wait, _REST)], interval=step))
    return rows


def _step_in_words(run: Run, own: Estimate) -> str:
    words = f"{sentences.run_name(run)}: {sentences.about(run, units.duration_interval(own))} a step"
    if run.data_wait_share is not None:
        words += f", {units.percent(run.data_wait_share)} waits for data"
    if (busy := sentences.busy_share(run)) is not None:
        words += f", device busy {units.percent(busy)} of it"
    workers = run.recipe.get("workers")
    if workers and isinstance(workers, int):  # a recording from others may hold anything
        words += f", {units.plural(workers, 'worker')}"
    return words


def throughput(runs: Sequence[Run]) -> Figure:
    """A bar with its interval for each stage. A line climbs through a ladder's; dropped ones are hollow."""
    rows: list[Row] = []
    is_ladder = any(run.decision for run in runs)
    for run in runs:
        rate = run.samples_per_s
        name = sentences.run_name(run)
        if rate is None:
            rows.append(Row(name, (), units.wrapped(sentences.outcome(run), 44, 2)))
            continue
        is_dropped = run.decision is not None and not run.decision.kept
        text = f"{sentences.rate(run)} samples/s"
        if ratio := run.speedup("previous"):
            text += f"\n{sentences.SIGNS[ratio.verdict]} {units.ratio(ratio)} {ratio.verdict}"
        elif run.is_again and (noise := run.speedup("baseline")):  # the noise gets no verdict
            text += f"\n{units.ratio(noise)}"
        climbs = is_ladder and not (is_dropped or run.is_again)
        rows.append(Row(name, [(rate.value, _DROPPED if is_dropped else _RATE)], text, rate, climbs))
    unit = "samples/s: mean, 95% interval; ratio to the stage before, or to what was kept"
    return _figure("throughput", "Throughput, stage by stage", runs, rows, unit)
