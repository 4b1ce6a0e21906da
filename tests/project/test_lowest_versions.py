"""The lowest versions that the tests run with are those that pyproject.toml states."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
PINS = dict(line.lower().split("==") for line in LINES if "==" in line)
NOT_TESTED = {"docs"}  # the pages are built with the newest versions only
TOOLS = {"build", "check-wheel-contents", "mypy", "ruff", "twine"}


def stated():
    """Every package with its lower bound, without those of the pages and of the tools."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lists = [project["dependencies"], *(extras[name] for name in extras.keys() - NOT_TESTED)]
    found = [re.fullmatch(r"([\w-]+)>=([\d.]+)", word.lower()) for words in lists for word in words]
    return {match[1]: match[2] for match in found if match and match[1] not in TOOLS}


def test_every_bound_is_pinned_at_its_lowest():
    assert len(stated()) > 20
    for name, bound in stated().items():
        assert f"{PINS[name]}.".startswith(f"{bound}."), f"{name}>={bound} is pinned at {PINS[name]}"
