from bench import operators, require, trains_as
from judged import Images, original, proof, train

trains_as(train, original.train, 1)
images = Images()
images[0]
largest, one = max(operators(lambda: images[1]).result_bytes), images[1][0].nbytes
require(largest <= 4 * one, f"To fetch an image of {one:,} bytes, a tensor of {largest:,} bytes is computed")
proof(f"to fetch an image of {one:,} bytes, no tensor of more than {largest:,} bytes is computed")
