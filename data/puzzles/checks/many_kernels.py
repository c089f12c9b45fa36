from bench import operators, require, trains_as
from judged import original, proof, train

trains_as(train, original.train, 2)
own, before = (operators(lambda: function(1)).by_step[-1] for function in (train, original.train))
require(
    own < 0.75 * before,
    f"A step takes {own} operators of torch, and {before} in the original: something still goes over all parameters",
)
proof(f"a step takes {own} operators of torch, and {before} in the original")
