"""What perfkit can do beyond its core: each folder here is one addition, and can be deleted.

The core imports none of them: an addition says in its `__init__.py` what it adds (`perfkit.registry`).
"""
