"""Recordings in place of measuring: what a named machine has measured is shown again."""

SOURCES = {"recorded": "perfkit.additions.recorded.source:RecordedSource"}
NOTEBOOK = {"recording": "perfkit.additions.recorded.panel:recording"}
