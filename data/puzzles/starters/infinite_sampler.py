def endless(length, generator):
    yield from torch.randperm(length, generator=generator).tolist()
