import torch

from bench import require, same
from judged import collate, proof

torch._dynamo.reset()
graphs = []


def backend(graph, inputs):
    graphs.append(1)
    return graph.forward


@torch.compile(backend=backend, dynamic=False)
def model(tokens, mask):
    return (tokens * mask).sum(1) / mask.sum(1)


lengths = torch.randperm(64)[:11].tolist()
for longest in [*(length + 1 for length in lengths), 64]:
    sequences = [torch.randint(1, 1000, (max(1, longest - 3 * number),)) for number in range(4)]
    tokens, mask = collate(sequences)
    require(
        tokens.shape == mask.shape and len(tokens) == 4 and mask.dtype == torch.bool,
        "Return tokens[N, L] and mask[N, L], bool",
    )
    require(tokens.shape[1] >= longest, f"A sentence of {longest} tokens was cut to {tokens.shape[1]}")
    for row, sequence in enumerate(sequences):
        same(
            tokens[row, : len(sequence)],
            sequence,
            "The tokens are not those of the sentence, from the beginning of the row",
        )
        require(not tokens[row, len(sequence) :].any(), "Padding has to be 0")
        require(
            mask[row, : len(sequence)].all() and not mask[row, len(sequence) :].any(),
            "The mask is not true exactly for the real tokens",
        )
    model(tokens, mask)
require(
    len(graphs) <= 2, f"In 12 batches the model was compiled {len(graphs)} times: too many lengths are left"
)
require(tokens.shape[1] <= 64, f"The rows have {tokens.shape[1]} tokens, and no sentence has more than 64")
proof(f"12 batches with sentences of different lengths, {len(graphs)} graphs")
