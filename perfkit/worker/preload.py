"""Imports what measuring processes need. Only zygotes import this module; forks then have it all."""

import atexit
import contextlib
import gc
import importlib
import os
import time

import psutil

gc.disable()  # saves an eighth of the time of the imports
for name in ("torchvision", "perfkit.worker.session"):
    with contextlib.suppress(Exception):  # a measuring process that needs it reports the error
        importlib.import_module(name)

IMPORT_S = time.time() - psutil.Process().create_time()
"""The seconds that this took. Without a zygote it would be a bit more: garbage collection would be on."""

atexit.register(os._exit, 0)  # an ordinary exit takes torch a second, and prints complaints
gc.enable()
gc.collect()
gc.freeze()  # garbage collection in a fork would copy every shared page
