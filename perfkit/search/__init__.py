"""Searches over recipes: the fastest one, and what each switch is worth."""

COMMANDS = {
    "attribute": ("perfkit.search.command:attribute", "What is each optimization worth, whatever the order?"),
    "tune": ("perfkit.search.command:tune", "Find the fastest recipe under a memory cap"),
}
NOTEBOOK = {"attribute": "perfkit.search.panel:attribute", "tune": "perfkit.search.panel:tune"}
