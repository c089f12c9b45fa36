"""How a rank comes to whoever watches it: by a socket in a folder of the launch's own."""

import os
import socket
import sys
from multiprocessing.connection import Connection

import msgspec
import torch.distributed as dist

from perfkit.additions.ranks.messages import Hello


def join(address: str) -> tuple[Hello, Connection] | None:
    """Joins as the rank that this process is; without a group of ranks, it is the only one.

    None on a machine where nobody listens: the rank trains on without being seen.
    """
    rank, world, sock = 0, 1, socket.socket(socket.AF_UNIX)
    if dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    try:
        sock.connect(address)
    except OSError as problem:
        print(f"perfkit cannot see rank {rank}, because nobody listens here: {problem}", file=sys.stderr)
        return None
    line = Connection(sock.detach())
    local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or world
    restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    hello = Hello(rank=rank, world=world, local=int(local), pid=os.getpid(), restart=restart)
    line.send_bytes(msgspec.json.encode(hello))
    return hello, line
