import logging
from unittest import mock

import torch

from bench import require, trains_as
from judged import original, proof, train

logging.disable(logging.WARNING)
graphs, compile_ = [], torch.compile


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


with mock.patch.object(
    torch, "compile", lambda model, **more: compile_(model, **{**more, "backend": backend})
):
    trains_as(train, original.train, 6)
    torch._dynamo.reset()
    graphs.clear()
    train(6)
require(graphs, "Nothing is compiled")
require(len(graphs) <= 2, f"In 6 steps {len(graphs)} graphs were compiled")
proof(f"6 steps, {len(graphs)} graph")
