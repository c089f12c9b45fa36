"""A run with the fewest fields."""

from perfkit.results.run import Run


def run(run_id="r0", **changes):
    known = {
        "session": "s1", "created": "2026-11-20T12:00:00+00:00", "stage": "baseline", "device": "cpu",
        "workload": "perfkit.workloads.photos:Photos", "recipe": {"batch_size": 32},
    }  # fmt: skip
    return Run(id=run_id, **known | changes)
