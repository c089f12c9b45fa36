import torch
from torch.utils.data import DataLoader

from bench import operators, require, same
from judged import Images, make_loader, proof

images, labels = torch.randint(256, (48, 3, 4, 4), dtype=torch.uint8), torch.randint(10, (48,))
dataset = Images(images, labels)
require(hasattr(dataset, "__getitems__"), "The data set has no `__getitems__` yet")
try:
    batches = list(make_loader(dataset, 12))
except RuntimeError as problem:
    require(
        "stack" not in str(problem),
        "The default `collate_fn` stacks what is a batch already: pass one that returns what it is given",
    )
    raise
require(len(batches) == 4, f"The loader gives {len(batches)} batches and should give 4")
require(all(len(batch) == 2 for batch in batches), "A batch has to be images and labels")
sizes = [tuple(batch[0].shape) for batch in batches]
require(
    set(sizes) == {(12, 3, 4, 4)}, f"A batch of images has the shape {sizes[0]} and should have (12, 3, 4, 4)"
)
same(torch.cat([batch[0] for batch in batches]), images, "The images are not those of the data set")
same(torch.cat([batch[1] for batch in batches]), labels, "The labels are not those of the images")
some = DataLoader(dataset, sampler=[5, 2, 9, 40], batch_size=4, collate_fn=make_loader(dataset, 4).collate_fn)
same(
    next(iter(some))[0],
    images[[5, 2, 9, 40]],
    "In a shuffled order the batch has other samples than were asked for",
)
counts = [len(operators(lambda: next(iter(make_loader(dataset, size)))).names) for size in (4, 24)]
require(
    counts[0] == counts[1],
    f"A batch of 4 takes {counts[0]} operators and one of 24 takes {counts[1]}: samples are still fetched one by one",
)
proof(f"a batch takes {counts[0]} operators of torch, whatever its size")
