"""Modules whose optional package is not installed have no doctests to run."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("skpro") else ["src/localw2/apps/skpro.py"]
