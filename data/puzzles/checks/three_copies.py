from bench import SimulatedGpu, require, trains_as
from judged import original, proof, train

trains_as(train, original.train, 2)
with SimulatedGpu() as gpu:
    train(2, gpu.device)
scales = sum(tensor.numel() == 48 for tensor, *_ in gpu.copies)
require(gpu.to_host == 0, "Something is copied back to the host, which waits for it")
require(scales <= 1, f"In 16 steps the 48 factors are copied {scales} times")
proof("the 48 factors are copied once, before the first step")
