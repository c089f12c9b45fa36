"""What a step is made of: tables of memory and kernels, and the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.show import style, units

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = tuple[str, list[str], list[list[str]]]
"""Title, columns, rows."""

_LOOK = {"float32": (style.BLUE, "o"), "bfloat16": (style.ORANGE, "D"), "float16": (style.PURPLE, "s")}
_KINDS = {
    "weights": style.BLUE, "gradients": style.SKY, "optimizer": style.PURPLE, "batch": "#999999",
    "activations": style.ORANGE, "workspace": "#f0e442",
}  # fmt: skip


def memory(found: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Bytes at the peak by kind, by phase, and the largest places; a column for each recipe."""
    titles = [one["recipe"] for one in found]
    kinds = [
        [kind, *(units.size(one["parts"][kind]) for one in found)] for kind in found[0]["parts"]
    ] + [["all together", *(units.size(one["peak"]) for one in found)]]  # fmt: skip
    if found[0]["allocated"] is not None:
        kinds += [
            [f"allocator: {name}", *(units.size(one[name]) for one in found)]
            for name in ("allocated", "reserved")
        ]
    phases = list(dict.fromkeys(phase for one in found for phase in one["phases"]))
    highest = [[p, *(units.size(one["phases"].get(p, 0)) for one in found)] for p in phases]
    tables: list[Table] = [
        (f"At the peak (in {found[0]['peak_phase']})", ["what", *titles], kinds),
        ("Highest in each phase", ["phase", *titles], highest),
    ]
    for one in found:
        rows = [[where, kind, units.size(size)] for where, kind, size in one["places"]]
        tables.append((f"Largest at the peak: {one['recipe']}", ["module (line)", "what", "bytes"], rows))
    return tables


def kernels(found: Mapping[str, Any]) -> list[Table]:
    """Roofs, shapes, the step's share of them, badly aligned layers."""
    roofs = [[name, f"{peak / 1e9:,.0f} GFLOP/s"] for name, peak in found["peaks"].items()]
    roofs.append(["copying", f"{found['bytes_per_s'] / 1e9:,.1f} GB/s"])
    shapes = [
        [row["kind"], row["shape"], row["dtype"], f"{1e3 * row['seconds']:.3f} ms",
         f"{row['flops_per_s'] / 1e9:,.0f}", f"{row['flops_per_s'] / found['peaks'][row['dtype']]:.0%}"]
        for row in found["rows"]
    ]  # fmt: skip
    tables: list[Table] = [
        ("Roofs, measured", ["what", "at most"], roofs),
        ("By shape", ["kind", "shape", "type", "time", "GFLOP/s", "of the peak"], shapes),
    ]
    asked = found["work"]
    if asked["flops"]:
        step = [
            ["step", f"{1e3 * found['step_s']:.2f} ms"],
            ["FLOPs", f"{asked['flops'] / 1e9:,.2f} GFLOP in {asked['dtype']}"],
            ["bytes of all operators, unfused", units.size(asked["bytes"])],
            ["MFU (FLOP/s / measured peak)", f"{found['mfu']:.1%}"],
            ["speed of light (FLOPs/peak + bytes/bandwidth) / step", f"{found['light_share']:.1%}"],
        ]  # fmt: skip
    else:
        step = [["FLOPs", f"n/a: {asked['why']}"]]
    tables.append((f"A step of {found['recipe']}", ["what", "how much"], step))
    bad = [
        [row["layer"], row["kind"], " x ".join(map(str, row["sizes"])), " x ".join(map(str, row["padded"])),
         f"+{row['more_flops']:.1%}"] for row in found["misaligned"]
    ]  # fmt: skip
    columns = ["layer", "kind", "sizes", "padded", "FLOPs"]
    tables.append(
        ("Layers with sizes that are no multiples of 8", columns, bad or [["none", "", "", "", ""]])
    )
    return tables


