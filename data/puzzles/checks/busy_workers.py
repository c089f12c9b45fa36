from unittest import mock

from torch import nn
from torch.utils.data import DataLoader

from bench import forwards, require
from judged import proof, train

with mock.patch.object(DataLoader, "__iter__", autospec=True, side_effect=DataLoader.__iter__) as started:
    seen = [
        forward.samples
        for forward in forwards(lambda: train(20))
        if isinstance(forward.module, nn.Sequential)
    ]
require(
    seen == [64] * 20, f"20 steps of 64 samples were asked for, and the model was called with {seen[:20]}"
)
require(
    started.call_count <= 3,
    f"In 20 steps the loader was started {started.call_count} times; an epoch has 8 steps",
)
proof(f"in 20 steps the loader was started {started.call_count} times, once for each epoch")
