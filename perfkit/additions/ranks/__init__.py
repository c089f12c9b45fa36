"""Several ranks that train together: how well they scale, and where a step of theirs goes."""

SECTIONS = {"ranks": "perfkit.additions.ranks.scaling:sections"}
