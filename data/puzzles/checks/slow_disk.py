from bench import opens, require, trains_as
from judged import original, proof, train

trains_as(train, original.train, 1)
times = opens(lambda: train(1), "images.npy")
require(times <= 4, f"In one epoch of 512 images the file was opened {times} times")
proof(f"the file was opened {times} times in an epoch of 512 images")
