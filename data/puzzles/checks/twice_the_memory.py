from bench import forwards, require, trains_as
from judged import original, proof, train

trains_as(train, original.train, 2)
kinds = {str(forward.dtype).removeprefix("torch.") for forward in forwards(lambda: train(1))}
require(kinds == {"float32"}, f"The layers compute in {' and '.join(sorted(kinds))}")
proof("all layers compute in float32")
