"""Code of docs/how-to/adapters.md that needs other packages, and what the page says about its results."""

import doctest
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from localw2.metrics import coverage, interval_score

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "adapters.md").read_text(encoding="utf-8")


def run_block(package, seed=0):
    """The names that the page's block with this package leaves behind."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    (code,) = [block for block in blocks if f"from {package}." in block]
    names = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what these packages will change
        exec(code.replace("default_rng(0)", f"default_rng({seed})"), names)
    return names


def row_of_table(found, interval):
    """Coverage of all, quiet and loud rows, in percent, and the interval score."""
    lower, upper = interval
    rows = (slice(None), found["quiet"], found["loud"])
    covered = [100 * coverage(found["y_new"][at], lower[at], upper[at]) for at in rows]
    return [*covered, interval_score(found["y_new"], lower, upper).mean()]


def test_intervals_beside_those_of_mapie(capsys):
    pytest.importorskip("mapie")
    found = run_block("mapie")
    rows = {name: row_of_table(found, interval) for name, interval in found["intervals"].items()}
    assert len(capsys.readouterr().out.splitlines()) == len(rows) == 3
    # 200 held-out and 1000 new rows: the coverage has a standard deviation of 2.3 %
    assert all(82 < row[0] < 98 for row in rows.values())
    assert rows["localw2"][3] < rows["MAPIE, split"][3]


@pytest.mark.slow
def test_the_table_of_the_page():
    pytest.importorskip("mapie")
    made = []
    for seed in range(10):
        found = run_block("mapie", seed)
        centre, half = found["X_new"][:, 0], 1.6448536 * found["X_new"][:, 1]
        intervals = [*found["intervals"].values(), (centre - half, centre + half)]
        made.append([row_of_table(found, interval) for interval in intervals])
    printed = re.findall(r"^\| .+? \| (\d+) % \| (\d+) % \| (\d+) % \| ([\d.]+) \|$", PAGE, re.M)
    *shares, scores = np.mean(made, 0).T
    *printed_shares, printed_scores = np.array(printed, float).T
    # Rounding, and what other versions of the forests may change
    np.testing.assert_allclose(shares, printed_shares, atol=1.5)
    np.testing.assert_allclose(scores, printed_scores, rtol=0.01)


def test_paths_follow_the_process():
    """Quantiles of the page's paths beside those of the process itself, whose spread is about 2."""
    names, rng = {}, np.random.default_rng(1)
    for example in doctest.DocTestParser().get_examples(PAGE):
        exec(example.source, names)
    state = np.full(20_000, names["series"][-1])
    for step in range(12):
        state = 0.6 * state + (0.3 + 0.4 * abs(state)) * rng.normal(size=state.size)
        levels = [0.05, 0.5, 0.95]
        forecast = np.quantile(names["paths"][:, 3 + step], levels)
        np.testing.assert_allclose(forecast, np.quantile(state, levels), atol=0.3)


def test_a_reduction_with_sktime():
    pytest.importorskip("sktime")
    found = run_block("sktime")
    last_year = np.asarray(found["past"])[-12:]
    assert found["forecast"].index.equals(found["future"].index)
    assert found["error"] < np.abs(np.asarray(found["future"]) - last_year).mean()
