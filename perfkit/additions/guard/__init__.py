"""Keeps the writes of a program away from the user's files. It knows nothing of training."""
