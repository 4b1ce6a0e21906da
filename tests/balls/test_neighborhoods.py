import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

import localw2.balls.search
from localw2 import Euclidean, LazyNeighborhoods, Mahalanobis, Neighborhoods, Weighted
from localw2.balls.ragged import Balls, merge
from strategies import quiet_within


@st.composite
def inputs(draw):
    n, p = draw(st.integers(1, 40)), draw(st.integers(1, 3))
    x = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).uniform(size=(n, p))
    return x.round(1) if draw(st.booleans()) else x


def rows_of_each(hoods):
    return [hoods.ball(int(b)).tolist() for b in hoods.ball_of_row]


def brute_force(x, delta):
    gaps = np.linalg.norm(x[:, None] - x[None], axis=-1)
    return [np.flatnonzero(row <= delta * (1 + 1e-8)).tolist() for row in gaps]


@given(inputs(), st.sampled_from([0.0, 0.1, 0.3, 1.0, np.inf]))
def test_within_finds_what_brute_force_finds(x, delta):
    assert rows_of_each(quiet_within(x, delta)) == brute_force(x, delta)


@given(inputs(), st.sampled_from([0.1, 0.3]))
def test_identical_balls_are_stored_once_and_weights_count_rows(x, delta):
    hoods = quiet_within(x, delta)
    distinct = {tuple(ball) for ball in rows_of_each(hoods)}
    assert hoods.n_balls == len(distinct)
    assert hoods.weights.sum() == len(x)
    assert torch.equal(hoods.weights.long(), torch.bincount(hoods.ball_of_row, minlength=hoods.n_balls))
    assert hoods.n_edges == int(hoods.sizes.sum()) == int(hoods.indptr[-1])


