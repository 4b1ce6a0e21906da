"""The recipe for conda asks for what pyproject.toml asks for; conda itself is not needed here."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from jinja2 import Environment, StrictUndefined

import localw2

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "conda" / "meta.yaml"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
CONDA_NAMES = {"torch": "pytorch"}  # where conda-forge has another name than PyPI


def load_file_regex(load_file, regex_pattern, from_recipe_dir):
    """What conda-build gives a recipe under this name."""
    assert from_recipe_dir
    return re.search(regex_pattern, (RECIPE.parent / load_file).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def recipe():
    template = Environment(undefined=StrictUndefined).from_string(RECIPE.read_text(encoding="utf-8"))
    return yaml.safe_load(template.render(load_file_regex=load_file_regex, PYTHON="python"))


def as_conda(requirement):
    """``torch>=2.6`` of pip is ``pytorch >=2.6`` of conda."""
    name, bound = re.fullmatch(r"([\w-]+)(>=[\d.]+)", requirement).groups()
    return f"{CONDA_NAMES.get(name, name)} {bound}"


def test_it_needs_what_the_package_needs(recipe):
    python = PROJECT["requires-python"]
    assert recipe["requirements"]["run"] == [f"python {python}", *map(as_conda, PROJECT["dependencies"])]


def test_it_builds_with_what_the_package_is_built_with(recipe):
    lowest = f"python {PROJECT['requires-python'].removeprefix('>=')}.*"
    built_with = map(as_conda, PYPROJECT["build-system"]["requires"])
    assert recipe["requirements"]["host"] == [lowest, *built_with, "pip"]
    assert recipe["test"]["requires"] == ["pip", lowest]


def test_it_describes_this_package(recipe):
    assert recipe["package"] == {"name": PROJECT["name"], "version": localw2.__version__}
    assert recipe["build"]["entry_points"] == [f"{name} = {at}" for name, at in PROJECT["scripts"].items()]
    assert recipe["about"]["summary"] == PROJECT["description"]
    assert recipe["about"]["license"] == PROJECT["license"]
    for path in (recipe["source"]["path"], Path("..") / recipe["about"]["license_file"]):
        assert (RECIPE.parent / path).exists()
