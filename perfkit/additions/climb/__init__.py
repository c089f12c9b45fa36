"""The page "Climb it yourself": all combinations of a ladder's switches, to turn without a kernel."""

NOTEBOOK = {"climb": "perfkit.additions.climb.panel:climb"}
