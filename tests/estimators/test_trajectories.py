"""From trajectories to rows and balls: the printed loss, missing observations, times of their own."""

import math
from itertools import pairwise

import numpy as np
import ot
import pandas as pd
import pytest
import torch

from localw2 import Neighborhoods, NetworkField, Objective, SquaredW2
from localw2.datasets import FourStates, LogisticGrowth
from localw2.estimators.dynamics.mean_field import fit_mean_field
from localw2.estimators.dynamics.trajectories import LARGEST_GAIN, Near, Rows, Trajectories, near_initial
from localw2.estimators.dynamics.trajectory_batches import TrajectoryBatches


def paths(n=8, n_times=5, d=2, seed=0, spread=0.0):
    """Y and t; all start at 1, or nearby."""
    rng = np.random.default_rng(seed)
    Y = rng.normal(size=(n, n_times, d)).cumsum(1)
    Y[:, 0] = 1 + spread * rng.normal(size=(n, d))
    return Y, np.linspace(0, 1, n_times)


def emd(a, b):
    return ot.emd2([], [], ot.dist(a, b))


class TestTheLossIsThePrintedOne:
    @pytest.mark.parametrize("spread", [0.0, 0.3])
    def test_complete_trajectories(self, spread):
        Y, t = paths(spread=spread)
        other = Y[::-1] + 0.1
        data = Trajectories.of(Y, t)
        rows = data.singles()
        balls = rows.balls(near_initial(data.initial, 0.5, None), rows.windows(len(Y), None))
        ours = Objective(torch.tensor(rows.target), balls)(torch.tensor(other.reshape(-1, 2)))
        printed = Objective(torch.tensor(Y), Neighborhoods.within(Y[:, 0], 0.5))(torch.tensor(other.copy()))
        torch.testing.assert_close(ours, printed)

    def test_a_missing_row_leaves_both_samples_of_that_ball_and_time(self):
        Y, t = paths(n=6, spread=0.3)
        other = np.random.default_rng(1).normal(size=Y.shape)
        holes = Y.copy()
        holes[1, 2, 0] = holes[4, 2, 1] = holes[0, 4, :] = np.nan
        data = Trajectories.of(holes, t)
        rows = data.singles()
        balls = rows.balls(near_initial(data.initial, 0.6, None), rows.windows(len(Y), None))
        at = np.searchsorted(t, rows.times[:, 0])
        ours = float(Objective(torch.tensor(rows.target), balls)(torch.tensor(other[rows.number, at])))
        seen = ~np.isnan(holes).any(2)
        values = []
        for k in range(len(t)):
            for i in np.flatnonzero(seen[:, k]):
                near = np.linalg.norm(Y[:, 0] - Y[i, 0], axis=1) <= 0.6
                values.append(emd(Y[near & seen[:, k], k], other[near & seen[:, k], k]))
        assert ours == pytest.approx(np.mean(values), rel=1e-9)

    def test_pairs_hold_states_and_slopes_of_one_trajectory(self):
        Y, t = paths(n_times=41)
        rows = Trajectories.of(Y, t).pairs()
        np.testing.assert_allclose(np.diff(rows.times), 0.05, atol=1e-9 + 0.025)
        for number, (a, b), target in zip(rows.number, rows.times, rows.target, strict=True):
            i, j = np.searchsorted(t, [a - 1e-9, b - 1e-9])
            np.testing.assert_allclose(target[:2], Y[number, i])
            np.testing.assert_allclose(target[2:], (Y[number, j] - Y[number, i]) / (t[j] - t[i]))

    def test_every_observation_but_the_last_begins_a_pair(self):
        Y, t = paths(n=20, n_times=15)
        Y[3, 4] = np.nan
        data = Trajectories.of(Y, t)
        assert len(data.pairs().number) == len(data.number) - 20

    def test_slopes_over_next_to_no_time_are_left_out(self):
        Y, t, _ = LogisticGrowth().sample(20, random_state=0)
        t[:, -1] = t[:, -2] + 1e-9
        rows = Trajectories.of(Y, t, 1.0, 0.0).pairs()
        assert np.diff(rows.times).min() > 0.004 * 8


