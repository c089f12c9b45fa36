def profile(step, steps):
    with torch.profiler.profile() as profiler:
        for _ in range(steps):
            step()
    return profiler
