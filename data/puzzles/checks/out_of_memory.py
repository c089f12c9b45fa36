from bench import data, network, require, saved_bytes, trains_as
from judged import original, proof, train, validate

trains_as(train, original.train, 2)
kept = [saved_bytes(lambda: validate(network(), data(count))) for count in (2, 8)]
require(
    not any(kept),
    f"In a validation of 2 batches autograd keeps {kept[0]:,} bytes for a backward pass that never comes, with 8 batches {kept[1]:,}",
)
proof("autograd keeps nothing in a validation")