class TestWindowsAndBalls:
    def test_irregular_times_make_disjoint_windows_that_cover_all(self):
        Y, t, _ = LogisticGrowth().sample(300, random_state=0)
        data = Trajectories.of(Y, t, 1.0, 0.0)
        rows = data.singles()
        windows = rows.windows(300, 40)
        assert np.array_equal(np.sort(np.concatenate(windows)), np.arange(len(rows.number)))
        assert all(90 < len(window) < 110 for window in windows)
        ends = [(rows.times[w].min(), rows.times[w].max()) for w in windows]
        assert all(a[1] <= b[0] for a, b in pairwise(ends))

    def test_a_common_grid_is_thinned_evenly(self):
        Y, t = paths(n_times=101)
        rows = Trajectories.of(Y, t).singles()
        kept, windows = rows.take(rows.windows(8, 11))
        assert len(windows) == 11
        np.testing.assert_allclose(np.unique(kept.times), np.linspace(0, 1, 11), atol=1e-9)
        assert np.array_equal(np.sort(np.concatenate(windows)), np.arange(88))

    def test_all_start_alike_is_one_ball(self):
        near = near_initial(np.ones((30, 2)), "auto", None)
        assert len(near) == 1
        assert near[0].members.all()

    @pytest.mark.parametrize("n", [151, 700, 3000])
    def test_spread_starts_put_every_trajectory_in_a_ball(self, n):
        near = near_initial(np.random.default_rng(0).normal(9, 1, size=(n, 3)), "auto", None)
        members = np.stack([ball.members for ball in near])
        assert members.any(0).all()
        assert (members.sum(1) == 150).all()
        assert 1 <= members.sum(0).mean() <= 6

    def test_the_scale_does_not_depend_on_units_and_has_a_floor(self):
        Y, t = paths(n=50, n_times=6)
        rows = Trajectories.of(Y, t).singles()
        scaled = Trajectories.of(Y * [1000, 1], t).singles()
        windows = rows.windows(50, None)
        np.testing.assert_allclose(scaled.scale(windows), rows.scale(windows) * [1000, 1])
        certain = Rows(rows.number, rows.times, np.repeat(rows.times, 2, 1))  # no spread between trajectories
        np.testing.assert_allclose(certain.scale(windows), rows.times.std() / 20)


class TestCenter:
    def test_takes_out_what_is_linear_in_the_start(self):
        Y, t, _ = FourStates(a=0.3, sigma=1e-9).sample(80, random_state=0)  # a linear flow without noise
        rows = Trajectories.of(Y, t).singles()
        windows = rows.windows(80, 10)
        kept, windows = rows.take(windows)
        residual = kept.target - kept.center(Y[:, 0], windows)
        assert np.abs(residual).max() < 1e-8

    def test_residuals_keep_the_variance_of_the_noise(self):
        # Five coefficients from 80 rows would shrink the variance by a sixteenth without the leverage.
        rng = np.random.default_rng(0)
        n, repeats, total = 80, 400, []
        for _ in range(repeats):
            initial = rng.normal(size=(n, 4))
            noise = rng.normal(size=(n, 1))
            rows = Rows(np.arange(n), np.ones((n, 1)), initial @ np.ones((4, 1)) + noise)
            residual = rows.target - rows.center(initial, [np.arange(n)])
            total.append((residual**2).mean())
        # five standard errors of a mean of chi-squares with 75 degrees of freedom
        assert abs(np.mean(total) - 1) < 5 * math.sqrt(2 / 75 / repeats)

    def test_small_windows_are_left_alone(self):
        rng = np.random.default_rng(0)
        rows = Rows(np.arange(70), np.ones((70, 1)), rng.normal(size=(70, 1)))
        assert not rows.center(rng.normal(size=(70, 4)), [np.arange(70)]).any()

    def test_the_truth_stays_a_minimiser(self):
        # Centred or not, the debiased loss in expectation does not fall when the true spread is changed.
        rng = np.random.default_rng(0)
        gains = []
        for _ in range(150):
            initial = rng.normal(size=(60, 2))
            mean = initial.sum(1, keepdims=True)
            rows = Rows(np.arange(60), np.ones((60, 1)), mean + rng.normal(size=(60, 1)))
            balls = rows.balls(near_initial(initial, "auto", None), [np.arange(60)])
            center = rows.center(initial, [np.arange(60)])
            objective = Objective(torch.tensor(rows.target), balls, SquaredW2(debiased=True), center)
            noise = rng.normal(size=(2, 60, 1))
            values = [float(objective(torch.tensor(mean + s * noise))) for s in (0.8, 1.0, 1.25)]
            gains.append([values[0] - values[1], values[2] - values[1]])
        gains = np.array(gains)
        error = gains.std(0) / math.sqrt(len(gains))
        assert (gains.mean(0) > 4 * error).all()


