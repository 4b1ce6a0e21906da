"""The theory note is built from its source and the records."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("typst")
    script = ROOT / "paper" / "note" / "build.py"
    out = tmp_path_factory.mktemp("note") / "note.pdf"
    runpy.run_path(str(script))["build"](out)
    return out


def test_one_command_makes_a_pdf(built):
    assert built.read_bytes().startswith(b"%PDF")


def test_its_numbers_are_those_of_the_page_on_accuracy(built):
    values = json.loads((ROOT / "build" / "note" / "values.json").read_text())
    page = (ROOT / "docs" / "accuracy.md").read_text()
    assert f"the CRPS of localw2 is {values['ratio']} times" in page, values


def test_every_figure_of_the_source_is_drawn(built):
    source = (ROOT / "paper" / "note" / "note.typ").read_text()
    named = [part.split('"')[1] for part in source.split("image(figures + ")[1:]]
    assert named
    assert all((ROOT / "build" / "note" / name).is_file() for name in named)


def test_what_it_says_of_the_drawn_tables_is_on_the_page_too(built):
    values = json.loads((ROOT / "build" / "note" / "values.json").read_text())
    page = " ".join((ROOT / "docs" / "accuracy.md").read_text().split())
    cells = " | ".join(str(values[name]) for name in ("drawn", "mean", "lowest", "worst"))
    assert f"| **the best peer of each table** | {cells} (" in page, values
