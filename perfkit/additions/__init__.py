"""Additions to perfkit's core. Each folder here but `shared` is one addition, and can be deleted.

The core does not import them: each says in its `__init__.py` what it adds (`perfkit.registry`).
"""
