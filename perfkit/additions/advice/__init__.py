"""Advice on what to change in a training: known causes, their texts, and how they are shown."""
