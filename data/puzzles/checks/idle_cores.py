import torch

from bench import forwards, require, trains_as
from judged import original, proof, train

torch.set_num_threads(2)
trains_as(train, original.train, 1)
torch.set_num_threads(2)
threads = {forward.threads for forward in forwards(lambda: train(1))}
require(threads == {2}, f"torch had 2 threads before, and the model computes with {min(threads)}")
proof("the model computes with as many threads as torch had before")
