"""What a simulated run rests on: predicted kernel times. Nothing of it ran on a GPU."""

import msgspec

from perfkit.errors import InvalidValue


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """The model behind a simulated run, and how far off it has been."""

    gpu: str
    """Its product name."""
    host: str
    """What loads, copies and launches: a virtual host."""
    model: str
    """Version of the model."""
    constants: str
    """Digest of its constants."""
    band: float
    """Error of samples/s to expect, as a fraction: that of kernel time, as far as kernels decide it."""
    memory_band: float | None = None
    """Error of the peak memory to expect, as a fraction."""
    anchors: dict[str, float] = {}
    """The model's error for each published figure of this GPU: predicted / published - 1."""
    kernel_s: float = 0.0
    """Kernel time of a step."""
    copy_s: float = 0.0
    """Time of its copies."""
    copies_ahead: bool = False
    """Whether they are in a stream of their own, beside the kernels of the step before."""
    recorded: float = 0.0
    """The part of `kernel_s` whose operators were timed on a GPU, 0 to 1."""
    torch: str = ""
    """The version that planned the step."""


_BASIS = {"gpu": "GPU", "host": "host", "model": "model", "constants": "constants"}


def is_simulated(device: str) -> bool:
    """Whether a device's name is that of a simulated GPU: `sim:v100`."""
    return device.partition(":")[0] == "sim"


def refuse(device: str, what: str, why: str) -> None:
    """Refuses on a simulated device what would claim more than a prediction can, with an InvalidValue."""
    if is_simulated(device):
        remedy = "Use --device cpu or a real GPU; on a simulated one, run and compare predict"
        raise InvalidValue(f"{what} is refused on {device}: {why}", remedy)


def same_basis(a: Simulated | None, b: Simulated | None) -> None:
    """Refuses to compare what does not rest on the same model, with an InvalidValue."""
    if (a is None) != (b is None):
        raise InvalidValue(
            "one run is simulated and the other was measured: a ratio of the two would mean nothing",
            "Choose two measured runs, or two simulated ones",
        )
    values = {word: (getattr(a, name, ""), getattr(b, name, "")) for name, word in _BASIS.items()}
    differ = [f"{word} {one} and {other}" for word, (one, other) in values.items() if one != other]
    if differ:
        raise InvalidValue(f"the runs are simulated differently: {', '.join(differ)}", "Simulate both again")