def roofline(found: Mapping[str, Any], dark: bool = False) -> Figure:
    """What each shape reaches, and what the device could do at its FLOPs per byte; both axes logarithmic."""
    made = style.new_figure(style.WIDTH, 4.6, dark)
    ax, ink = made.add_subplot(), style.ink(dark)
    style.plain_axes(ax, ink)
    across = np.logspace(-1, 4, 200)
    for dtype, peak in found["peaks"].items():
        colour, sign = _LOOK[dtype]
        ax.plot(across, np.minimum(peak, across * found["bytes_per_s"]) / 1e9, color=colour, linewidth=1.6)
        rows = [row for row in found["rows"] if row["dtype"] == dtype]
        points = [r["flops_per_byte"] for r in rows], [r["flops_per_s"] / 1e9 for r in rows]
        ax.plot(*points, sign, color=colour, markeredgecolor=ink, label=dtype)
    asked = found["work"]
    if asked["flops"]:
        x, y = asked["flops"] / asked["bytes"], asked["flops"] / found["step_s"] / 1e9
        ax.plot(x, y, "*", color="#f0e442", markeredgecolor=ink, markersize=16, label="this training's step")
    ax.set_xscale("log")
    ax.set_yscale("log")
    size = style.type_size(ax)
    ax.set_xlabel("FLOPs per byte read or written", color=ink, fontsize=size)
    ax.set_ylabel("GFLOP/s", color=ink, fontsize=size)
    ax.legend(frameon=False, labelcolor=ink, fontsize=0.9 * size, loc="lower right")
    style.title(made, "What shapes reach, under the roofs of this device", ink)
    said = ", ".join(f"{name} {peak / 1e9:,.0f} GFLOP/s" for name, peak in found["peaks"].items())
    made.set_label(f"Roofline: peaks {said}, copying {found['bytes_per_s'] / 1e9:,.0f} GB/s")
    return made


def shapes(found: Mapping[str, Any], dark: bool = False) -> Figure:
    """Products by the divisors of their sizes: a square is GFLOP/s, brighter where more is reached."""
    kinds = ("64", "8", "4", "odd")
    made = style.new_figure(style.WIDTH, 3.9, dark)
    ink = style.ink(dark)
    for at, dtype in enumerate(found["peaks"]):
        ax = made.add_subplot(1, len(found["peaks"]), at + 1)
        rows = [row for row in found["rows"] if (row["kind"], row["dtype"]) == ("matmul", dtype)][:16]
        reached = np.array([row["flops_per_s"] / 1e9 for row in rows]).reshape(4, 4)
        ax.imshow(reached, cmap="cividis", vmin=0, vmax=reached.max())
        size = style.type_size(ax)
        for (down, across), value in np.ndenumerate(reached):
            on_dark = value < 0.55 * reached.max()
            ax.text(across, down, f"{value:,.0f}", ha="center", va="center", fontsize=0.85 * size,
                    color="white" if on_dark else "black")  # fmt: skip
        ax.set_xticks(range(4), kinds)
        ax.set_yticks(range(4), kinds)
        ax.tick_params(colors=ink, labelsize=0.9 * size)
        ax.set_xlabel("n divides by", color=ink, fontsize=size)
        ax.set_ylabel("k divides by", color=ink, fontsize=size)
        ax.set_title(f"{dtype}, GFLOP/s", color=ink, fontsize=size)
    style.title(made, "The same product, with sizes that divide by less and less", ink)
    made.set_label("Heat map of products by the divisors of k and n; the same figures stand in the table")
    return made


def held(found: Sequence[Mapping[str, Any]], titles: Sequence[str], dark: bool = False) -> Figure:
    """Bytes at the peak by kind: a bar for each recipe."""
    made = style.new_figure(style.WIDTH, 2.0 + 0.5 * len(found), dark)
    ax, ink = made.add_subplot(), style.ink(dark)
    style.plain_axes(ax, ink)
    size = style.type_size(ax)
    for at, one in enumerate(found):
        left = 0.0
        for kind, colour in _KINDS.items():
            width = one["parts"][kind] / 1e6
            label = kind if at == 0 else None
            ax.barh(at, width, left=left, color=colour, edgecolor=ink, linewidth=0.6, label=label)
            left += width
        ax.text(left, at, f" {units.size(one['peak'])}", va="center", color=ink, fontsize=0.9 * size)
    ax.set_yticks(range(len(found)), titles, color=ink, fontsize=size)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.18 * max(one["peak"] for one in found) / 1e6)
    ax.set_xlabel("MB at the peak", color=ink, fontsize=size)
    made.legend(frameon=False, labelcolor=ink, fontsize=0.9 * size, ncols=6, loc="outside lower center")
    style.title(made, "What holds memory at the peak of a step", ink)
    made.set_label(
        ", ".join(f"{title}: {units.size(one['peak'])}" for title, one in zip(titles, found, strict=True))
    )
    return made
