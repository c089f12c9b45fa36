"""What a zygote imports, so that measuring processes find it imported; only it imports this."""

import atexit
import contextlib
import gc
import importlib
import os
import time

import psutil

for name in ("torchvision", "perfkit.worker.session"):
    with contextlib.suppress(Exception):  # a measuring process that needs it says what is wrong
        importlib.import_module(name)

IMPORT_S = time.time() - psutil.Process().create_time()
"""Seconds that a process which is started from scratch would have needed."""

atexit.register(os._exit, 0)  # taking all of torch apart takes a second, and it complains
gc.collect()
gc.freeze()  # a collection in a forked process would copy every page that it shares
