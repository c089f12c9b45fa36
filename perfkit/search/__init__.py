"""Searches over recipes: the fastest one, and what each switch is worth."""

NOTEBOOK = {"attribute": "perfkit.search.panel:attribute", "tune": "perfkit.search.panel:tune"}