class TestForms:
    def test_lists_of_unequal_length(self):
        Y = [np.ones((3, 2)), np.ones((5, 2))]
        data = Trajectories.of(Y, [[0.0, 1.0, 2.0], [0.0, 0.5, 1.0, 1.5, 2.0]])
        assert data.n == 2
        assert data.number.tolist() == [0] * 3 + [1] * 5

    def test_one_state_needs_no_last_axis(self):
        Y, t = paths(d=1)
        np.testing.assert_array_equal(Trajectories.of(Y[..., 0], t).values, Trajectories.of(Y, t).values)

    @pytest.mark.parametrize("y0", [1.0, [1.0], np.ones(8), np.ones((8, 1))])
    def test_initial_states_for_all_or_each(self, y0):
        Y, t = paths(d=1)
        np.testing.assert_array_equal(Trajectories.of(Y, t, y0).initial, np.ones((8, 1)))

    def test_the_initial_time(self):
        Y, t = paths()
        assert Trajectories.of(Y, t + 3).t0 == 3
        late = Trajectories.of(Y[:, 1:], t[1:] + 3, np.ones(2), t0=3.0)
        assert late.t0 == 3
        assert late.time.min() == pytest.approx(0.25)

    def test_masked_values_are_missing(self):
        Y, t = paths(d=1)
        masked = np.ma.masked_array(np.where(Y > 1.5, -999.0, Y), Y > 1.5)
        assert Trajectories.of(masked, t).values.min() > -900

    def test_pandas_with_its_own_missing_values(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"a": [1.0, 1.0], "b": [None, 2.0], "c": [3.0, 3.0]}).convert_dtypes()
        data = Trajectories.of(frame, [0.0, 1.0, 2.0])
        assert data.number.tolist() == [0, 0, 1, 1, 1]

    def test_dates_are_refused(self):
        Y, _ = paths(d=1)
        dates = np.datetime64("2020-01-01") + np.arange(5)
        for given in (dates, pd.Series(dates)):
            with pytest.raises(ValueError, match="datetime64"):
                Trajectories.of(Y, given)

    def test_two_trajectories_with_times_of_their_own(self):
        Y, t = paths(n=3)
        rows = Trajectories.of(Y, t + np.array([[0.0], [0.01], [0.02]]) * (t > 0)).singles()
        assert min(map(len, rows.windows(3, None))) >= 2

    def test_starts_around_zero_have_smaller_balls(self):
        near = near_initial(np.random.default_rng(0).normal(size=(150, 2)), "auto", None)
        assert {int(ball.members.sum()) for ball in near} == {30}

    @pytest.mark.parametrize("unit", [1.0, 1e-10, 1e10])
    def test_spread_starts_are_seen_in_any_unit(self, unit):
        starts = np.column_stack([np.full(400, 1e6), unit * np.random.default_rng(0).uniform(1, 9, 400)])
        assert len(near_initial(starts, "auto", None)) > 1

    def test_one_state_for_all_when_only_a_part_is_seen(self):
        Y, t = paths(n=2, d=1)
        assert Trajectories.of(Y, t, [1.0, 0.0], all_seen=False).initial.shape == (2, 2)

    def test_units_are_not_spoilt_by_one_close_pair_of_times(self):
        Y, t = paths(n=30, n_times=41)
        plain = Trajectories.of(Y, t)
        noisy = Trajectories.of(np.concatenate([Y, Y[:, -1:] + 0.01], 1), np.append(t, t[-1] + 1e-7))
        slope, other = (data.units(data.pairs().target[:, 2:])[2] for data in (plain, noisy))
        np.testing.assert_allclose(other, slope, rtol=0.1)

    def test_integers_and_tensors(self):
        Y = torch.arange(12).reshape(2, 3, 2)
        assert Trajectories.of(Y, [0, 1, 2]).values.dtype == np.float64


