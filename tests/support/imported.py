"""What forked processes find imported; nothing else imports this module."""

import atexit
import gc
import importlib
import os

gc.disable()  # saves an eighth of the time
for name in (
    "torch._dynamo",
    "torchvision.io",
    "torchvision.models",
    "torchvision.transforms.v2",
    "tests.support.scripts",
    "perfkit.additions.scripts.questions",
    "perfkit.worker.preload",  # last: it looks for garbage again, but not in all this
):
    importlib.import_module(name)
atexit.unregister(os._exit)  # which it registers for zygotes: a script has an exit code of its own
