"""A virtual environment for each peer, made when first needed: peers pin older versions of our packages.

They are folders in ``.venvs/``, which is not under version control; delete one to have it made again. torch
is the version pinned in ``constraints.txt``, as everywhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venvs"
REQUIREMENTS = {
    "ngboost": ("ngboost==0.5.11",),
    "engression": ("engression==1.1.0",),
    "quantile-forest": ("quantile-forest==1.4.2",),
    "treeffuser": ("treeffuser==0.2.0",),
    "diffgbm": ("diffgbm==0.1.2",),
    "lightgbm": ("lightgbm==4.7.0", "scikit-learn"),
    "catboost": ("catboost==1.2.10",),
}
_VERSIONS = """
import json, sys
from importlib.metadata import version
print(json.dumps([version(package) for package in sys.argv[1:]]))
"""


def find_python(environment: str | None) -> str:
    """The interpreter of an environment, which is made if it is missing or has other requirements."""
    if environment is None:
        return sys.executable
    home = FOLDER / environment
    python, mark = home / "bin" / "python", home / "requirements"
    wanted = "\n".join(REQUIREMENTS[environment])
    if not (mark.exists() and mark.read_text() == wanted):
        print(f"making the environment for {environment} in {FOLDER.name}/", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install += ["-c", str(ROOT / "constraints.txt")]
        subprocess.run([str(python), *install, *REQUIREMENTS[environment]], check=True)
        mark.write_text(wanted)
    return str(python)


@cache
def find_versions(environment: str | None, packages: tuple[str, ...]) -> dict[str, str]:
    """The versions of the packages in an environment."""
    command = [find_python(environment), "-c", _VERSIONS, *packages]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(zip(packages, json.loads(found), strict=True))
