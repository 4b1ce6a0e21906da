"""The code map shows the code as it is: picture, lists and trace are what the scripts make of it now."""

import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

import code_map
import rooms
import trace_fit
from pages import PAGE, replace_part

ABOVE = {room for layer in rooms.LAYERS[1:] for room in layer}


def test_the_picture_and_the_list_are_up_to_date():
    edges = rooms.room_imports()
    page = PAGE.read_text(encoding="utf-8")
    assert code_map.PICTURE.read_text(encoding="utf-8") == code_map.draw(edges), "run `make code-map`"
    assert replace_part(page, "imports", code_map.listed(edges)) == page, "run `make code-map`"


def test_the_trace_is_up_to_date_and_straight():
    """In a process of its own: what an earlier test left in a cache would not be called again."""
    command = [sys.executable, trace_fit.__file__, "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_room_is_drawn_and_explained():
    assert set(code_map.COLUMNS) == ABOVE
    assert set(code_map.TITLES) == set(rooms.LEVEL)
    table = PAGE.read_text(encoding="utf-8").partition("## What goes where")[2]
    assert set(re.findall(r"^\| `(\w+)(?:/|\.py)` \| \S", table, re.M)) == set(rooms.LEVEL)


def test_files_that_the_page_names_are_there():
    named = set(re.findall(r"`([\w/]+(?:/|\.py))`", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 30
    places = (rooms.PACKAGE, rooms.PACKAGE / "estimators", PAGE.parents[2])
    missing = sorted(name for name in named if not any((place / name).exists() for place in places))
    assert missing == []


def test_boxes_do_not_overlap_and_arrows_meet_no_other_room():
    centers = {room: code_map.center(room) for room in ABOVE}
    assert len(set(centers.values())) == len(centers)
    for start, goal in code_map.needed(rooms.room_imports()):
        assert centers[start][1] < centers[goal][1]
        assert code_map.obstructed(code_map.route(start, goal), (start, goal)) == 0


def test_arrows_and_their_chains_are_the_imports():
    edges = rooms.room_imports()
    arrows = code_map.needed(edges)

    def reached(room):
        return {end for start, goal in arrows if start == room for end in {goal} | reached(goal)}

    for room in ABOVE:
        assert edges[room] & ABOVE <= reached(room)
    assert all(goal in edges[start] for start, goal in arrows)
    drawn = ElementTree.fromstring(code_map.draw(edges)).iter("{http://www.w3.org/2000/svg}title")
    assert {title.text for title in drawn} == {f"{start} imports {goal}" for start, goal in arrows}


def test_the_trace_sees_a_file_that_is_entered_twice(monkeypatch, tmp_path):
    """A package of three files with a known way through them."""
    (tmp_path / "estimators").mkdir()
    monkeypatch.setattr(trace_fit, "PACKAGE", tmp_path)
    spaces = {}
    for file, code in {
        "estimators/fit.py": "def fit(x): check(x); low(x); check(x); change(x); check(x)",
        "estimators/checks.py": "def check(x): return inner(x)\ndef inner(x): low(x)",
        "estimators/scales.py": "def change(x): return [low(x) for _ in range(2)]",
        "below.py": "def low(x): pass",
    }.items():
        exec(compile(code, str(tmp_path / file), "exec"), spaces)
    trace = trace_fit.Trace()
    sys.setprofile(trace)
    try:
        spaces["fit"](np.zeros(trace_fit.N_ROWS))
    finally:
        sys.setprofile(None)
    assert [(entry.file, entry.functions, entry.below) for entry in trace.entries] == [
        ("estimators/fit.py", ["fit(x)"], ["below.py"]),
        ("estimators/checks.py", ["check(x)"], ["below.py"]),
        ("estimators/scales.py", ["change(x)"], ["below.py"]),
        ("estimators/checks.py", ["check(x)"], ["below.py"]),
    ]
    assert trace_fit.repeated(trace.entries) == {"estimators/checks.py": 2}


def test_a_page_without_the_markers_is_refused():
    with pytest.raises(ValueError, match="imports"):
        replace_part("# A page", "imports", "text")
