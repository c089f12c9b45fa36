from torch import nn

from bench import forwards, require, trains_as
from judged import original, proof, train

trains_as(train, original.train, 2)
layers = [forward for forward in forwards(lambda: train(1)) if isinstance(forward.module, nn.Linear)][:4]
recorded = sum(forward.recorded for forward in layers)
require(recorded == 1, f"Autograd computes the gradients of {recorded} layers, and 1 of them learns")
proof("autograd computes the gradients of the last layer only")
