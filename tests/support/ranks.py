"""Ranks for tests that start no launcher: a script's own forks, which import torch once for all of them."""

import textwrap

FORKED = textwrap.dedent(
    """
    import os, socket, sys, time
    import torch
    import torch._dynamo  # which the first step of an optimizer imports, in each rank for itself
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    children = []
    for number in ("0", "1"):
        os.environ["RANK"] = number
        children.append(os.fork())
        if children[-1] == 0:
            break
    else:
        codes = [os.waitpid(child, 0)[1] for child in children]
        os._exit(1 if any(codes) else 0)  # it has nothing to clear away, which would take half a second

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    rows = torch.Generator().manual_seed(rank)
    """
)
"""The start of a script that is launched by `python train.py`: what follows is done by each of two ranks."""
