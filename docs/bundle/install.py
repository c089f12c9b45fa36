"""Installs this bundle of perfkit into .venv beside this file; needs Python, but no network and no settings.

python install.py            # then open the notebooks with the command that it prints
python install.py --my-torch # for a bundle without torch: uses the packages of this Python, torch included
"""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Makes the environment, and says how to start; 1 and a sentence where that fails."""
    about = json.loads((HERE / "bundle.json").read_text(encoding="utf-8"))
    here = {"python": "{}.{}.{}".format(*sys.version_info[:3]), "platform": sysconfig.get_platform()}
    least, mine = ([int(part) for part in one["python"].split(".")] for one in (about, here))
    # The wheels were chosen for that version: some want at least this one.
    if about["platform"] != here["platform"] or mine[:2] != least[:2] or mine < least:
        print("This bundle is for Python {python} (or a later patch) on {platform}.".format(**about))
        print("This is Python {python} on {platform}. Make a bundle on a machine like it.".format(**here))
        return 1
    my_torch = "--my-torch" in sys.argv
    if not about["torch"] and not my_torch:
        print(
            "This bundle has no torch. If this Python has torch 2.11 or newer: python install.py --my-torch"
        )
        return 1
    folder = HERE / ".venv"
    venv.create(folder, with_pip=True, clear=True, system_site_packages=my_torch)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = [
        str(programs / "python"),
        "-m",
        "pip",
        "--isolated",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]
    offline = [*pip, "--no-index", "--find-links", str(HERE / "wheels")]
    for what in (["-r", "requirements.txt"], ["--no-deps", "--no-build-isolation", "-e", "."]):
        if subprocess.run([*offline, *what], cwd=HERE, check=False).returncode:
            print(
                "The installation failed, see above; if a wheel is missing, the bundle has to be made again."
            )
            return 1
    print(f"Installed. To start: {programs / 'jupyter'} lab notebooks/00_start_here.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main())
