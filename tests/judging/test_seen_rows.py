import numpy as np
import pytest

from localw2.judging.seen_rows import SeenRows, judge_seen


def rows(n, seed=0, p=3, d=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, p)), rng.normal(size=(n, d))


def test_a_small_set_is_known_exactly():
    x, y = rows(1000)
    seen = SeenRows.of(x[:600], y[:600])
    assert seen.is_complete
    assert seen.share(x, y) == 0.6
    assert seen.share(x[600:], y[600:]) == 0.0
    assert seen.share(x[:600], y[:600]) == 1.0


def test_a_large_set_is_known_in_part():
    x, y = rows(60_000)
    seen = SeenRows.of(x[:50_000], y[:50_000])
    assert not seen.is_complete
    assert len(seen.codes) == 4096
    assert seen.share(x[50_000:], y[50_000:]) == 0.0
    # A share of .5 seen through about 20000 * 4096 / 50000 rows: four standard errors.
    assert abs(seen.share(x[40_000:], y[40_000:]) - 0.5) < 4 * 0.5 / np.sqrt(20_000 * 4096 / 50_000)


def test_nothing_can_be_told_of_few_rows_and_a_small_sketch():
    x, y = rows(5000)
    seen = SeenRows.of(x, y, size=1)
    above = SeenRows.of(x, y, size=2).codes[1:]  # some row has this hash, which is above the only one kept
    shares = {seen.share(x[i : i + 1], y[i : i + 1]) for i in range(200)}
    assert len(above) == 1
    assert any(np.isnan(share) for share in shares)


@pytest.mark.parametrize("shape", [(50,), (50, 1), (50, 2), (50, 4, 2)])
def test_every_number_of_a_row_counts(shape):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(50, 2)), rng.normal(size=shape)
    seen = SeenRows.of(x, y)
    for changed in (x, y):
        kept = changed.copy()
        flat = changed.reshape(50, -1)
        flat[:10, -1] += 1e-12
        assert seen.share(x, y) == 0.8
        changed[:] = kept
    assert seen.share(x, y) == 1.0


def test_order_copies_shape_and_the_sign_of_zero_do_not_count():
    x, y = np.array([[0.0], [1.0], [1.0]]), np.array([2.0, -0.0, -0.0])
    seen = SeenRows.of(x, y)
    assert seen.n_distinct == 2
    assert seen.share(-x[:1], y[:1, None]) == 1.0
    np.testing.assert_array_equal(seen.codes, SeenRows.of(x[::-1], y[::-1]).codes)
    # x and y exchanged is another row
    assert seen.share(y[:1, None], x[:1, 0]) == 0.0


def test_missing_outputs_and_integers():
    x, y = np.arange(4), np.array([1.0, np.nan, 3.0, 4.0])
    assert SeenRows.of(x, y).share(x.astype(float), np.array([1.0, -np.nan, 3.0, 5.0])) == 0.75


def test_hashes_fit_a_file_of_int64():
    seen = SeenRows.of(*rows(100))
    assert seen.codes.dtype == np.int64
    assert (seen.codes >= 0).all()
    again = SeenRows(seen.codes.copy(), seen.n_distinct)
    assert again.share(*rows(100)) == 1.0


def test_sketches_can_be_compared_and_kept_in_sets():
    x, y = rows(50)
    seen, same, other = SeenRows.of(x, y), SeenRows.of(x[::-1], y[::-1]), SeenRows.of(x + 1, y)
    assert seen == same
    assert seen != other
    assert seen != SeenRows(seen.codes, seen.n_distinct + 1)
    assert seen != "another kind"
    assert len({seen, same, other}) == 2


def test_a_few_seen_rows_are_not_held_against_a_test():
    x, y = rows(1000)
    assert judge_seen(SeenRows.of(x[:50], y[:50]), x, y) == (0.05, False)
    assert judge_seen(SeenRows.of(x[:60], y[:60]), x, y) == (0.06, True)
    share, seen = judge_seen(SeenRows.of(x, y, size=1), x[:1] + 1, y[:1])
    assert np.isnan(share) or share == 0
    assert not seen


@pytest.mark.parametrize("n_train", [100, 1000, 10_000])
@pytest.mark.parametrize("n_cells", [30, 1000])
def test_new_rows_of_discrete_data_are_rarely_judged_as_seen(n_cells, n_train):
    rng = np.random.default_rng(n_cells)
    weights = 1 / np.arange(1, n_cells + 1)  # some cells are much more frequent
    judged = []
    for _ in range(40):
        x = rng.choice(n_cells, n_train + 30, p=weights / weights.sum()).astype(float)
        y = rng.integers(0, 3, len(x)).astype(float)
        judged.append(judge_seen(SeenRows.of(x[30:], y[30:]), x[:30], y[:30])[1])
    # Beyond three standard errors of a bound: none of these seeded sets.
    assert not any(judged)


def test_copies_within_the_training_rows_do_not_hide_that_all_were_seen():
    x, y = rows(400)
    drawn = np.random.default_rng(0).integers(0, 400, 400)  # as the bootstrap does
    unique = np.unique(drawn)
    assert judge_seen(SeenRows.of(x[drawn], y[drawn]), x[unique], y[unique]) == (1.0, True)


def test_more_distinct_rows_than_rows_are_refused():
    with pytest.raises(ValueError, match="n_rows"):
        SeenRows(np.array([1, 2]), 2, 1)


@pytest.mark.parametrize(
    ("codes", "n", "message"),
    [
        (np.array([2, 1]), 2, "ascending"),
        (np.array([1, 1]), 2, "ascending"),
        (np.array([-1, 1]), 2, ">= 0"),
        (np.array([1.0, 2.0]), 2, "int64"),
        (np.empty(0, np.int64), 0, "non-empty"),
        (np.array([[1, 2]]), 2, "shape"),
        (np.array([1, 2]), 1, "n_distinct"),
    ],
)
def test_a_forged_sketch_is_refused(codes, n, message):
    with pytest.raises(ValueError, match=message):
        SeenRows(codes, n)


def test_bad_rows():
    x, y = rows(5)
    with pytest.raises(ValueError, match="pairs"):
        SeenRows.of(x, y[:4])
    with pytest.raises(ValueError, match="size"):
        SeenRows.of(x, y, size=0)
    with pytest.raises(ValueError, match="NaN"):
        SeenRows.of(np.full((5, 3), np.nan), y)
