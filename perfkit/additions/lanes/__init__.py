"""Where time goes in steady steps, as lanes: worker, host, copies, kernels. `figures` draws them.

`stamps` records when a loader's workers begin and end a batch; `step` measures a training with them; `sides`
reads the steps of a trace, from a real GPU or a simulated one.
"""

NOTEBOOK = {"lanes": "perfkit.additions.lanes.panel:lanes"}
PICTURES = {"lanes": "perfkit.additions.lanes.panel:of_runs"}

MEASURE = "perfkit.additions.lanes.step:side"  # a question to a training; see `Procedures.answer`
