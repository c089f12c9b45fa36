"""The settings of a watched process, without those that do not matter to a test."""

from perfkit.additions.shared.settings import Settings


def settings(**changes):
    usual = {
        "package": "",
        "scratch": "",
        "more": "",
        "is_guarded": False,
        "watcher": "",
        "program": "train.py",
        "started": 0.0,
        "seed": 0,
        "toggles": {},
        "samples": 1,
        "loaders": [],
        "observers": [],
    }
    return Settings(**usual | changes)
