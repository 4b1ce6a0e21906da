"""What runs outside this checkout calls only what is in it: workflows, hooks and templates."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import large_files

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TARGETS = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
PYTEST = PROJECT["tool"]["pytest"]["ini_options"]


def parsed(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def commands(text):
    """The words of each line; a script that is fed to an interpreter is not ours to read."""
    return [] if "<<" in text else [shlex.split(line) for line in text.splitlines() if line.strip()]


def steps(path):
    return [step for job in parsed(path)["jobs"].values() for step in job["steps"]]


def check_command(words):
    """Every target, file, extra and marker that a command names is there."""
    program, *rest = words
    if program == "make":
        assert set(rest) <= TARGETS
    elif rest[:3] == ["-m", "pip", "install"]:
        assert all((ROOT / rest[at + 1]).is_file() for at, word in enumerate(rest) if word == "-c")
        extras = set(re.findall(r"\w+", "".join(re.findall(r"\.\[(.+?)\]", " ".join(rest)))))
        assert extras
        assert extras <= set(PROJECT["project"]["optional-dependencies"])
    elif rest[0].endswith(".py"):
        assert (ROOT / rest[0]).is_file()
    elif program == "sudo":
        assert rest[0] == "apt-get"
        assert rest[1] in ("update", "install")
    else:
        assert rest[:2] == ["-m", "pytest"], f"{words}: say here how to check it"
        marked = rest[rest.index("-m", 2) + 1] if "-m" in rest[2:] else ""
        known = {marker.split(":")[0] for marker in PYTEST["markers"]}
        assert set(re.findall(r"\w+", marked)) - {"not", "and", "or"} <= known
        named = [word for word in rest if "/" in word or word in ("src", "tests")]
        assert all((ROOT / name).exists() for name in named)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_commands_of_a_workflow_exist(path):
    found = [words for step in steps(path) if "run" in step for words in commands(step["run"])]
    assert found
    for words in found:
        check_command(words)


@pytest.mark.parametrize("words", ["make nothing", "pip -m pip install -c no.txt -e .[dev]", "python no.py"])
def test_a_command_that_does_not_exist_is_found(words):
    with pytest.raises(AssertionError):
        check_command(shlex.split(words))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_says_when_what_and_with_which_rights(path):
    workflow = parsed(path)
    assert "push" in workflow[True]  # YAML reads the word "on" as a truth value
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert {"runs-on", "steps"} <= set(job), name
        assert {job["needs"]} <= set(workflow["jobs"]) if "needs" in job else True
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step.get("uses", "a/b@v1"))


def test_every_python_that_we_promise_is_tested():
    versions = parsed(GITHUB / "workflows" / "tests.yml")["jobs"]["linux"]["strategy"]["matrix"]["python"]
    classifier = "Programming Language :: Python :: 3."
    promised = [c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if c.startswith(classifier)]
    assert versions == promised
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"


def test_tests_that_need_linux_are_left_out_elsewhere():
    """Their modules must import without what other systems lack; attacks.py runs in a process of its own."""
    lacking = re.compile(r"^import (pty|resource|fcntl|termios|pwd)\b", re.M)
    wrong = [
        path.name for path in (ROOT / "tests").rglob("test_*.py") if lacking.search(path.read_text("utf-8"))
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["bug.yml", "feature.yml"])
def test_issue_forms_ask_in_fields_of_their_own(name):
    form = parsed(GITHUB / "ISSUE_TEMPLATE" / name)
    assert {"name", "description", "body"} <= set(form)
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names) >= 3
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_the_commands_of_the_bug_form_run():
    fields = {
        field["id"]: field["attributes"] for field in parsed(GITHUB / "ISSUE_TEMPLATE" / "bug.yml")["body"]
    }
    compile(fields["example"]["value"], "bug.yml", "exec")
    asked = [
        shlex.split(line) for line in fields["versions"]["description"].splitlines() if line.startswith("  ")
    ]
    assert [words[0] for words in asked] == ["localw2", "python"]
    assert "localw2" in PROJECT["project"]["scripts"]
    for words in (["-m", "localw2.apps.cli", "--version"], asked[1][1:]):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert re.search(r"\d+\.\d+", done.stdout)


def test_hooks_are_local_and_call_tools_that_are_installed():
    (repository,) = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    needed = " ".join(PROJECT["project"]["optional-dependencies"]["dev"])
    for hook in repository["hooks"]:
        program, *rest = shlex.split(hook["entry"])
        assert hook["language"] == "system"
        assert program.startswith(".venv/bin/")
        tool = program.removeprefix(".venv/bin/")
        assert (ROOT / rest[0]).is_file() if tool == "python" else f"{tool}>=" in needed


def test_large_files_are_found(tmp_path):
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(bytes(1000))
    large.write_bytes(bytes(1024 * large_files.LARGEST + 1))
    (found,) = large_files.find_large([str(small), str(large), str(tmp_path / "deleted")])
    assert "large" in found
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()
    assert large_files.find_large([str(ROOT / name) for name in tracked]) == []
