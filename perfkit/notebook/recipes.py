"""Recipes side by side; what a step is made of: memory, kernels, ranks. For the later chapters."""

from __future__ import annotations

import html
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.display import HTML, Image, Markdown

from perfkit.errors import one_of
from perfkit.notebook import layout
from perfkit.notebook.ladder import LadderPanel
from perfkit.program.recipe import Recipe
from perfkit.program.rules import applicable
from perfkit.results.run import Run, slug
from perfkit.show import inside, units
from perfkit.studies import engine, inspect, scaling
from perfkit.studies import parity as proving

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Recipes = Mapping[str, Mapping[str, Any]]
"""Titles, and the switches that differ from the plain loop."""


class RecipePanel(LadderPanel):
    """Recipes measured in an interleaved order; the others are compared with the first.

    Args:
        recipes: titles and switches.
        more: as for `LadderPanel`.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    def __init__(self, recipes: Recipes, **more: Any) -> None:
        self._titles = recipes
        super().__init__(["baseline"], **more)
        base = Recipe(batch_size=self.plan.preset.batch_size).replace(**self.plan.settings)
        chosen = tuple((title, base.replace(**changes)) for title, changes in recipes.items())
        self.plan = replace(self.plan, recipes=chosen)

    def _names(self) -> list[str]:
        return [slug(title) for title in self._titles]

    def _recipes(self) -> list[Recipe]:
        if not self._resolve():
            return []
        target = engine.target(self.plan, self._described)
        return [applicable(recipe, target)[0] for _, recipe in self.plan.recipes]

    def _key(self) -> str:
        return f"{super()._key()} {dict(self._titles)}"

    def __getitem__(self, title: str) -> Run:
        """The run of a recipe.

        Raises:
            InvalidValue: no such recipe, or it was not measured.
        """
        runs = {run.title: run for run in self._results_or_error() if run.status == "ok"}
        if title not in runs:
            raise one_of(title, list(runs), "measured recipe")
        return runs[title]

    def parity(self, title: str) -> Markdown:
        """Whether a recipe still trains the same."""
        return Markdown(
            html.escape(proving.parity(self.plan, title, Recipe.from_dict(self[title].recipe)).describe())
        )

    # ------------------------------------------------------------ several ranks

    def communication(self) -> HTML:
        """Where a step goes, for each recipe with several ranks."""
        rows = []
        for run in self._results_or_error():
            if found := run.communication:
                times = (found.step_s, found.compute_s, found.alone_s, found.exposed_s, found.hidden_s)
                rows.append([run.title, *map(units.duration, times), units.size(found.bytes_per_step),
                             f"{found.straggling:.2f}×"])  # fmt: skip
        columns = ("recipe", "step", "computing", "averaging alone", "of it exposed", "hidden",
                   "bytes a step", "slowest rank / median")  # fmt: skip
        return HTML(layout.html_table(columns, rows))

    def efficiency(self, one: str, many: str) -> float:
        """Scaling efficiency of a recipe with several ranks over one with one: 1 is perfect."""
        return scaling.efficiency(self[one], self[many])

    def forecast(
        self, title: str, latency_s: float | None = None, bytes_per_s: float | None = None,
        counts: Sequence[int] = scaling.COUNTS,
    ) -> HTML:  # fmt: skip
        """Predicted efficiency with more ranks, from what a recipe measured; see `studies.scaling`."""
        rows = [
            [
                str(row.ranks),
                units.duration(row.communication_s),
                units.duration(row.step_s),
                f"{row.efficiency:.0%}",
            ]
            for row in scaling.forecast(self[title], counts, latency_s, bytes_per_s)
        ]
        return HTML(layout.html_table(("ranks", "averaging", "step", "efficiency"), rows))


class Inside:
    """Tables and pictures of what was found."""

    def __init__(
        self, found: Any, tables: list[inside.Table], figures: Mapping[str, Callable[[bool], Figure]]
    ) -> None:
        self.found = found
        self._tables, self._figures = tables, figures

    def table(self, title: str) -> HTML:
        """One table, by the beginning of its title.

        Raises:
            InvalidValue: no such table.
        """
        for name, columns, rows in self._tables:
            if name.lower().startswith(title.lower()):
                return HTML(f"<p><b>{html.escape(name)}</b></p>{layout.html_table(columns, rows)}")
        raise one_of(title, [name for name, *_ in self._tables], "table")

    def plot(self, name: str, dark: bool = False) -> Image:
        """One picture, as a PNG with a text for those who do not see it.

        Raises:
            InvalidValue: no such picture.
        """
        if name not in self._figures:
            raise one_of(name, list(self._figures), "picture")
        return layout.image(self._figures[name](dark))


def memory(recipes: Recipes, workload: str | None = None, **where: Any) -> Inside:
    """What holds memory in a step of each recipe; arguments as for `perfkit.profile`. Picture: held."""
    found = [
        {**inspect.memory(workload, settings=changes, **where), "recipe": title}
        for title, changes in recipes.items()
    ]
    figures = {"held": lambda dark: inside.held(found, list(recipes), dark)}
    return Inside(found, inside.memory(found), figures)


def kernels(workload: str | None = None, recipe: Any = None, **where: Any) -> Inside:
    """The device's roofs, shapes, and a step's share of them; arguments as for `perfkit.profile`.

    Pictures: roofline, shapes.
    """
    found = inspect.kernels(workload, recipe, **where)
    figures = {
        "roofline": lambda dark: inside.roofline(found, dark),
        "shapes": lambda dark: inside.shapes(found, dark),
    }
    return Inside(found, inside.kernels(found), figures)


def nsys(workload: str | None = None, recipe: Any = None, **where: Any) -> Markdown:
    """The Nsight Systems command for a recipe, and whether it can run here."""
    asked = shlex.join(inspect.nsys(workload, recipe, **where)).replace(sys.executable, "python")
    here = shutil.which("nsys") is not None
    said = "nsys is installed: `perfkit nsys` runs this and reads the export." if here else (
        "nsys is not installed here; on a machine where it is, `perfkit nsys` runs this and reads the export."
    )  # fmt: skip
    return Markdown(f"```bash\n{asked}\n```\n\n{said}")


def torchrun(ranks: int, nodes: int = 1) -> Markdown:
    """The command for a cluster.

    Raises:
        InvalidValue: the ranks cannot be split evenly.
    """
    return Markdown(f"```bash\n{scaling.torchrun('train.py', ranks, nodes)}\n```")
