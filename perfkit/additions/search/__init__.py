"""Searches over recipes: the fastest one, and what each switch is worth."""

COMMANDS = {
    "attribute": (
        "perfkit.additions.search.command:attribute",
        "What is each optimization worth, whatever the order?",
    ),
    "tune": ("perfkit.additions.search.command:tune", "Find the fastest recipe under a memory cap"),
}
NOTEBOOK = {
    "attribute": "perfkit.additions.search.panel:attribute",
    "tune": "perfkit.additions.search.panel:tune",
}
