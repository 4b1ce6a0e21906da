"""The large tables of a known law: draws follow it, and a method that draws from it would score 1."""

import numpy as np
import pytest

import large_tables
from large_tables import TwoModes, compare_rows, describe, make_task


def test_draws_have_the_moments_of_the_law():
    law = TwoModes.at(np.random.default_rng(0).random((50, large_tables.COLUMNS)))
    draws = law.sample(20_000, np.random.default_rng(1))
    mean, variance = law.low + law.p * law.gap, law.std**2 + law.p * (1 - law.p) * law.gap**2
    assert np.abs((draws.mean(0) - mean) / np.sqrt(variance / 20_000)).max() < 4.5
    assert draws.var(0) == pytest.approx(variance, rel=0.06)


def test_every_column_matters():
    x = np.random.default_rng(2).random((200, large_tables.COLUMNS))
    law = TwoModes.at(x)
    for column in range(large_tables.COLUMNS):
        moved = x.copy()
        moved[:, column] = 1 - moved[:, column]
        other = TwoModes.at(moved)
        assert any(
            not np.allclose(getattr(law, name), getattr(other, name)) for name in ("low", "gap", "std", "p")
        )


def test_rows_are_fresh_and_repeat_with_the_seed():
    task, again, other = make_task(100, 0), make_task(100, 0), make_task(100, 1)
    assert np.array_equal(task.y, again.y)
    assert not np.array_equal(task.y, other.y)
    assert task.x.shape == (100, large_tables.COLUMNS)
    assert len(task.y_test) == large_tables.TEST_ROWS


def test_the_true_law_scores_one(monkeypatch, capsys):
    def measure(factory, python, task, split, limit):
        draws = TwoModes.at(task.x_test).sample(large_tables.DRAWS, np.random.default_rng(9))
        seconds = {"fit_seconds": 1.0, "draw_seconds_1000_rows": 0.1}
        return {"status": "done"} | large_tables.score_draws(task.y_test, draws) | seconds

    monkeypatch.setattr(large_tables, "measure", measure)
    found = compare_rows(50, [large_tables.OURS], limit=1.0)[large_tables.OURS]
    assert found["ratio"] == pytest.approx(1, abs=0.003)
    assert found["coverage"] == pytest.approx(0.9, abs=4.5 * (0.09 / large_tables.TEST_ROWS) ** 0.5)
    assert "1.00" in capsys.readouterr().out
    assert describe({"status": "too slow"}) == "too slow"
