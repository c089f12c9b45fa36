import torch

from bench import require, same
from judged import gate, proof

torch._dynamo.reset()
expected = lambda x: x * 2 if x.sum() > 0 else x - 1
cases = [torch.randn(8) + shift for shift in (1.5, -1.5, 0.0)]
for x in cases:
    same(
        gate(x.clone()),
        expected(x),
        f"For a tensor with the sum {x.sum():.2f} the result is not that of the starter",
    )
graphs = []


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


compiled = torch.compile(lambda x: gate(x), backend=backend, fullgraph=True)
try:
    results = [compiled(x.clone()) for x in cases]
except Exception:
    require(
        False,
        "torch.compile has to break the graph: Python may not read a number or a truth value from a tensor",
    )
require(len(graphs) == 1, f"It was compiled into {len(graphs)} graphs")
for x, result in zip(cases, results):
    same(result, expected(x), "The compiled function gives a different result")
proof("one graph, with both cases in it")
