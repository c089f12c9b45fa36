from bench import operators, require, trains_as
from judged import original, proof, train

trains_as(train, original.train, 3)
steps = operators(lambda: train(12)).by_step
require(
    steps[-1] <= steps[0],
    f"The first step takes {steps[0]} operators of torch, and after 12 epochs a step takes {steps[-1]}",
)
proof(f"the first step takes {steps[0]} operators, and the last of 12 epochs {steps[-1]}")
