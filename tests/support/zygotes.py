"""Fewer zygotes: each imports torch, which takes a core 3 s."""

from perfkit.recipe import Recipe

SET = Recipe(wait_policy="passive", allocator="keep").environment()
"""What stages set before a process starts: where it is set anyway, all of a kernel's children have one zygote."""
