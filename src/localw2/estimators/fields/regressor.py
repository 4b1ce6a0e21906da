"""``LocalW2FieldRegressor``: the distribution of curves, images and other fields at every x."""

from __future__ import annotations

import math
import warnings
from typing import Any, Self, final

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, _safe_indexing
from sklearn.utils.validation import check_is_fitted

from localw2._validation import Array, as_array, check_count, check_flag, check_probability, check_range
from localw2.estimators import settings, stored_values
from localw2.estimators.fields.bands import Bands
from localw2.estimators.fields.curves import read_curves, smooth_curves
from localw2.estimators.fields.location_scale import LocationScale
from localw2.estimators.fields.representation import Components
from localw2.estimators.fields.score_law import ScoreLaw, Way, choose_way
from localw2.estimators.fields.storing import restore_location, store_location
from localw2.estimators.regression.ball_law import ALL_ROWS, BallLaw
from localw2.estimators.regression.regressor import LocalW2Regressor
from localw2.estimators.tables import Columns, read_rows, read_table
from localw2.judging.conformal import threshold
from localw2.storage.model_file import Stored

_GRID = 50  # points of a grid that nobody gave
_HELD, _MOST_HELD = 0.2, 5000  # rows that bands are calibrated on
_PURPOSE = 34
_BALLS = (2, 5, 40, 160, 640, ALL_ROWS)  # rows of balls in the default law
# The name of held-out distances in files, and that of those in units of one SD for both sides.
_BAND_SCORES, _EVEN_BAND_SCORES = "band_distances", "band_scores"
_GIVEN_GRID = "given_grid"  # the name of the setting in files, beside that of the fit
_INNER = "law:"  # before the names of what the regressor of the scores stores


