from bench import compare, data, plain_loop, require, train
from judged import proof, train_step

batches = data(5, size=10)


def loop(model, optimizer, batches):
    for inputs, targets in batches:
        train_step(model, optimizer, inputs, targets, 4)


own = train(loop, batches)
largest = max(map(len, own.seen), default=0)
require(largest, "The model was never called")
require(largest <= 4, f"The model saw {largest} samples at a time, and only 4 fit")
require(
    own.updates != 15, "The optimizer steps after each part: the gradients of all parts belong to one step"
)
compare(own, train(plain_loop, batches))
proof(
    f"at most {largest} samples at a time, one step for 10; the weights are those of training on whole batches"
)
