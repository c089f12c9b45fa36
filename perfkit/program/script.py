"""An exported script, with whatever was changed in it since, as a training that can be measured."""

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


class _TrainCalled(BaseException):
    """Ends `main` where it would train; no `except Exception` in a script can swallow it."""


class Script:
    """A loaded script: `workload`, `device` and `seed` are what its `main` would train with.

    Args:
        path: the file. Its code is run, as `python FILE` would, up to the training.

    Raises:
        WorkloadError: it cannot be loaded, or is not an exported script.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.module = self._load()
        self.workload, self.device, self.seed = self._arguments()

    def _load(self) -> Any:
        """The module under the file's own name, so that loader workers find it by that name too."""
        name = self.path.stem
        installed = importlib.util.find_spec(name) if name.isidentifier() else None
        other = installed and Path(installed.origin or "").resolve() != self.path.resolve()
        if not name.isidentifier() or other:
            raise WorkloadError(
                f"'{self.path.name}' cannot be imported under the name '{name}'",
                "Rename the file: a valid Python name that no installed module has",
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
                f"Run `python {self.path.name}` and fix what it reports",
            ) from problem
        return module

    def _arguments(self) -> tuple[Any, Any, int]:
        """What `main` gives to `train`: workload, device, seed."""
        missing = [part for part in ("main", "train", "Training") if not hasattr(self.module, part)]
        if missing:
            raise WorkloadError(f"'{self.path.name}' has no {', '.join(missing)}", _EXPORTED)
        if hasattr(self.module, "join_ranks"):
            raise WorkloadError(
                f"'{self.path.name}' trains in several ranks", "Start it with torchrun, or compare ranks=2"
            )
        arguments: list[Any] = []

        def note(workload: Any, device: Any, steps: int, seed: int = 0) -> Any:
            arguments.extend((workload, device, seed))
            raise _TrainCalled

        train, argv = self.module.train, sys.argv
        self.module.train, sys.argv = note, [str(self.path)]
        try:
            self.module.main()
        except _TrainCalled:
            workload, device, seed = arguments
            return workload, device, seed
        finally:
            self.module.train, sys.argv = train, argv
        raise WorkloadError(f"main() of '{self.path.name}' does not call train()", _EXPORTED)

    def training(self) -> Any:
        """Its training, with as much of the recipe as its loader shows."""
        training = self.module.Training(self.workload, self.device, self.seed)
        loader = training.loader
        workers = getattr(loader, "num_workers", 0)
        training.recipe = Recipe(
            batch_size=loader.batch_size,
            workers=workers,
            persistent_workers=workers > 0 and loader.persistent_workers,
            prefetch_factor=getattr(loader, "prefetch_factor", None) or Recipe().prefetch_factor,
        )
        return training

    def facts(self) -> dict[str, str]:
        """The file's name and digest."""
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        return {"script": f"{self.path.name}, sha256 {digest[:12]}"}

    def check_device(self, device: str) -> None:
        """Whether it trains on the device that is to be measured.

        Raises:
            InvalidValue: it trains on another one.
        """
        if str(self.device).partition(":")[0] != device.partition(":")[0]:
            raise InvalidValue(
                f"'{self.path.name}' trains on {self.device}, but {device} is to be measured",
                f"Give --device {self.device}, or export it again for {device}",
            )


def is_script(text: str) -> bool:
    """Whether one side of a comparison is the name of a script."""
    return text.endswith(".py")
