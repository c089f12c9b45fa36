"""Walks through the graph of a loss."""

import torch
from torch.autograd.graph import get_gradient_edge

from perfkit.additions.shared.tensors import graph


def test_a_backward_pass_may_begin_at_an_edge_of_the_graph():
    """An edge is a tuple, and was taken for a list of tensors: the user's script failed."""
    loss = torch.nn.Linear(3, 2)(torch.ones(1, 3)).sum()
    nodes = {node.name() for node in graph(loss)}
    assert "SumBackward0" in nodes
    edge = get_gradient_edge(loss)
    for roots in (edge, [edge], [loss], (loss, edge)):
        assert {node.name() for node in graph(roots)} == nodes
