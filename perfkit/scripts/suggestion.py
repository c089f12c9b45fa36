"""What to try on a script that was watched: switches with a predicted gain, or the edit to make by hand."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["try", "edit", "refused", "on"]
"""Set it from outside; edit the script; it cannot be had here; the script has it already."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that may make a script faster, or why it will not."""

    title: str
    state: State
    settings: dict[str, bool | int | str] = {}
    """The switches to set; none where only an edit helps."""
    why: str
    """What was seen that speaks for it; of what is refused, the reason."""
    gain: float | None = None
    """Predicted samples/s over those of the script as it is; None where nothing that was seen tells."""
    at_most: bool = False
    """Whether the gain is a bound: all of what it can save, and no cost."""
    basis: str = ""
    """How the gain follows from what was seen, or why there is none."""
    changes_training: bool = False

    @property
    def set_options(self) -> str:
        """The settings as options of the command line."""
        values = ((name, str(v).lower() if isinstance(v, bool) else v) for name, v in self.settings.items())
        return " ".join(f"--set {name}={value}" for name, value in values)
