"""The search for the fastest recipe."""

COMMANDS = {"tune": ("perfkit.additions.search.command:tune", "Find the fastest recipe under a memory cap")}
NOTEBOOK = {"tune": "perfkit.additions.search.panel:tune"}
