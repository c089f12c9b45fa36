"""Searches over recipes: the fastest one, and what each switch is worth."""
