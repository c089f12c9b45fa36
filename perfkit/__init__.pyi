# mypy: disable-error-code="import-not-found"
# The folder of an addition may be missing.

from perfkit.additions.inside.panel import load_ipython_extension as load_ipython_extension
from perfkit.additions.inside.syncs import detect_syncs as detect_syncs
from perfkit.additions.trace.profile import profile as profile
from perfkit.errors import PerfkitError as PerfkitError
from perfkit.recipe import Recipe as Recipe
from perfkit.results.comparison import Comparison as Comparison
from perfkit.results.run import Run as Run
from perfkit.results.store import RunStore as RunStore
from perfkit.studies.climb import climb as climb
from perfkit.studies.compare import compare as compare
from perfkit.studies.job import Stopped as Stopped
from perfkit.studies.planning import plan as plan
from perfkit.studies.sources import Plan as Plan
from perfkit.studies.sources import Progress as Progress

__version__: str
__all__: list[str]
