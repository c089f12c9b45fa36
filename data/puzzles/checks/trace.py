import random

from bench import require
from judged import idle_share, proof


def expected(kernels, start, end):
    points = [0] * (end - start)
    for begin, duration in kernels:
        for at in range(max(begin, start), min(begin + duration, end)):
            points[at - start] = 1
    return 1 - sum(points) / len(points)


def same_share(kernels, words):
    given = list(kernels)
    own, right = idle_share(given, 100, 400), expected(kernels, 100, 400)
    require(isinstance(own, float | int), "Return a number from 0 to 1")
    require(
        abs(own - right) < 1e-6,
        f"{words}: you say {own:.3f} and it is {right:.3f}, for the kernels {kernels[:4]}{' …' if len(kernels) > 4 else ''} in the window from 100 to 400",
    )


same_share([(120, 50), (200, 80)], "Two kernels one after the other")
same_share([], "No kernel at all")
same_share([(120, 100), (150, 40)], "A kernel inside another one")
same_share([(120, 100), (150, 20), (230, 30)], "A kernel after one that contains a third")
same_share([(120, 60), (150, 80)], "Kernels that overlap")
same_share([(300, 40), (110, 40)], "Kernels that are not sorted")
same_share([(50, 100), (380, 90)], "Kernels that reach out of the window")
for _ in range(60):
    same_share(
        [(random.randrange(60, 420), random.randrange(1, 60)) for _ in range(random.randrange(12))],
        "A random trace",
    )
proof("67 traces")
