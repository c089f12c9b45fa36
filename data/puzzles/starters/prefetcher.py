def prefetch(batches, device):
    for batch in batches:
        yield batch.to(device, non_blocking=True)