Y, T = paths()
UNSEEN = Y.copy()
UNSEEN[2] = np.nan
NO_START = Y.copy()
NO_START[3, 0, 1] = np.nan
ENDLESS = Y.copy()
ENDLESS[0, 0, 0] = np.inf


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((Y, T[::-1]), "sort"),
        ((Y, [0, 0.25, 0.25, 0.75, 1]), "twice"),
        ((Y[:, :1], T[:1]), "initial"),
        ((Y[:1], T), "spread"),
        ((Y[0], T), "shape"),
        ((Y, T[:3]), "shape"),
        ((Y[..., None], T), "shape"),
        ((UNSEEN, T), "trajectory 2"),
        ((NO_START, T), "trajectory 3"),
        ((ENDLESS, T), "infinite"),
        (("abc", T), "str"),
        ((np.empty((0, 5, 2)), T), "empty"),
        ((Y, T, np.ones((3, 2))), "y0"),
        ((Y, T, np.ones(2), 0.5), "t0"),
        ((Y, T + np.arange(8)[:, None]), "begin"),
        (([Y[0], Y[1, :3]], T), "list"),
        (([Y[0], Y[1, :3, :1]], [T, T[:3]]), "shapes"),
        (([Y[0], Y[1, :3]], [T, T]), "trajectory 1"),
        (
            (Y, np.where(np.arange(40).reshape(8, 5) == 7, np.nan, np.tile(T, (8, 1)))),
            "NaN",
        ),
    ],
)
def test_bad_trajectories(arguments, word):
    with pytest.raises(ValueError, match=word):
        Trajectories.of(*arguments)


def test_snapshots_cannot_be_linked():
    Y = np.ones((4, 2, 1))
    Y[:, 1] = np.nan
    data = Trajectories.of(np.arange(4.0)[:, None, None] + np.zeros((4, 1, 1)), np.ones((4, 1)), 0.0, 0.0)
    with pytest.raises(ValueError, match="linked"):
        data.pairs()


def make_batches(Y, t, size, near=None, weights=None, held_out=None):
    """Batches of singles with the plain loss, and the rows that they are made from."""
    rows = Trajectories.of(Y, t, y0=np.ones(Y.shape[2])).singles()
    rows, windows = rows.take(rows.windows(len(Y), None))
    near = [Near(np.ones(len(Y), bool), np.ones(len(Y), bool))] if near is None else near
    of_rows = None if weights is None else weights[rows.number]
    objective = Objective(
        torch.tensor(rows.target), rows.balls(near, windows), SquaredW2(), sample_weight=of_rows
    )
    held_out = np.zeros(len(Y), bool) if held_out is None else held_out
    return TrajectoryBatches(rows, windows, near, objective, size, 3, held_out), rows


