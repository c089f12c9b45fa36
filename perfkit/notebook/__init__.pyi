# mypy: disable-error-code="import-not-found"
# The folder of an addition may be missing.

from perfkit.additions.checkpoint.codes import checkpoint as checkpoint
from perfkit.additions.drills.panel import drill as drill
from perfkit.additions.drills.panel import drills as drills
from perfkit.additions.inside.panel import kernels as kernels
from perfkit.additions.inside.panel import memory as memory
from perfkit.additions.lanes.panel import lanes as lanes
from perfkit.additions.my_train.panel import my_train as my_train
from perfkit.additions.pages.panel import climb as climb
from perfkit.additions.pages.panel import pipeline as pipeline
from perfkit.additions.puzzles.panel import capstone as capstone
from perfkit.additions.puzzles.panel import mystery as mystery
from perfkit.additions.puzzles.panel import puzzle as puzzle
from perfkit.additions.puzzles.panel import puzzles as puzzles
from perfkit.additions.ranks.panel import scale as scale
from perfkit.additions.recorded.panel import recording as recording
from perfkit.additions.scripts.panel import ScriptPanel
from perfkit.additions.search.panel import tune as tune
from perfkit.additions.trace.panel import TraceView as TraceView
from perfkit.additions.trace.panel import profile as profile
from perfkit.additions.workbench.panel import Workbench as Workbench
from perfkit.notebook.ladder import LadderPanel as LadderPanel
from perfkit.notebook.ladder import RecipePanel as RecipePanel
from perfkit.notebook.ladder import use as use
from perfkit.notebook.shown import Shown as Shown
from perfkit.notebook.shown import training_loop as training_loop
from perfkit.notebook.stage import StagePanel as StagePanel
from perfkit.notebook.stage import kept as kept

script_panel = ScriptPanel
