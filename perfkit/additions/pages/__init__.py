"""Pages with their own script, which need no kernel once they are shown: the pipeline, and the climb."""

NOTEBOOK = {name: f"perfkit.additions.pages.panel:{name}" for name in ("climb", "pipeline")}
