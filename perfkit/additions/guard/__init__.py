"""The user's files, kept from what a program writes; it knows nothing of training."""
