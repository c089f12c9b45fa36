"""What a simulated run rests on: predicted kernel times. Nothing of it ran on a GPU."""

from __future__ import annotations

import msgspec

from perfkit.errors import InvalidValue


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """The model behind a simulated run, and how far off it has been."""

    gpu: str
    """Its product name."""
    host: str
    """The virtual host that loads, copies and launches."""
    model: str
    """Version of the model."""
    constants: str
    """Digest of its constants."""
    band: float
    """Error of samples/s to expect, as a fraction: of kernels and of the host, each for its part of a step."""
    memory_band: float | None = None
    """Error of the peak memory to expect, as a fraction."""
    anchors: dict[str, float] = {}
    """The model's median error for each kind of published figure of this GPU."""
    kernel_s: float = 0.0
    """Kernel time of a step."""
    copy_s: float = 0.0
    """Time of its copies."""
    copies_ahead: bool = False
    """Whether they are in a stream of their own, beside the kernels of the step before."""
    torch: str = ""
    """The version that planned the step."""

    @property
    def basis(self) -> tuple[str, str, str, str]:
        """What two simulated runs must have in common to be compared."""
        return self.gpu, self.host, self.model, self.constants


def is_simulated(device: str) -> bool:
    """Whether a device's name is that of a simulated GPU: `sim:v100`."""
    return device.partition(":")[0] == "sim"


_REMEDY = "Use --device cpu or a real GPU; on a simulated one, run and compare predict"


def refuse(device: str, what: str, why: str) -> None:
    """Refuses a study that would claim more than a prediction can.

    Args:
        device: its name; nothing happens unless it is that of a simulated one.
        what: is refused.
        why: in words.

    Raises:
        InvalidValue: the device is simulated.
    """
    if is_simulated(device):
        raise InvalidValue(f"{what} is refused on {device}: {why}", _REMEDY)


def same_basis(a: Simulated | None, b: Simulated | None) -> None:
    """Refuses to compare what does not rest on the same.

    Raises:
        InvalidValue: one is simulated and the other measured, or they rest on different models.
    """
    if (a is None) != (b is None):
        raise InvalidValue(
            "one run is simulated and the other was measured: a ratio of the two would mean nothing",
            "Choose two measured runs, or two simulated ones",
        )
    if a and b and a.basis != b.basis:
        parts = zip(("GPU", "host", "model", "constants"), a.basis, b.basis, strict=True)
        differ = ", ".join(f"{name} {one} and {other}" for name, one, other in parts if one != other)
        raise InvalidValue(f"the runs are simulated differently: {differ}", "Simulate both again")