class TestBatches:
    def test_an_epoch_shows_every_trajectory_once_and_determines_its_batches(self):
        batches, rows = make_batches(*paths(n=23), size=5)
        seen = [np.unique(rows.number[part]) for part, _ in batches(0, False)]
        assert batches.per_epoch == len(seen) == 5
        assert sorted(np.concatenate(seen)) == list(range(23))
        again, other = ([part.tolist() for part, _ in batches(epoch, False)] for epoch in (0, 1))
        assert again == [part.tolist() for part, _ in batches(0, False)]
        assert again != other

    def test_held_out_trajectories_wait_until_the_fit_settles(self):
        held_out = np.arange(23) % 7 == 0
        batches, rows = make_batches(*paths(n=23), size=5, held_out=held_out)
        for settling, expected in ((False, np.flatnonzero(~held_out)), (True, np.arange(23))):
            seen = [np.unique(rows.number[part]) for part, _ in batches(0, settling)]
            assert sorted(np.concatenate(seen)) == expected.tolist()

    @pytest.mark.parametrize("weighted", [False, True])
    def test_a_batch_of_all_has_the_loss_of_all(self, weighted):
        Y, t = paths(n=9)
        Y[4, 2] = np.nan
        weights = np.random.default_rng(0).integers(1, 4, 9).astype(float) if weighted else None
        batches, rows = make_batches(Y, t, 9, weights=weights)
        ((part, objective),) = batches(0, False)
        yhat = torch.tensor(np.random.default_rng(1).normal(size=rows.target.shape))
        assert sorted(part.tolist()) == list(range(len(rows.number)))
        torch.testing.assert_close(objective(yhat[part]), batches.objective(yhat))

    def test_groups_are_parts_of_balls_of_initial_states(self):
        Y, t = paths(n=40)
        left = np.arange(40) < 20
        batches, rows = make_batches(Y, t, 8, near=[Near(left, left), Near(~left, ~left)])
        for part, objective in batches(0, False):
            assert len(np.unique(rows.number[part])) <= 8
            for ball in range(objective.hoods.n_balls):
                members = rows.number[part[objective.hoods.ball(ball)]]
                assert len(members) == batches.largest == 4
                assert len(set(members < 20)) == 1

    def test_windows_of_own_times_are_longer_where_fewer_are_compared(self):
        t = np.sort(np.random.default_rng(0).uniform(size=(300, 10)), 1)
        rows = Trajectories.of(np.cumsum(t, 1), t, y0=0.0, t0=0.0).singles()
        whole, fifth = (len(rows.windows(300, None, part)) for part in (1.0, 0.2))
        assert whole == pytest.approx(5 * fifth, rel=0.1)

    def test_a_network_begins_with_the_mean_field_of_the_slopes(self):
        rng, t = np.random.default_rng(0), np.linspace(0, 2, 21)
        Y = np.exp(-rng.normal(1.0, 0.05, (60, 1)) * t) * rng.uniform(0.5, 2.0, (60, 1))
        data = Trajectories.of(Y, t)
        rows, generator = data.pairs(), torch.Generator().manual_seed(0)
        units = tuple(map(torch.tensor, data.units(rows.target[:, 1:])))
        field = NetworkField(1, 30, 2, generator=generator, units=units)
        fit_mean_field(field, rows, generator)
        zero = [torch.zeros(1, *layer.mean.shape) for layer in field.net.random_layers()]
        for y in (0.3, 0.8, 1.5):
            slope = float(field.bind(zero)(torch.tensor(0.0), torch.tensor([[y]])).detach())
            assert slope == pytest.approx(-y, abs=0.05)


class TestWhitening:
    @staticmethod
    def covariance(rows, windows, turned, weights=None):
        """The mean covariance of turned targets within windows."""
        total = np.zeros((turned.shape[1],) * 2)
        share = np.ones(len(turned)) if weights is None else weights[rows.number]
        for window in windows:
            own = share[window][:, None]
            rest = turned[window] - (own * turned[window]).sum(0) / own.sum()
            total += (own * rest).T @ rest
        return total / sum(share[window].sum() for window in windows)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_rows_vary_alike_in_all_directions(self, weighted):
        Y, t = paths(60, 6, 2, spread=0.3)
        rows = Trajectories.of(Y, t).pairs()
        windows = rows.windows(60, None)
        weights = np.random.default_rng(1).uniform(0.5, 2, 60) if weighted else None
        center, scale = np.full_like(rows.target, 0.3), np.full_like(rows.target, 2.0)
        matrix = rows.whitening(windows, center, scale, weights)
        turned = (rows.target - center) / scale @ matrix
        found = self.covariance(rows, windows, turned, weights)
        values = np.linalg.eigvalsh(self.covariance(rows, windows, (rows.target - center) / scale, weights))
        assert values[-1] < LARGEST_GAIN * values[0]  # nothing is held back here
        np.testing.assert_allclose(found, np.eye(4), atol=1e-9)

    def test_what_hardly_varies_is_not_blown_up(self):
        Y, t = paths(60, 6, 1)
        Y = np.concatenate([Y, Y + 1e-9 * np.random.default_rng(2).normal(size=Y.shape)], 2)
        rows = Trajectories.of(Y, t).singles()
        matrix = rows.whitening(
            rows.windows(60, None), np.zeros_like(rows.target), np.ones_like(rows.target), None
        )
        values = np.linalg.eigvalsh(matrix)
        assert (values[-1] / values[0]) ** 2 == pytest.approx(LARGEST_GAIN)

    def test_nothing_varies(self):
        Y, t = np.ones((10, 4, 2)), np.linspace(0, 1, 4)
        rows = Trajectories.of(Y, t).singles()
        zero = np.zeros_like(rows.target)
        np.testing.assert_array_equal(rows.whitening(rows.windows(10, None), zero, zero + 1, None), np.eye(2))
