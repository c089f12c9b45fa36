"""Several ranks that train together: who is late and why, how well they scale, where a step goes."""

SECTIONS = {"ranks": "perfkit.additions.ranks.scaling:sections"}

LAUNCHERS = dict.fromkeys(
    (
        "torchrun",
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate",
        "deepspeed",
        "srun",
        "mpirun",
        "python",
        "python3",
    ),
    "perfkit.additions.ranks.command:watch",
)
"""Programs that start several processes: what watches them."""
