"""Plans with one thing changed."""

from dataclasses import replace


def on(plan, **subject):
    """The plan on another subject."""
    return replace(plan, subject=replace(plan.subject, **subject))