@given(inputs(), st.integers(1, 40))
def test_nearest_holds_the_row_and_the_k_smallest_distances(x, k):
    k = min(k, len(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hoods = Neighborhoods.nearest(x, k)
    for i, ball in enumerate(rows_of_each(hoods)):
        gaps = np.linalg.norm(x - x[i], axis=1)
        assert len(set(ball)) == k
        assert i in ball
        np.testing.assert_allclose(np.sort(gaps[ball]), np.sort(gaps)[:k], atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("offset", [0.0, 3.0, -7.0])
@pytest.mark.parametrize("step", [0.1, 0.3, 1e-3])
def test_a_grid_gives_the_balls_a_person_expects(dtype, offset, step):
    x = (offset + step * np.arange(101)).astype(dtype)
    sizes = Neighborhoods.within(x, step).row_sizes()
    assert sizes[1:-1].unique().tolist() == [3]
    assert quiet_within(x, 0.99 * step).row_sizes().unique().tolist() == [1]
    plane = np.stack(np.meshgrid(x[:7], x[:7]), -1).reshape(-1, 2)
    assert Neighborhoods.within(plane, step).row_sizes().reshape(7, 7)[1:-1, 1:-1].unique().tolist() == [5]


def test_norms_change_the_balls():
    x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert rows_of_each(quiet_within(x, 1, Weighted([2.0, 1.0]))) == [[0, 2], [1], [0, 2]]
    assert rows_of_each(quiet_within(x, 1, Mahalanobis([[0.25, 0.0], [0.0, 4.0]]))) == [[0, 1], [0, 1], [2]]
    assert rows_of_each(quiet_within(x, 1, Euclidean())) == [[0, 1, 2], [0, 1], [0, 2]]


def test_min_size_drops_small_balls_and_keeps_the_map():
    x = np.array([0.0, 0.1, 0.2, 5.0, 9.0, 9.1])
    hoods = Neighborhoods.within(x, 0.15, min_size=2)
    assert hoods.ball_of_row.tolist() == [0, 1, 2, -1, 3, 3]
    assert hoods.sizes.tolist() == [2, 3, 2, 2]
    assert hoods.weights.tolist() == [1, 1, 1, 2]
    assert hoods.row_sizes().tolist() == [2, 3, 2, 0, 2, 2]
    with pytest.raises(ValueError, match=r"4 rows .*3"):
        Neighborhoods.within(x, 0.15, min_size=4)


def test_max_size_thins_at_random_but_keeps_the_centre():
    x = np.random.default_rng(0).uniform(size=(300, 2))
    full = Neighborhoods.within(x, 0.3)
    thin = Neighborhoods.within(x, 0.3, max_size=10, random_state=1)
    for i, (all_rows, some) in enumerate(zip(rows_of_each(full), rows_of_each(thin), strict=True)):
        assert set(some) <= set(all_rows)
        assert i in some
        assert len(some) == min(10, len(all_rows))
    again = Neighborhoods.within(x, 0.3, max_size=10, random_state=1)
    other = Neighborhoods.within(x, 0.3, max_size=10, random_state=np.random.default_rng(2))
    assert torch.equal(thin.rows, again.rows)
    assert not torch.equal(thin.rows, other.rows)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: Neighborhoods.nearest(x, 20, random_state=0),
        lambda x: Neighborhoods.within(x, 0.5, max_size=20, random_state=0),
        lambda x: Neighborhoods.nearest(x, 60, max_size=20, random_state=0),
        lambda x: Neighborhoods.within(x, np.inf, max_size=20, random_state=0),
    ],
)
def test_on_repeated_x_every_row_serves_about_equally(build):
    x = np.random.default_rng(0).integers(0, 5, 2000).astype(float)
    hoods = build(x)
    copies = torch.repeat_interleave(hoods.weights.long(), hoods.sizes)
    memberships = torch.bincount(hoods.rows.repeat_interleave(copies), minlength=2000)
    # 20 balls a row on average. Cyclic windows give 20 to every row of one x; independent subsets give a
    # binomial spread, whose largest of 2000 is 5 standard deviations off in 1e-3 of seeds.
    assert memberships.sum() == 20 * 2000
    assert (memberships - 20).abs().max() < 1 + 5 * np.sqrt(20)


@pytest.mark.parametrize("max_size", [None, 30])
def test_no_chunk_of_a_search_is_larger_than_promised(monkeypatch, max_size):
    monkeypatch.setattr(localw2.balls.search, "CHUNK_EDGES", 5000)
    rng = np.random.default_rng(0)
    x = np.concatenate([np.arange(2000) * 10.0, 1e6 + rng.uniform(size=600)])[:, None]  # sparse, then dense
    search = localw2.balls.search.radius_search(x, 2.0, Euclidean(), max_size, 0)
    found = [len(balls.rows) for balls in search.chunks(np.arange(len(x)))]
    assert max(found) <= 5000
    assert sum(found) == 2000 + 600 * (max_size or 600)


def test_copies_of_one_x_are_thinned_without_a_quadratic_search():
    hoods = Neighborhoods.within(np.zeros(100_000), 1.0, max_size=10, random_state=0)
    assert hoods.sizes.unique().tolist() == [10]
    assert hoods.weights.sum() == 100_000


def test_thinning_is_uniform_over_the_other_rows():
    n, kept, seeds = 21, 6, 400
    counts = np.zeros(n)
    for seed in range(seeds):
        hoods = Neighborhoods.within(np.zeros(n), 1.0, max_size=kept, random_state=seed)
        counts += np.bincount(hoods.ball(int(hoods.ball_of_row[0])), minlength=n)
    assert counts[0] == seeds
    chance = (kept - 1) / (n - 1)
    deviations = (counts[1:] - seeds * chance) / np.sqrt(seeds * chance * (1 - chance))
    # 20 near-normal deviations: the largest exceeds 4 with probability 1.3e-3.
    assert np.abs(deviations).max() < 4


@given(inputs(), st.data())
def test_block_is_the_same_balls_on_fewer_rows(x, data):
    hoods = quiet_within(x, 0.3)
    balls = data.draw(st.lists(st.integers(0, hoods.n_balls - 1), min_size=1, unique=True))
    rows, part = hoods.block(balls)
    assert [rows[part.ball(b)].tolist() for b in range(part.n_balls)] == [
        hoods.ball(b).tolist() for b in balls
    ]
    assert torch.equal(part.weights, hoods.weights[balls])
    for row, own in zip(rows, part.ball_of_row, strict=True):
        ball = int(hoods.ball_of_row[row])
        assert own == (balls.index(ball) if ball in balls else -1)


@given(inputs(), st.data(), st.sampled_from(["within", "nearest", "thinned", "thinned nearest"]))
def test_lazy_blocks_hold_the_balls_that_the_full_graph_has(x, data, kind):
    k = max(1, len(x) // 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lazy, full = (
            {
                "within": lambda c: c.within(x, 0.3),
                "nearest": lambda c: c.nearest(x, k, random_state=7),
                "thinned nearest": lambda c: c.nearest(x, k, max_size=max(1, k // 2), random_state=7),
                "thinned": lambda c: c.within(x, 0.5, max_size=3, random_state=7),
            }[kind](c)
            for c in (LazyNeighborhoods, Neighborhoods)
        )
    assert torch.equal(lazy.sizes, full.row_sizes())
    centres = data.draw(st.lists(st.integers(0, len(x) - 1), min_size=1, unique=True))
    rows, part = lazy.block(centres)
    assert part.weights.sum() == len(centres)
    for row, own in zip(rows.tolist(), part.ball_of_row.tolist(), strict=True):
        if row in centres:
            assert rows[part.ball(own)].tolist() == full.ball(int(full.ball_of_row[row])).tolist()
        else:
            assert own == -1


def test_lazy_drops_small_balls_too():
    lazy = LazyNeighborhoods.within([0.0, 0.1, 5.0], 0.2, min_size=2)
    assert lazy.n_balls == 2
    assert lazy.ball_of_row.tolist() == [0, 1, -1]
    assert "2 balls" in repr(lazy)
    with pytest.raises(ValueError, match="3 rows"):
        LazyNeighborhoods.within([0.0, 0.1, 5.0], 0.2, min_size=3)


def test_chunked_search_equals_one_chunk(monkeypatch):
    x = np.random.default_rng(3).uniform(size=(500, 2))
    whole = Neighborhoods.within(x, 0.1)
    monkeypatch.setattr(localw2.balls.search, "CHUNK_EDGES", 50)
    parts = Neighborhoods.within(x, 0.1)
    assert torch.equal(whole.rows, parts.rows)
    assert torch.equal(whole.indptr, parts.indptr)


def test_copies_of_one_x_do_not_cost_a_quadratic_graph():
    hoods = Neighborhoods.within(np.zeros((200_000, 3)), 0.1)
    assert (hoods.n_balls, hoods.n_edges, hoods.weights.tolist()) == (1, 200_000, [200_000])
    far = Neighborhoods.within(np.repeat([0.0, 9.0], 50_000), 0.1)
    assert (far.n_balls, far.weights.tolist()) == (2, [50_000, 50_000])


def test_a_collision_of_hashes_does_not_merge_different_balls(monkeypatch):
    monkeypatch.setattr("localw2.balls.ragged._keys", lambda balls: np.zeros(len(balls.sizes), np.uint64))
    balls = Balls(np.array([2, 2, 1, 2]), np.array([0, 1, 0, 2, 0, 0, 1]))
    merged, number, weights = merge(balls, np.ones(4))
    assert number.tolist() == [0, 1, 2, 0]
    assert weights.tolist() == [2, 1, 1]
    assert merged.rows.tolist() == [0, 1, 0, 2, 0]


@given(inputs(), st.sampled_from([1.0, 1.5, 10.0]), st.sampled_from([None, 1, 12]))
def test_buckets_hold_every_ball_once_with_bounded_padding(x, growth, max_elements):
    hoods = quiet_within(x, 0.3)
    buckets = hoods.buckets(growth, max_elements)
    assert sorted(b for bucket in buckets for b in bucket.balls.tolist()) == list(range(hoods.n_balls))
    for bucket in buckets:
        width = bucket.rows.shape[1]
        assert width <= growth * hoods.sizes[bucket.balls].min()
        assert max_elements is None or len(bucket.rows) == 1 or bucket.rows.numel() <= max_elements
        for ball, rows in zip(bucket.balls.tolist(), bucket.rows.tolist(), strict=True):
            assert [r for r in rows if r < hoods.n_rows] == hoods.ball(ball).tolist()
    if max_elements is None:
        assert growth > 1 or len(buckets) == len(hoods.sizes.unique())


def test_singletons_are_told():
    x = np.arange(1000.0)
    with pytest.warns(UserWarning, match=r"delta=0.02 .*1000 of 1000.*nearest"):
        Neighborhoods.within(x, 0.02)
    with pytest.warns(UserWarning, match=r"k=1 .*1000 of 1000"):
        Neighborhoods.nearest(x, 1)
    with pytest.warns(UserWarning, match=r"delta=0.02 .*1000 of 1000"):
        LazyNeighborhoods.within(x, 0.02)


def test_summary_for_people():
    assert repr(Neighborhoods.within(np.zeros(5), 1)) == "Neighborhoods(5 rows, 1 ball of 5 rows, 5 edges)"
    text = repr(Neighborhoods.within([0.0, 0.0, 1.0, 2.0], 1.0))
    assert (
        text == "Neighborhoods(4 rows, 3 balls of 2 to 4 rows, median 3 (1 identical ones merged), 9 edges)"
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Neighborhoods.within([1.0, 2.0], -0.1), "delta=-0.1 is not a radius"),
        (lambda: Neighborhoods.within([1.0, 2.0], float("nan")), "delta=nan"),
        (lambda: Neighborhoods.within([1.0, 2.0], "0.1"), "delta='0.1' is not a number"),
        (lambda: Neighborhoods.within([1.0, np.nan], 1), r"1 NaN.*\(1,\)"),
        (lambda: Neighborhoods.within([1.0, np.inf], 1), "impute"),
        (lambda: Neighborhoods.within([], 1), "x is empty"),
        (lambda: Neighborhoods.within(np.empty((0, 3)), 1), "x is empty"),
        (lambda: Neighborhoods.within(["a", "b"], 1), "x holds text"),
        (lambda: Neighborhoods.within([[1.0], [2.0, 3.0]], 1), "ragged"),
        (
            lambda: Neighborhoods.within(np.array([1, "b"], dtype=object), 1),
            "'b', which is not a real number",
        ),
        (lambda: Neighborhoods.within([1j], 1), "complex"),
        (lambda: Neighborhoods.within(np.ma.array([0.0, 9.0], mask=[0, 1]), 1), "x has 1 NaN"),
        (lambda: Neighborhoods.within(scipy.sparse.eye(3), 1), "sparse"),
        (lambda: Neighborhoods.within(3.0, 1), "not an array"),
        (lambda: Neighborhoods.within(None, 1), "not an array"),
        (lambda: Neighborhoods.within(np.zeros(3, np.float16), 1), "three digits"),
        (lambda: Neighborhoods.within(torch.zeros(3, dtype=torch.bfloat16), 1), "bfloat16"),
        (lambda: Neighborhoods.within([1.0, 2.0], 1, "hete"), "norm='hete'"),
        (lambda: Neighborhoods.within([1.0, 2.0], 1, Euclidean), "norm"),
        (lambda: Neighborhoods.within([1.0, 2.0], 1, Weighted([1.0, 2.0])), "column"),
        (lambda: Neighborhoods.within([1.0, 2.0], 1, min_size=0), "min_size=0"),
        (lambda: Neighborhoods.within([1.0, 2.0], 1, min_size=3, max_size=2), "min_size"),
        (lambda: Neighborhoods.within([1.0, 2.0], 1, max_size=1, random_state="x"), "random_state='x'"),
        (lambda: Neighborhoods.within([1.0, 2.0], 1, max_size=1, random_state=-1), "random_state=-1"),
        (lambda: Neighborhoods.nearest([1.0, 2.0], 3), "k=3 .*2 rows"),
        (lambda: Neighborhoods.nearest([1.0, 2.0], 0), "k=0"),
        (lambda: Neighborhoods.nearest([1.0, 2.0], 1.5), "k=1.5 is not a whole number"),
        (lambda: Neighborhoods.whole(0), "n=0"),
        (lambda: Neighborhoods.whole(3).block([]), "non-empty"),
        (lambda: Neighborhoods.whole(3).block([1]), "0 to 0"),
        (lambda: Neighborhoods.singletons(3).block([1, 1]), "duplicates"),
        (lambda: Neighborhoods.whole(3).ball(1), "index=1"),
    ],
)
def test_bad_input_says_what_came_and_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_data_frames_and_tensors_are_read():
    import pandas as pd
    import polars as pl

    x = np.random.default_rng(0).uniform(size=(30, 2))
    expected = Neighborhoods.within(x, 0.4).rows
    for other in (pd.DataFrame(x), pl.DataFrame(x), torch.tensor(x), x.tolist()):
        assert torch.equal(Neighborhoods.within(other, 0.4).rows, expected)
