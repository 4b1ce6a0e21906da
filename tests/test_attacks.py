"""Mutated files, tables and requests: no crash, no hang, no file written elsewhere, no raw traceback."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEVER = ("raw", "hang", "message", "written", "run")
pytestmark = pytest.mark.posix


def run_campaign(part, count, seed, timeout, never=NEVER):
    """The figures of one part, in a process of its own: a crash of compiled code is seen, not suffered."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(HERE / "attacks.py"), part, str(count), "--seed", str(seed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-2000:]}"
    found = json.loads(done.stdout)
    assert found["cases"] == count
    assert [found[name] for name in never] == [0] * len(never), "\n".join(found["examples"])
    return found


@pytest.mark.parametrize(("part", "count"), [("files", 48), ("tables", 30), ("requests", 100)])
def test_a_short_campaign(part, count):
    """Without the limit of seconds: a busy machine must not fail the suite."""
    run_campaign(part, count, seed=1, timeout=900, never=[name for name in NEVER if name != "hang"])


@pytest.mark.slow
@pytest.mark.parametrize("part", ["files", "tables", "requests"])
def test_two_thousand_of_each(part):
    found = run_campaign(part, 2000, seed=0, timeout=1800)
    if part == "files":
        assert min(found["used"], found["refused"], found["refitted"], found["explored"]) >= 200


def test_the_page_of_promises_names_tests_that_exist():
    """Every promise names tests, and each of them is there, by itself or in the class that is named."""
    page = (HERE.parent / "docs" / "reference" / "promises.md").read_text()
    promises = [line for line in page.split("## The campaign")[0].splitlines() if line.startswith("| ")]
    promises = [line for line in promises if line != "| promise | test |"]
    assert len(promises) >= 30
    for line in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)((?:::\w+)+)`", line)
        assert named, line
        for path, names in named:
            body = ast.parse((HERE.parent / path).read_text()).body
            for name in names.split("::")[1:]:
                found = [node for node in body if getattr(node, "name", None) == name]
                assert found, f"{path}{names}"
                body = getattr(found[0], "body", [])
            assert name.startswith("test_")