@final
class LocalW2FieldRegressor(stored_values.Storable, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""Regression whose outputs are fields: the distribution of a curve or an image on a grid, at every x.

    A field is written by the scores z of a few principal components, as many as needed to leave at most
    1 - ``explained`` of the variance of *held-out* fields out. The scores have a smooth mean and covariance,
    polynomials and kernels in x that are as smooth as held-out rows say, and a ``LocalW2Regressor`` learns
    the joint law of what is left:

    .. math:: \hat y = \mu + B^\top \bigl( m(x) + L(x)\, \hat f(x, \hat\omega) \bigr) + e

    e is what components leave out, as it was in a random held-out field of the fit. Distances between scores
    are distances between fields on the grid.

    Parameters
    ----------
    regressor : None or LocalW2Regressor
        What learns the law of the standardised scores. None takes the simplest of these whose energy score on
        held-out rows is within a standard error of the best: one law for all rows, balls of rows, and balls
        around a mean of their own, ``LocalW2Regressor(law="balls")``. Any laws and discrepancies will do,
        such as ``LocalW2Regressor(Network.with_noise(discrepancy="sinkhorn"))``.
    explained : float
        The share of the variance of held-out fields that components must explain.
    max_components : int
        How many components there may be.
    smooth : bool or "auto"
        Standardise scores by a smooth mean and covariance first. Without, the regressor does all. "auto" lets
        held-out rows decide if ``regressor`` is None, and is True otherwise.
    grid : None or array (G,)
        Where curves are wanted that are measured at points of their own; for fields on a grid, its
        coordinates, for pictures only.
    calibrate : bool
        Hold out a fifth of the rows, so that simultaneous bands cover whole new fields as often as they
        claim.
    random_state : None, int, RandomState or Generator
        With an int two fits to the same data are equal.

    Attributes
    ----------
    left_out_ : the share of the variance of held-out fields that components leave out; for curves with points
        of their own, that of held-out measurements which the smoothed curves leave unexplained.
    n_components_, components_ : their number, and the ``Components``.
    regressor_ : the fitted ``LocalW2Regressor`` of the standardised scores.
    noise_ : the SD of measurements about curves with points of their own, None for fields on a grid. Draws
        are curves without it.
    grid_, field_shape_ : coordinates of the grid, or None, and the shape of a field.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> t, x = np.linspace(0, 1, 40), rng.uniform(0, 1, (300, 1))
    >>> fields = np.sin(6 * t + rng.normal(0, 0.3, (300, 1))) * (1 + x)
    >>> model = LocalW2FieldRegressor(random_state=0).fit(x, fields)
    >>> model.n_components_, bool(model.left_out_ < 0.01), model.sample([[0.5]], n_samples=7).shape
    (2, True, (7, 1, 40))
    >>> lower, upper = model.predict_band([[0.5]], coverage=0.9)
    >>> lower.shape
    (1, 40)
    """

    def __init__(
        self,
        regressor: Any = None,
        explained: float = 0.99,
        max_components: int = 20,
        smooth: bool | str = "auto",
        grid: Any = None,
        calibrate: bool = False,
        random_state: Any = None,
    ) -> None:
        self.regressor = regressor
        self.explained = explained
        self.max_components = max_components
        self.smooth = smooth
        self.grid = grid
        self.calibrate = calibrate
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn should know: outputs are fields, missing inputs and categories are welcome."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, Y: Any, points: Any = None, sample_weight: Any = None) -> Self:
        """Learn from rows X (N, p) and fields Y (N, G), (N, H, W) or of more axes.

        With ``points``, Y is a list of N curves, each an array of measurements (n_i,), and points has an
        array of the places (n_i,) of each; they become curves on ``grid``. ``sample_weight`` (N,) >= 0 says
        how much a field counts relative to others, as in ``LocalW2Regressor``: only ratios matter, equal
        weights change nothing, and a field of weight 0 is as if it were not there.
        """
        explained = check_probability(self.explained, "explained")
        most = check_count(self.max_components, "max_components", 1)
        automatic = isinstance(self.smooth, str) and self.smooth == "auto"
        smooth: bool | str = "auto" if automatic else check_flag(self.smooth, "smooth")
        calibrate = check_flag(self.calibrate, "calibrate")
        if not (self.regressor is None or isinstance(self.regressor, LocalW2Regressor)):
            raise ValueError(f"regressor={self.regressor!r} must be None or a LocalW2Regressor.")
        seed = settings.draw_seed(self.random_state) % 2**32
        noise, stated, weights = None, None, None
        if sample_weight is not None:
            X, Y, own, weights = settings.weigh_rows(X, Y, sample_weight)
            points = points if points is None or own is None else _safe_indexing(points, own)
        if points is None:
            fields, shape = self._read_fields(Y)
            x, columns, reader = _read_inputs(X, fields[:, 0])
            grid = None if self.grid is None else _read_grid(self.grid, shape)
        else:
            values, places = read_curves(Y, points)
            _check_unit(np.concatenate(values))
            x, columns, reader = _read_inputs(X, np.array([y.mean() for y in values]))
            everywhere = np.concatenate(places)
            ends = everywhere.min(), everywhere.max()
            grid = np.linspace(*ends, _GRID) if self.grid is None else _read_grid(self.grid, None)
            curves = smooth_curves(values, places, columns.expand(x), grid, seed, weights)
            fields, shape, noise, stated = curves.fields, grid.shape, curves.noise, curves.error
        numbers = columns.expand(x)
        rng = np.random.default_rng([seed, _PURPOSE])
        n = len(fields)
        held = np.empty(0, np.int64)
        if calibrate:
            held = np.sort(rng.permutation(n)[: min(_MOST_HELD, int(_HELD * n))])
        kept = np.setdiff1d(np.arange(n), held)
        numbers_kept, weights_kept = numbers[kept], None if weights is None else weights[kept]
        components = Components.learn(fields[kept], explained, most, seed, weights_kept)
        scores = components.scores(fields[kept])
        if self.regressor is None:
            way = choose_way(list_ways(smooth), numbers_kept, scores, weights_kept, seed)
        else:
            way = Way(self.regressor, bool(smooth))
        location = None
        if way.smooth:
            location, scores = LocationScale.learn(numbers_kept, scores, seed, weights_kept)
        found = ScoreLaw.learn(way.regressor, location, numbers_kept, scores, weights_kept, seed)
        self._forget()
        self.regressor_, self._location = found.regressor, found.location
        self.components_, self._columns = components, columns
        self.n_components_, self.left_out_ = (
            len(components.basis),
            components.error if stated is None else stated,
        )
        self.noise_, self.grid_, self.field_shape_ = noise, grid, tuple(shape)
        self.n_features_in_ = reader.n_features_in_
        if columns.names is not None:
            self.feature_names_in_ = np.array(columns.names, dtype=object)
        self.band_scores_, self._band_weights, self._even_bands = None, None, False
        if len(held):
            levels = self._levels(numbers[held], fields[held])
            order = np.argsort(levels, kind="stable")
            self.band_scores_ = levels[order]
            self._band_weights = None if weights is None else weights[held][order]
        return self

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Independent draws of the field at every row, with a leading axis of draws and one of rows."""
        numbers, count = self._numbers(X), check_count(n_samples, "n_samples", 1)
        seed = settings.draw_seed(random_state)
        scores = self._place(numbers, self.regressor_.sample(numbers, count, random_state=seed % 2**32))
        fields = self.components_.rebuild(scores.reshape(*scores.shape[:2], -1))
        rest = self._remainders
        which = np.random.default_rng([seed, _PURPOSE]).integers(len(rest), size=fields.shape[:2])
        return self._shaped(fields + rest[which])

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean field at each row, rows first, and with ``return_std`` its standard deviation."""
        numbers = self._numbers(X)
        means, variances = [], []
        rest = (self._remainders**2).mean(0)
        basis = self.components_.basis
        for scores in self._common_scores(numbers):
            mean = scores.mean(0)
            off = scores - mean
            means.append(self.components_.rebuild(mean))
            covariances = np.einsum("sni,snj->nij", off, off) / len(off)
            variances.append(np.einsum("ig,nij,jg->ng", basis, covariances, basis, optimize=True) + rest)
        mean_field = self._shaped(np.concatenate(means))
        if not return_std:
            return mean_field
        return mean_field, self._shaped(np.sqrt(np.maximum(np.concatenate(variances), 0.0)))

    def predict_quantiles(self, X: Any, q: Any = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles at every point of the grid, point by point, quantiles first, then rows; 0 < q < 1."""
        numbers, levels = self._numbers(X), settings.check_levels(q)
        found = [np.quantile(draws, levels, axis=0) for draws in self._common_fields(numbers)]
        return self._shaped(np.stack(found, 1))

    def predict_band(self, X: Any, coverage: float = 0.9, simultaneous: bool = True) -> tuple[Array, Array]:
        """Lower and upper ends of a band, rows first.

        A ``simultaneous`` band holds the whole field with probability ``coverage``. It goes from the mean k
        semideviations down and k up, which differ where the law is skewed; k is that of the draws at each
        row, or, if the fit is calibrated, found on held-out rows, so that the band covers new fields from the
        same source as often as it says, whatever the law. Where that takes a wider band than all draws do, it
        is wider at every point of the grid, also where draws do not vary. A pointwise band holds each point
        of the grid with that probability, and is never calibrated.
        """
        numbers = self._numbers(X)
        coverage, simultaneous = (
            check_probability(coverage, "coverage"),
            check_flag(simultaneous, "simultaneous"),
        )
        lower, upper = [], []
        fixed = self._calibrated_level(coverage) if simultaneous else None
        for draws in self._common_fields(numbers):
            bands = self._bands(draws)
            if not simultaneous:
                ends = np.quantile(draws, [(1 - coverage) / 2, (1 + coverage) / 2], axis=0)
            else:
                level = float(np.quantile(bands.levels(draws), coverage)) if fixed is None else fixed
                ends = bands.ends(level)
            ends = bands.widen(ends)
            lower.append(ends[0])
            upper.append(ends[1])
        return self._shaped(np.stack(lower)), self._shaped(np.stack(upper))

    def score(self, X: Any, Y: Any) -> float:
        """R2 of the mean field: 1 minus the squared error over the variance, summed over the grid."""
        mean = self.predict(X)
        fields = as_array(Y, "Y").astype(np.float64, copy=False)
        if fields.shape != mean.shape:
            raise ValueError(f"Y has shape {fields.shape}; expected {mean.shape}, on the grid of the fit.")
        _check_unit(fields)
        off = fields - fields[0]  # a mean of equal numbers is off by the rounding of their sum
        total = float(((off - off.mean(0)) ** 2).sum())
        return 1 - float(((fields - mean) ** 2).sum()) / total if total > 0 else float("nan")

    def to_stored(self) -> Stored:
        """Everything that prediction needs: plain settings and tensors."""
        check_is_fitted(self, "regressor_")
        inner = self.regressor_.to_stored()
        parameters = self.get_params(deep=False)
        own, parameters["regressor"] = parameters.pop("regressor"), None
        if own is not None:
            warnings.warn(
                "regressor is not stored as a setting; a loaded estimator draws the same and refits with the "
                "default unless you set it.",
                stacklevel=3,
            )
        given, parameters["grid"] = parameters["grid"], None  # a tensor, unlike other settings
        plain = {
            "parameters": stored_values.store_parameters(parameters),
            "inner": inner.settings,
            "n_features": self.n_features_in_,
            "feature_names": None if self._columns.names is None else list(self._columns.names),
            "table": self._columns.to_stored(),
            "shape": list(self.field_shape_),
            "noise": self.noise_,
            "left_out": self.left_out_,
            "spread": self.components_.spread,
            "degrees": None,
            "smooth_parts": None,
        }
        tensors = {f"{_INNER}{name}": tensor for name, tensor in inner.tensors.items()}
        arrays = {
            "mean": self.components_.mean,
            "basis": self.components_.basis,
            "left_out": self.components_.left_out,
            "remainders": self.components_.remainders,
        }
        if self._location is not None:
            plain["smooth_parts"], smooth = store_location(self._location)
            arrays |= smooth
        if self.grid_ is not None:
            arrays["grid"] = self.grid_
        if given is not None:
            arrays[_GIVEN_GRID] = _read_grid(given, None)
        if self.band_scores_ is not None:
            arrays[_EVEN_BAND_SCORES if self._even_bands else _BAND_SCORES] = self.band_scores_
        if self._band_weights is not None:
            arrays["band_weights"] = self._band_weights
        tensors |= {name: torch.tensor(np.ascontiguousarray(a)) for name, a in arrays.items()}
        regressors = {f"{_INNER}{name}": regressor for name, regressor in inner.regressors.items()}
        return Stored(type(self).__name__, plain, tensors, regressors)

    @classmethod
    def from_stored(cls, stored: Stored) -> LocalW2FieldRegressor:
        """The estimator that ``to_stored`` described; its draws are equal bit for bit."""
        with stored_values.check_fits_together(stored, cls.__name__):
            return cls._from_stored(stored)

    @classmethod
    def _from_stored(cls, stored: Stored) -> LocalW2FieldRegressor:
        plain = stored.settings
        # Fits to fields in single precision were once stored as they were.
        tensors = {
            name: tensor if name.startswith(_INNER) or tensor.dtype != torch.float32 else tensor.double()
            for name, tensor in stored.tensors.items()
        }
        estimator = cls()
        parameters = stored_values.restore_parameters(plain["parameters"])
        given = tensors.get(_GIVEN_GRID)
        grid = None
        if given is not None:
            grid = _read_grid(stored_values.sized_array(_GIVEN_GRID, given, len(given)), None)
        stored_values.set_stored_parameters(estimator, parameters | {"regressor": None, "grid": grid})
        whole = stored_values.whole_number
        p = whole(plain["n_features"], 1, stored_values.MOST_COLUMNS)
        columns = Columns.from_stored(plain["table"], p, plain["feature_names"])
        inner = Stored(
            LocalW2Regressor.__name__,
            plain["inner"],
            {name.removeprefix(_INNER): t for name, t in tensors.items() if name.startswith(_INNER)},
            {n.removeprefix(_INNER): r for n, r in stored.regressors.items() if n.startswith(_INNER)},
        )
        law = LocalW2Regressor.from_stored(inner)
        shape = tuple(whole(side) for side in plain["shape"])
        size, q, width = int(np.prod(shape)), law.n_outputs_, columns.expanded_width
        if law.n_features_in_ != width:
            raise ValueError(f"the law takes {law.n_features_in_} columns, and the table has {width}.")
        n_kept = whole(len(tensors["remainders"]))
        array = stored_values.sized_array
        components = Components(
            array("mean", tensors["mean"], size),
            array("basis", tensors["basis"], q, size),
            array("left_out", tensors["left_out"], q + 1),
            array("remainders", tensors["remainders"], n_kept, size),
            plain.get("spread", 0.0),  # which older files do not know
        )
        location = restore_location(plain, tensors, width, q)
        noise, left_out = plain["noise"], plain["left_out"]
        sizes = (0.0 if noise is None else noise, abs(left_out), components.spread)
        if not all(type(size) is float and 0 <= size < math.inf for size in sizes):
            found = f"noise={noise!r}, left_out={left_out!r}, spread={components.spread!r}"
            raise ValueError(f"{found} are not numbers that a fit gives.")
        estimator.regressor_, estimator.components_ = law, components
        estimator._location, estimator._columns = location, columns
        estimator.n_components_, estimator.left_out_ = q, left_out
        estimator.noise_, estimator.field_shape_, estimator.n_features_in_ = noise, shape, p
        estimator.grid_ = array("grid", tensors["grid"], size) if "grid" in tensors else None
        if columns.names is not None:
            estimator.feature_names_in_ = np.array(columns.names, dtype=object)
        estimator._even_bands = _EVEN_BAND_SCORES in tensors
        name = _EVEN_BAND_SCORES if estimator._even_bands else _BAND_SCORES
        scores = tensors.get(name)
        estimator.band_scores_ = None if scores is None else array(name, scores, len(scores))
        if scores is not None and not (len(scores) and bool((scores >= 0).all())):
            raise ValueError(f"{name} are not distances: there is none, or one is negative.")
        of_bands = tensors.get("band_weights")
        n_held = 0 if scores is None else len(scores)
        estimator._band_weights = None if of_bands is None else array("band_weights", of_bands, n_held)
        return estimator

    def _read_fields(self, Y: Any) -> tuple[Array, tuple[int, ...]]:
        if isinstance(Y, list | tuple) and len({np.size(one) for one in Y}) > 1:
            raise ValueError(
                "the fields in Y have different sizes. Curves that are measured at points of their own need "
                "points=[...], their places."
            )
        fields = as_array(Y, "Y", missing=True).astype(np.float64, copy=False)
        if fields.ndim < 2 or fields[0].size < 2:
            raise ValueError(f"Y has shape {fields.shape}; expected (N, G) or (N, H, W): a field a row.")
        if np.isnan(fields).any():
            raise ValueError(
                "Y has missing values. Give curves that are measured at points of their own as a list of "
                "arrays, with points=[...], their places."
            )
        if len(fields) < 10:
            raise ValueError(f"Y has {len(fields)} fields; at least 10 are needed to hold some out.")
        _check_unit(fields)
        return fields.reshape(len(fields), -1), fields.shape[1:]

    def _numbers(self, X: Any) -> Array:
        """Rows of a table as the finite numbers that everything here takes."""
        check_is_fitted(self, "regressor_")
        return self._columns.expand(read_rows(self, X, self._columns))

    def _place(self, numbers: Array, scores: Array) -> Array:
        """Standardised scores (S, N, q) with their mean and spread at rows (N, p)."""
        return ScoreLaw(self._location, self.regressor_).place(numbers, scores)

    def _common_scores(self, numbers: Array) -> Any:
        """Scores (S, rows, q) with the same randomness at every row, some rows at a time."""
        for rows, draws in self.regressor_.law_.common_draws(numbers):
            yield self._place(numbers[rows], draws)

    def _common_fields(self, numbers: Array) -> Any:
        """Fields (S, G) of one row after the other, with what components leave out."""
        for scores in self._common_scores(numbers):
            turns = np.arange(len(scores)) % len(self._remainders)
            for row in range(scores.shape[1]):
                yield self.components_.rebuild(scores[:, row]) + self._remainders[turns]

    @property
    def _remainders(self) -> Array:
        """What is added to draws; curves with points of their own are smooth already."""
        kept = self.components_.remainders
        return kept if self.noise_ is None else np.zeros_like(kept[:1])

    def _levels(self, numbers: Array, fields: Array) -> Array:
        """The level (N,) of the narrowest simultaneous band that holds each of fields (N, G)."""
        every = zip(self._common_fields(numbers), fields, strict=True)
        return np.array([float(self._bands(draws).levels(y[None])[0]) for draws, y in every])

    def _bands(self, draws: Array) -> Bands:
        return Bands.of(draws, self.components_.spread, self._even_bands)

    def _calibrated_level(self, coverage: float) -> float | None:
        if self.band_scores_ is None:
            return None
        if self._band_weights is not None:
            return float(threshold(self.band_scores_, coverage, self._band_weights))
        rank = int(np.ceil((len(self.band_scores_) + 1) * coverage - 1e-9))
        if rank > len(self.band_scores_):
            warnings.warn(
                f"{len(self.band_scores_)} held-out rows are too few for a band of coverage {coverage:g}: it "
                "is the widest one. Fit more rows, or ask for less.",
                stacklevel=3,
            )
        return float(self.band_scores_[min(rank, len(self.band_scores_)) - 1])

    def _shaped(self, values: Array) -> Array:
        return values.reshape(*values.shape[:-1], *self.field_shape_)


def list_ways(smooth: bool | str) -> list[Way]:
    """The ways that are compared where no regressor is given, from simple to complex.

    Smooth functions and one law of what they leave for all rows; balls of rows for that; balls around a mean
    of their own, for a mean that is not quite smooth; and those alone, where smooth functions only harm.
    """
    plain = LocalW2Regressor(law="balls")
    found = [
        Way(LocalW2Regressor(BallLaw(ALL_ROWS), base=None), True),
        Way(LocalW2Regressor([BallLaw(rows) for rows in _BALLS], base=None), True),
        Way(plain, True),
        Way(plain, False),
    ]
    return found if smooth == "auto" else [way for way in found if way.smooth == smooth]


def _read_inputs(X: Any, y: Array) -> tuple[Array, Columns, LocalW2Regressor]:
    """The numbers of a table, its columns, and a reader on which scikit-learn has noted them."""
    reader = LocalW2Regressor()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*determine")  # of one point of the field only
        x, _, columns = read_table(reader, X, y)
    return x, columns, reader


def _check_unit(values: Array) -> None:
    """Raise where squares of outcomes would overflow or vanish; some points of a field may be tiny."""
    check_range(values.reshape(-1, 1), "Y")


def _read_grid(grid: Any, shape: tuple[int, ...] | None) -> Array:
    found = as_array(grid, "grid").ravel().astype(np.float64, copy=False)
    if shape is not None and (len(shape) != 1 or len(found) != shape[0]):
        raise ValueError(f"grid has {len(found)} points, and a field has the shape {shape}; they must agree.")
    if len(found) < 2 or not (np.diff(found) > 0).all():
        raise ValueError("grid must have two points at least, in increasing order.")
    return found
