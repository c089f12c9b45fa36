"""An exported script as a training that can be measured, as it stands, whatever was changed in it since."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from perfkit.errors import InvalidValue, WorkloadError
from perfkit.program.recipe import Recipe

REFERENCE = "script"
"""What stands for the workload in a run of a script."""

_EXPORTED = "Name a script that `perfkit export` wrote; what happens inside its parts may have been changed"


class _AskedToTrain(BaseException):
    """Ends `main` where it would train; no `except Exception` of a script is to swallow it."""


class Script:
    """A loaded script: `workload`, `device` and `seed` are what its `main` would train with.

    Args:
        path: the file. Its code is run, as `python FILE` would, up to the training.

    Raises:
        WorkloadError: it cannot be loaded, or is no script of ours.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.module = self._load()
        self.workload, self.device, self.seed = self._asked()

    def _load(self) -> Any:
        """The module under the file's own name, so that loader workers find it by that name too."""
        name = self.path.stem
        known = importlib.util.find_spec(name) if name.isidentifier() else None
        if not name.isidentifier() or (known and Path(known.origin or "").resolve() != self.path.resolve()):
            raise WorkloadError(
                f"'{self.path.name}' cannot be imported under the name '{name}'",
                "Call the file a name that Python allows and no installed module has",
            )
        sys.path.insert(0, str(self.path.parent))
        spec = importlib.util.spec_from_file_location(name, self.path)
        assert spec
        assert spec.loader
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as problem:  # a script may raise anything
            raise WorkloadError(
                f"'{self.path.name}' cannot be loaded: {type(problem).__name__}: {problem}",
                f"Run `python {self.path.name}` and mend what it says",
            ) from problem
        return module

    def _asked(self) -> tuple[Any, Any, int]:
        missing = [part for part in ("main", "train", "Training") if not hasattr(self.module, part)]
        if missing:
            raise WorkloadError(f"'{self.path.name}' has no {', '.join(missing)}", _EXPORTED)
        if hasattr(self.module, "join_ranks"):
            raise WorkloadError(
                f"'{self.path.name}' trains in several ranks", "Start it with torchrun, or compare ranks=2"
            )
        asked: list[Any] = []

        def train(workload: Any, device: Any, steps: int, seed: int = 0) -> Any:
            asked.extend((workload, device, seed))
            raise _AskedToTrain

        trains, arguments = self.module.train, sys.argv
        self.module.train, sys.argv = train, [str(self.path)]
        try:
            self.module.main()
        except _AskedToTrain:
            workload, device, seed = asked
            return workload, device, seed
        finally:
            self.module.train, sys.argv = trains, arguments
        raise WorkloadError(f"main() of '{self.path.name}' does not call train()", _EXPORTED)

    def training(self) -> Any:
        """Its training, with the recipe that can be read off its loader."""
        made = self.module.Training(self.workload, self.device, self.seed)
        workers = getattr(made.loader, "num_workers", 0)
        made.recipe = Recipe(
            batch_size=made.loader.batch_size,
            workers=workers,
            persistent_workers=workers > 0 and made.loader.persistent_workers,
            prefetch_factor=getattr(made.loader, "prefetch_factor", None) or Recipe().prefetch_factor,
        )
        return made

    def facts(self) -> dict[str, str]:
        """Which file this was."""
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        return {"script": f"{self.path.name}, sha256 {digest[:12]}"}

    def check_device(self, device: str) -> None:
        """Its own device must be the one that is measured.

        Raises:
            InvalidValue: it trains elsewhere.
        """
        if str(self.device).partition(":")[0] != device.partition(":")[0]:
            raise InvalidValue(
                f"'{self.path.name}' trains on {self.device}, and {device} is to be measured",
                f"Give --device {self.device}, or export it again for {device}",
            )


def is_script(text: str) -> bool:
    """Whether a side of a comparison names a file."""
    return text.endswith(".py")
