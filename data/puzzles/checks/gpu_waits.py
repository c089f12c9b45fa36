from bench import require, trains_as, waits
from judged import original, proof, train

trains_as(train, original.train, 2)
calls = waits(lambda: train(2))
require(
    not calls,
    f"In 16 steps the host waits {len(calls)} times, by {', '.join(f'`{call}`' for call in sorted(set(calls)))}",
)
proof("in 16 steps the host never waits")
