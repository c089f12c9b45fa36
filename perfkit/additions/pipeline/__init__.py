"""A training loop as two queues, with knobs: the picture of the first chapter."""

NOTEBOOK = {"pipeline": "perfkit.additions.pipeline.panel:pipeline"}
