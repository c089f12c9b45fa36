"""What pyproject.toml cannot say: a wheel brings the recordings, puzzles, examples and texts of `data/`."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("puzzles", "recordings", "scripts", "texts")


class WithData(build_py):
    """Copies them to `perfkit/shipped`, where `perfkit.machine.shipped` finds them without a checkout."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "perfkit", "shipped")
        shutil.rmtree(target, ignore_errors=True)
        for name in SHIPPED:
            ignored = shutil.ignore_patterns("__pycache__", "*.png")
            shutil.copytree(Path(__file__).with_name("data") / name, target / name, ignore=ignored)


setup(cmdclass={"build_py": WithData})
