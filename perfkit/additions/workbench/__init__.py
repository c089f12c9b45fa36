"""The workbench: every switch as a control, and the history of runs."""

NOTEBOOK = {"Workbench": "perfkit.additions.workbench.panel:Workbench"}
