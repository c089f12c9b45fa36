"""Several ranks that train together: who is late and why, how well they scale, what a step consists of."""

COMMANDS = {
    "scale": ("perfkit.additions.ranks.command:scale", "How a script scales, and what more ranks could give")
}
NOTEBOOK = {"scale": "perfkit.additions.ranks.panel:scale"}

_NAMES = (
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "srun",
    "mpirun", "python", "python3",
)  # fmt: skip
LAUNCHERS = dict.fromkeys(_NAMES, "perfkit.additions.ranks.command:RANKS")
"""Programs that start several processes, with the `Launcher` that watches and compares these."""
