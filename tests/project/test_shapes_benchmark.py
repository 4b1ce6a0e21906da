"""The comparison on laws of all shapes: scores that know the truth, and a page that follows from records."""

import json
import re

import numpy as np
import pytest

import shapes
import shapes_page
from ledger import Stamp
from localw2.datasets import ZOO


@pytest.fixture
def small(monkeypatch):
    for name, value in {"TEST_ROWS": 200, "REPEATS": 25, "REFERENCE": 10}.items():
        monkeypatch.setattr(shapes, name, value)


def draw_and_score(problem, change=lambda draws: draws):
    _, _, x_test, y_test = shapes.make_rows(problem, 10, 0)
    return shapes.score(problem, y_test, change(shapes.draw_truth(problem, x_test, 20, 0)), 0)


@pytest.mark.parametrize("problem", ZOO)
def test_the_true_law_is_near_itself_and_a_wider_one_is_not(small, problem):
    def widen(draws):
        center = draws.mean(0)
        return center + 1.5 * (draws - center)

    found, wide = draw_and_score(problem), draw_and_score(problem, widen)
    assert found["w1"] < 0.1
    assert wide["w1"] > 2 * found["w1"]
    assert wide["w2"] > found["w2"] >= found["w1"]
    # Means over 200 rows of 20 draws each: 1.5 times the spread costs more than their noise.
    assert wide["score"] > found["score"]


def test_a_shift_is_the_distance():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(3, 400))
    found = shapes.compare((y + np.array([[0.0], [0.5], [2.0]])).ravel(), np.repeat(y, 5, axis=1).ravel(), 3)
    np.testing.assert_allclose(found, [[0, 0], [0.5, 0.5], [2, 2]], atol=1e-12)
    pairs = rng.normal(size=(400, 2))
    w1, w2 = shapes.compare(pairs + np.array([3.0, 4.0]), pairs, 1)[0]
    # The component of the shift in a random direction: 5 |cos|, whose mean is 2 / pi and mean square 1/2.
    assert w1 == pytest.approx(5 * 2 / np.pi, rel=0.01)
    assert w2 == pytest.approx(5 / np.sqrt(2))


@pytest.mark.parametrize("problem", shapes.PROJECTIONS)
def test_margins_alone_do_not_pass(small, problem):
    """Outputs drawn independently of each other keep their margins; each projection must tell."""

    def separate(draws):
        return np.stack([draws[..., 0], np.random.default_rng(5).permuted(draws[..., 1], axis=0)], -1)

    joint, margins = draw_and_score(problem), draw_and_score(problem, separate)
    for name in shapes.PROJECTIONS[problem]:
        assert margins[name] > 4 * joint[name]
    assert margins["w1"] > 1.5 * joint["w1"]


def test_the_valley_of_the_humps(small):
    true = ZOO["humps"].cdf([0.0], [-0.8, 0.8])
    assert float(np.diff(true[:, 0])[0]) == pytest.approx(0.0082, abs=5e-5)
    n = 11 * 25 * shapes.FEWEST
    assert draw_and_score("humps")["valley"] == pytest.approx(0.0082, abs=4.5 * np.sqrt(0.0082 / n))


def test_every_method_gets_the_same_rows_and_test_rows_do_not_depend_on_their_number():
    first, again, larger = (shapes.make_rows("fork", rows, 1) for rows in (20, 20, 30))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(first[2], larger[2])
    np.testing.assert_array_equal(first[3], larger[3])
    assert not np.isin(first[0], larger[0]).any()


def test_a_method_runs_in_a_process_of_its_own():
    x, y, x_test, _ = shapes.make_rows("fork", 150, 0)
    draws, seconds = shapes.draw_fitted("climatology", x, y, x_test[:30], 0)
    assert draws.shape == (shapes.DRAWS, 30)
    assert np.isin(draws, y).all()
    assert seconds > 0


def test_records_of_others_stay(tmp_path, monkeypatch):
    path = tmp_path / "shapes.json"
    monkeypatch.setattr(shapes, "stamp_method", lambda name: Stamp(name, {"numpy": "1"}))
    monkeypatch.setattr(shapes, "measure", lambda settings: {"score": 1.0})
    cell = {"problem": "fork", "rows": 1000, "seed": 0}
    for name in ("engression", "localw2"):
        shapes.open_ledger((name,), path).complete([cell | {"method": name}])
    found = json.loads(path.read_text())
    assert [record["settings"]["method"] for record in found["records"]] == ["localw2", "engression"]
    assert found["versions"] == {"engression": {"numpy": "1"}, "localw2": {"numpy": "1"}}


class TestPage:
    @pytest.fixture
    def records(self):
        scores = {"localw2": 1.01, "engression": 1.2, "treeffuser": 1.1, shapes.TRUTH: 1.0}
        found = []
        for problem in ZOO:
            for rows in (1000, 5000):
                for seed in (0, 1):
                    for method, score in scores.items():
                        own = score - 1 + 0.02 * (problem == "fork" and method == "localw2")
                        values = {
                            "score": score + own + 0.1 * seed * score,
                            "w1": own + 0.02,
                            "w2": own + 0.05,
                        }
                        values |= {"fit_seconds": 2.0} if method != shapes.TRUTH else {}
                        settings = {"problem": problem, "rows": rows, "seed": seed, "method": method}
                        found.append(settings | values)
        return found

    def test_says_what_the_records_say(self, records):
        text = shapes_page.state_summary(records)
        assert "at most 1.039 times the true law's (fork)" in text
        assert f"best peer's on {len(ZOO)} of {len(ZOO)} problems" in text
        assert shapes_page.state_summary([]) == shapes_page.NOTHING
        assert "| humps | **.030** | .220 | .120 | - | - | .020 |" in shapes_page.BLOCKS["w1"](records)
        assert "| 5000 | 2.0 | 2.0 | 2.0 | - | - |" in shapes_page.tabulate_seconds(records)
        assert "| 1000 rows | 2 | 2 | 2 | 0 | 0 | 2 |" in shapes_page.state_seeds(records)

    def test_tables_are_rectangular(self, records):
        for make in shapes_page.BLOCKS.values():
            for block in re.findall(r"(?:^\|.*\|$\n?)+", make(records), re.MULTILINE):
                assert len({line.count(" | ") for line in block.splitlines()}) == 1

    def test_shows_the_committed_records(self):
        text = shapes_page.PAGE.read_text()
        markers = [f"<!-- shapes:{end} {name} -->" for name in shapes_page.BLOCKS for end in ("begin", "end")]
        assert all(text.count(marker) == 1 for marker in markers)
        filled = shapes_page.fill_page(text, shapes_page.BLOCKS, shapes_page.read_records(), "shapes")
        assert filled == text, "run python benchmarks/shapes_page.py"

    def test_the_picture_is_drawn(self, tmp_path):
        class Climatology:
            def fit(self, x, y):
                self.y = y
                return self

            def sample(self, x, n_samples, random_state):
                rng = np.random.default_rng(random_state)
                return self.y[rng.integers(len(self.y), size=(n_samples, len(x)))]

        shapes_page.draw_zoo(tmp_path / "shapes.png", 50, Climatology, shown=20)
        assert (tmp_path / "shapes.png").stat().st_size > 10_000
