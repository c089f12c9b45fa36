def idle_share(kernels, start, end):
    busy = sum(duration for _, duration in kernels)
    return 1 - busy / (end - start)
