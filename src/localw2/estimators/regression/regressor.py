"""``LocalW2Regressor``: the whole distribution of y at every x, with scikit-learn's conventions."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from localw2._validation import LARGEST, Array, check_count, check_flag, check_probability, check_range
from localw2.balls.norms import Norm
from localw2.distribution import DrawsDistribution
from localw2.estimators import settings, stored_values
from localw2.estimators.judged import Judged
from localw2.estimators.regression.ball_law import BallLaw
from localw2.estimators.regression.balls import ChosenBalls
from localw2.estimators.regression.calibrating import (
    choose_kind,
    hold_out,
    know_only,
    learn_split,
    name_checkpoints,
    score_parts,
)
from localw2.estimators.regression.fitting import Recipe, learn
from localw2.estimators.regression.member import PREDICTION_DRAWS
from localw2.estimators.regression.network import Network
from localw2.estimators.regression.outcomes import Outcomes
from localw2.estimators.regression.storing import restore_law, restore_strategy, store_law, store_strategy
from localw2.estimators.tables import Columns, read_rows, read_table
from localw2.judging.seen_rows import SeenRows
from localw2.storage.model_file import Stored
from localw2.storage.regressors import check_storable
from localw2.training.checkpoints import hold_checkpoint
from localw2.training.distributed import Crew

if TYPE_CHECKING:
    from torch import Tensor

    from localw2.balls.selection import DeltaSelection
    from localw2.estimators.regression.balls import RowPlan
    from localw2.estimators.regression.law import ConditionalLaw
    from localw2.estimators.regression.network import NetworkMember, TrainedNetwork
    from localw2.models.network import RandomMLP
    from localw2.models.noise_network import NoiseMLP
    from localw2.training.config import Fit


@final
class LocalW2Regressor(Judged, stored_values.Storable, RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""Regression that returns the whole conditional distribution of y at every x.

    .. math:: \hat y = \hat f(x, \hat\omega)

    The default pools several laws, each weighted by how well it predicts rows that it has not seen (CRPS):
    the empirical distribution of residuals in balls of similar rows around a cross-fitted mean, that of y
    itself, and, where the distribution varies smoothly with x, a network with random weights trained by the
    local W2 loss. ``LocalW2Regressor(law=Network(debiased=False, standardize=False, n_draws=1, depth=4,
    epochs=1000, learning_rate=0.025, schedule="constant"), base=None, delta=0.1)`` is the paper's method as
    published, on x and y as they are. y needs a finite variance at every x.

    Parameters
    ----------
    law : "auto", "network", "balls", Network, BallLaw, or a list of these two
        How y is distributed around the mean. "balls" pools ball laws only, "network" is ``Network()``, a list
        is pooled. ``weights_`` says what came out.
    base : "auto", None or a scikit-learn regressor
        The mean. "auto" stacks up to three candidates that predict held-out rows best: ridge regression,
        polynomial ridge (degree 2 up to 20 columns, degree 3 up to 4), histogram gradient boosting (coarse,
        medium, fine; categories and missing values natively) and a kernel where a small trial says that it
        pays. If y is never negative and skewed, the logarithm of y is tried too. A regressor of yours is
        cloned and fitted as it is; None means no mean.
    delta : "auto", float, Nearest(k), or a list of these
        The balls of a network. A number is their radius in the units of X, ``Nearest(k)`` takes the k nearest
        rows of each row. "auto" chooses k by ``select_delta`` from the out-of-fold residuals: each row is
        predicted by the other rows of its ball. Given a list, the entry whose network, trained on four fifths
        of the rows, predicts the held-out rows best is used; that takes one fit per entry, on a GPU all at
        once. See ``selection_``.
    norm : "auto" or Norm
        The norm in which those balls are measured. A ``Norm`` applies to X as given. "auto" is chosen with
        delta from standardised columns, columns weighted by how much they move the base or by their slopes,
        and Mahalanobis; for ``Nearest(k)`` it is Euclidean on standardised columns, for a number on X as
        given.
    calibrate : bool, "split", "cv" or "cv+"
        Make ``predict_interval`` cover as often as it claims, using rows that the fit has not seen (see
        ``docs/calibration.md``). "split" holds out a fifth of the rows (at most 5000), and coverage is
        guaranteed. "cv" follows the fit to all rows by 5 more (10 below 500 rows), each without a part of the
        rows, which takes 5 (10) times as long: close, but not guaranteed. "cv+" keeps those fits and asks
        them at every new row: with coverage c, about 2c - 1 is guaranteed. True is "split" from 2000 rows on,
        else "cv".
    bounds : "auto", None or (low, high)
        Bounds that draws of every output respect; either may be None, and y must lie between them. "auto"
        takes 0 as a bound if y is never negative, and the smallest or largest y if many rows (2 %, and at
        least 5) have exactly that value.
    values : "auto", None or a list of numbers
        Draws are moved to these values, so that each comes as often as in the data; y must have no others.
        "auto" takes the values of y if they are few, as counts are (at most 50, 20 rows each on average).
    device : str
        Where a network is trained; "auto" takes a GPU if there is one.
    n_jobs : int or None
        How many trees are grown at the same time where there are many rows; None and -1 mean all cores.
    random_state : None, int, RandomState or Generator
        With an int two fits to the same data are equal bit for bit (on the same machine and thread count).
    verbose : bool
        Say what is being done, with a progress bar for a network.
    checkpoint : path or None
        A file to continue from: a training that was killed resumes when ``fit`` is called again with the same
        data and settings. It is removed when the fit is done. With ``random_state=None`` the random numbers
        then follow from data and settings, so that the second call finds the first.
    history : path or None
        A file that gets a line of JSON per epoch while a network is trained, for others to follow.

    Attributes
    ----------
    law_ : the ``ConditionalLaw``, a frozen object that draws and answers; everything below describes it.
    weights_ : the weight of every member of the pool, by its name.
    base_models_ : the fitted base regressors of every fold, () without a base.
    base_name_ : what the mean is made of; "given" or "none".
    base_slope_, base_intercept_ : (d,), m is ``base_intercept_ + base_slope_ * base``: the regression of y
        on the out-of-fold predictions. A base that finds only noise gets slope 0.
    columns_ : how the columns of a table became numbers (``estimators.tables``), None for plain numbers.
    outcomes_ : the ``Outcomes``, bounds and values that draws respect.
    calibration_ : with ``calibrate`` the ``Calibration`` behind the intervals, else None.
    n_features_in_, feature_names_in_, n_outputs_ : as in scikit-learn.
    model_, fit_, delta_, norm_, selection_, plan_ : of the network, if the law has one.

    Examples
    --------
    >>> from localw2.datasets import Nonlinear
    >>> x, y = Nonlinear().sample(300, random_state=0)
    >>> model = LocalW2Regressor(law="balls", random_state=0).fit(x, y)
    >>> model.predict([[0.4]]).shape, model.sample([[0.4], [-0.4]], n_samples=5).shape
    ((1,), (5, 2))
    >>> lower, upper = model.predict_interval([[0.4]], coverage=0.9)
    >>> bool(lower < 8.4 < upper)
    True
    """

    def __init__(
        self,
        law: Any = "auto",
        base: Any = "auto",
        delta: Any = "auto",
        norm: Any = "auto",
        calibrate: bool | str = False,
        bounds: Any = "auto",
        values: Any = "auto",
        device: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: bool = False,
        checkpoint: Any = None,
        history: Any = None,
    ) -> None:
        self.law = law
        self.base = base
        self.delta = delta
        self.norm = norm
        self.calibrate = calibrate
        self.bounds = bounds
        self.values = values
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint
        self.history = history

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn should know: several outputs, missing values and categories are welcome."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn the conditional distribution of y given x from rows X (N, p) and outputs y (N,) or (N, d).

        ``sample_weight`` (N,) >= 0 says how much a row counts relative to others: only ratios matter, equal
        weights change nothing, and a row of weight 0 is as if it were not there. A row of weight 2 counts as
        two in the mean, in the draws of balls, in losses, scores and calibration; the number of rows that a
        ball, a leaf or a fold needs still counts rows.
        """
        kept, weights = None, None
        if sample_weight is not None:
            X, y, kept, weights = settings.weigh_rows(X, y, sample_weight)
        # A fresh estimator reads the table: a refit that fails leaves the old fit whole.
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            x, y, columns = read_table(type(self)(), X, y)
        outputs = np.ascontiguousarray(y, dtype=np.float64).reshape(len(x), -1)
        recipe, kind = self._recipe(x, outputs, columns, weights), choose_kind(self.calibrate, len(x))

        def read_again(known: Array) -> tuple[Array, Columns]:
            with warnings.catch_warnings(record=True) as again:
                warnings.simplefilter("always")
                numbers, _, own = read_table(type(self)(), X, y, known)
            if kind == "split":  # these rows alone say which columns are left out
                said[:] = [one for one in said if not str(one.message).startswith("left out")] + again
            return numbers, own

        if kind == "split":
            x, recipe = know_only(recipe, hold_out(len(x), recipe.seed)[1], outputs, read_again)
        for one in said:
            warnings.warn(one.message, one.category, stacklevel=2)
        whole = True
        crew = Crew.join()
        with hold_checkpoint(self.checkpoint, crew), settings.share_threads(x.size, self.n_jobs):
            if kind == "split":
                law, trained = learn_split(recipe, x, outputs, weights, kept)
            else:
                law, trained = learn(recipe, x, outputs, weights, numbers=kept)
            if kind in ("cv", "cv+"):
                law, trained, whole = score_parts(recipe, kind, law, trained, x, outputs, read_again, weights)
        self._keep(law, y.ndim, SeenRows.of(law.columns.expand(x), outputs), trained)
        if trained is None and isinstance(self.law, str) and self.law == "auto":
            self._warn_of_unused_balls()
        done = whole and (trained is None or trained.fit.stopped == "all epochs done")
        if self.checkpoint is not None and done:
            settings.remove_checkpoints(*name_checkpoints(recipe, kind))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of y at each row, (N,) or (N, d), and with ``return_std`` its standard deviation.

        An integral over draws of omega that are common to all rows, from a stored seed: a row's prediction is
        always the same, whatever rows come with it.
        """
        x = self.encode(X)
        mean, variance = self.law_.moments(x)
        return (self._shaped(mean), self._shaped(np.sqrt(variance))) if return_std else self._shaped(mean)

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Independent draws of y at every row, (S, N) or (S, N, d), independent between rows too."""
        x, count = self.encode(X), check_count(n_samples, "n_samples", 1)
        return self._shaped(self.law_.sample(x, count, settings.draw_seed(random_state)))

    def predict_quantiles(self, X: Any, q: Any = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles of y at every row, (len(q), N) or (len(q), N, d), output by output; 0 < q < 1.

        They come from the same common draws as ``predict`` and increase with q. They are never calibrated.
        """
        x, levels = self.encode(X), settings.check_levels(q)
        return self._shaped(self.law_.quantiles(x, levels))

    def predict_interval(self, X: Any, coverage: float = 0.9, joint: bool = False) -> tuple[Array, Array]:
        """The central prediction interval of probability ``coverage``: its lower and upper ends.

        Each output has its own, or with ``joint`` they form a box that holds all outputs together. Intervals
        are calibrated if the fit was (``calibrate``), and otherwise quantiles of the draws.
        """
        x = self.encode(X)
        coverage, joint = check_probability(coverage, "coverage"), check_flag(joint, "joint")
        if self.law_.without:
            lower, upper = self.law_.plus_interval(self._encode_for_parts(X), coverage, joint)
            return self._shaped(lower), self._shaped(upper)
        if self.calibrate and self.calibration_ is None:
            warnings.warn(
                f"calibrate={self.calibrate!r}, but this fit is not calibrated: it was interrupted, or made "
                "without. These intervals are quantiles of the draws; fit again to calibrate them.",
                stacklevel=2,
            )
        lower, upper = self.law_.interval(x, coverage, joint)
        return self._shaped(lower), self._shaped(upper)

    def predict_distribution(self, X: Any) -> DrawsDistribution:
        """The distribution of y at every row, with scipy's names: ``cdf``, ``sf``, ``ppf``, ``pdf``, ``rvs``.

        It is that of the common draws behind ``predict`` and ``predict_quantiles``, and agrees with them:
        ``mean`` and ``std`` are what ``predict`` returns, and ``ppf`` are the quantiles. It is never
        calibrated. See ``DrawsDistribution``.

        >>> x = np.linspace(0, 1, 200)[:, None]
        >>> y = x[:, 0] + np.random.default_rng(0).normal(0, 0.1, 200)
        >>> model = LocalW2Regressor(law="balls", base=None, random_state=0).fit(x, y)
        >>> law = model.predict_distribution([[0.2], [0.8]])
        >>> law
        DrawsDistribution(shape=(2,), 2000 draws each)
        >>> law.sf(0.5).round(1)  # P(y > 0.5)
        array([0., 1.])
        >>> bool((law.ppf(0.9) == model.predict_quantiles([[0.2], [0.8]], 0.9)).all())
        True
        """
        x, law = self.encode(X).copy(), self.law_  # the law is asked later, when X may have changed
        outputs = () if self._y_ndim == 1 else (self.n_outputs_,)
        return DrawsDistribution(law, x, PREDICTION_DRAWS, outputs, law.outcomes.support, law.moments)

    def _encode_for_parts(self, X: Any) -> list[Array]:
        """The numbers of a table by the columns of each law of a part."""
        given = getattr(X, "columns", None)
        names = () if self.law_.columns.names is None or given is None else self.law_.columns.names
        used = {names[j] for part in self.law_.without for j in part.columns.used} if names else set()
        if lacking := sorted(used - set(map(str, given if given is not None else ()))):
            raise ValueError(
                f"X has no column {lacking[0]!r}. The fit to all rows leaves it out, but some of the fits to "
                "parts of them, which make the intervals of calibrate='cv+', use it. Pass it too."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # encode has said what there is to say of these rows
            return [read_rows(self, X, part.columns) for part in self.law_.without]

    def encode(self, X: Any) -> Array:
        """The numbers (N, q) that a table becomes: codes for categories, NaN for missing values."""
        check_is_fitted(self, "law_")
        return read_rows(self, X, self.law_.columns)

    def to_stored(self) -> Stored:
        """Everything that prediction needs: plain settings, tensors and regressors."""
        check_is_fitted(self, "law_")
        parameters = self.get_params(deep=False)
        plain, tensors, regressors = store_law(self.law_)
        base, law = parameters.pop("base"), parameters.pop("law")
        if not (base is None or isinstance(base, str)):
            regressors["base"], base = base, {"regressor": "base"}
        counts, seen = stored_values.store_seen(self.seen_rows_)
        fit, balls = None, None
        history: dict[str, Tensor] = {}
        if self._fit is not None:
            fit, history = stored_values.store_fit(self._fit)
        if self._chosen is not None:
            balls = {"delta": self._chosen.balls, "norm": self._chosen.norm}
            balls = stored_values.store_parameters(balls)
        plain |= {
            "parameters": {"base": base, "law": store_strategy(law)}
            | stored_values.store_parameters(parameters),
            "y_ndim": self._y_ndim,
            "balls": balls,
            "fit": fit,
            "seen_rows": counts,
        }
        return Stored(type(self).__name__, plain, tensors | history | seen, regressors)

    @classmethod
    def from_stored(cls, stored: Stored) -> LocalW2Regressor:
        """The estimator that ``to_stored`` described; its predictions are equal bit for bit."""
        with stored_values.check_fits_together(stored, cls.__name__):
            return cls._from_stored(stored)

    @classmethod
    def _from_stored(cls, stored: Stored) -> LocalW2Regressor:
        plain, tensors, regressors = stored.settings, stored.tensors, dict(stored.regressors)
        parameters = dict(plain["parameters"])
        law = restore_strategy(parameters.pop("law")) if "law" in parameters else None
        parameters = stored_values.restore_parameters(parameters)
        if parameters["base"] == {"regressor": "base"}:
            parameters["base"] = regressors.pop("base")
        elif parameters["base"] not in (None, "auto"):
            raise ValueError(f"base={parameters['base']!r} is unknown.")
        estimator = cls()
        known = _update_parameters(parameters) if law is None else parameters | {"law": law}
        stored_values.set_stored_parameters(estimator, known)
        law = restore_law(plain, tensors, regressors)
        d = len(law.outcomes.lower)
        fit = None
        if law.network is not None and plain["fit"] is not None:
            fit = stored_values.restore_fit(law.network.net, plain["fit"], tensors)
        estimator._keep(
            law,
            stored_values.whole_number(plain["y_ndim"], 1 if d == 1 else 2, 2),
            stored_values.restore_seen(plain.get("seen_rows"), tensors),
            None,
        )
        estimator._fit, estimator._chosen = fit, _restore_balls(plain.get("balls"))
        return estimator

    def _recipe(self, x: Array, y: Array, columns: Columns, weights: Array | None) -> Recipe:
        """The checked settings of a fit to rows x (N, p), y (N, d)."""
        settings.check_files(self.checkpoint, self.history, self.random_state)
        settings.check_norm_setting(self.norm)
        settings.check_delta(self.delta)
        settings.check_jobs(self.n_jobs)
        self._check_base(y.shape[1])
        laws, on_trial = choose_laws(self.law)
        plain = all(law.standardize for law in laws if isinstance(law, Network))
        # Without scales of their own the numbers reach the network's single precision as they are.
        for values, name in ((x[~np.isnan(x)], "X"), (y, "y")):
            check_range(values, name, LARGEST if plain else settings.LARGEST_SINGLE)
        fingerprint = settings.hash_fit(self.get_params(deep=False), x, y, weights)
        seed = settings.seed_fit(self.random_state, fingerprint if self.checkpoint is not None else None)
        return Recipe(
            columns=columns,
            laws=laws,
            on_trial=on_trial,
            outcomes=Outcomes.of(y, self.bounds, self.values),
            base=self.base,
            delta=self.delta,
            norm=self.norm,
            bounds=self.bounds,
            values=self.values,
            device=settings.find_device(self.device),
            n_jobs=self.n_jobs,
            seed=seed,
            verbose=bool(self.verbose),
            fingerprint=fingerprint,
            checkpoint=None if self.checkpoint is None else str(self.checkpoint),
            history=self.history,
        )

    def _warn_of_unused_balls(self) -> None:
        """Warn of settings that concern a network, where the default has none: other laws say so by name."""
        given = [
            f"{name}={value!r}"
            for name, value in (("delta", self.delta), ("norm", self.norm))
            if not isinstance(value, str)
        ]
        if given:
            warnings.warn(
                f"{' and '.join(given)} changed nothing: only a network is trained on such balls, and this "
                "fit has none (weights_ says what it has). Use law='network', or leave it out.",
                stacklevel=3,
            )

    def _check_base(self, d: int) -> None:
        """Raise unless the base is a regressor, and warn if it cannot be stored."""
        auto = isinstance(self.base, str) and self.base == "auto"
        # An unfitted stack of regressors has predict on its class only.
        methods = [name for name in ("fit", "predict") if hasattr(type(self.base), name)]
        if not (self.base is None or auto) and (isinstance(self.base, type) or len(methods) < 2):
            raise ValueError(
                f"base={self.base!r} is not a regressor; give 'auto', None or an instance such as Ridge()."
            )
        if not auto and self.base is not None:
            try:
                check_storable(self.base)
            except ValueError as error:
                warnings.warn(
                    f"This fit cannot be saved: {error} Choose another base if you want to keep it.",
                    stacklevel=4,
                )

    def _keep(
        self, law: ConditionalLaw, y_ndim: int, seen: SeenRows | None, trained: TrainedNetwork | None
    ) -> None:
        """Take over a law and what describes it, with nothing left of an older fit."""
        self._forget()
        self.law_, self._y_ndim, self.seen_rows_ = law, y_ndim, seen
        self._fit = None if trained is None else trained.fit
        self._chosen = None if trained is None else trained.chosen
        self._plan = None if trained is None else trained.plan
        self.n_features_in_, self.n_outputs_ = law.columns.n_features, len(law.outcomes.lower)
        if law.columns.names is not None:
            self.feature_names_in_ = np.array(law.columns.names, dtype=object)
        self.columns_ = None if law.columns.plain and not law.columns.dropped else law.columns
        self.weights_ = law.named_weights
        self.base_models_, self.base_name_ = law.mean.models, law.mean.name
        self.base_slope_, self.base_intercept_ = law.mean.slope, law.mean.intercept
        self.outcomes_, self.calibration_ = law.outcomes, law.calibration

    @property
    def model_(self) -> RandomMLP | NoiseMLP:
        """The trained network, in float64."""
        return self._of_network("model_").net

    @property
    def fit_(self) -> Fit:
        """The ``Fit`` of the network: history, settings and why training stopped."""
        self._of_network("fit_")
        assert self._fit is not None
        return self._fit

    @property
    def delta_(self) -> Any:
        """The balls that the network was trained on: ``Nearest(k)`` or a radius."""
        self._of_network("delta_")
        return None if self._chosen is None else self._chosen.balls

    @property
    def norm_(self) -> Norm | None:
        """The norm of those balls."""
        self._of_network("norm_")
        return None if self._chosen is None else self._chosen.norm

    @property
    def selection_(self) -> DeltaSelection | None:
        """How the balls were chosen, if they were; None after loading."""
        self._of_network("selection_")
        return None if self._chosen is None else self._chosen.selection

    @property
    def plan_(self) -> RowPlan | None:
        """What training used of the rows; None after loading."""
        self._of_network("plan_")
        return self._plan

    def _of_network(self, name: str) -> NetworkMember:
        if "law_" not in vars(self):
            raise AttributeError(f"{name} is there after fit.")
        member = self.law_.network
        if member is None:
            raise AttributeError(
                f"{name} belongs to a network, and this law has none: weights_ is {self.weights_}. "
                "Give law='network' to have one."
            )
        return member

    def _shaped(self, values: Array) -> Array:
        return values[..., 0] if self._y_ndim == 1 else values


def choose_laws(law: Any) -> tuple[tuple[Network | BallLaw, ...], Network | None]:
    """The laws that are pooled, and a network that is tried where it has a chance.

    >>> choose_laws("network")
    ((Network(...),), None)
    >>> [one.min_rows for one in choose_laws("balls")[0]]
    [2, 5, 40, 160, 640, 2]
    """
    balls: tuple[Network | BallLaw, ...] = (
        BallLaw(2),
        BallLaw(5),
        BallLaw(40),
        BallLaw(160),
        BallLaw(640),
        BallLaw(2, on="outcomes"),
    )
    words: dict[str, tuple[tuple[Network | BallLaw, ...], Network | None]] = {
        "auto": (balls, Network()),
        "balls": (balls, None),
        "network": ((Network(),), None),
    }
    if isinstance(law, str) and law in words:
        return words[law]
    laws = tuple(law) if isinstance(law, list | tuple) else (law,)
    if not laws or not all(isinstance(one, Network | BallLaw) for one in laws):
        raise ValueError(
            f"law={repr(law)[:80]} is unknown; give 'auto', 'network', 'balls', Network(...), BallLaw(...), "
            "or a list of these two."
        )
    if sum(isinstance(one, Network) for one in laws) > 1 or len({one.name for one in laws}) < len(laws):
        raise ValueError(
            f"law={repr(law)[:200]} holds the same kind twice; give one network and different balls."
        )
    return laws, None


def _update_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters of version 0.1 in today's form: the network had its settings among them."""
    own = {field.name for field in fields(Network)} & parameters.keys()
    law = Network(epochs=parameters["max_epochs"], **{name: parameters[name] for name in own})
    known = set(LocalW2Regressor().get_params()) & parameters.keys()
    return {name: parameters[name] for name in known} | {"law": law}


def _restore_balls(plain: Any) -> ChosenBalls | None:
    """The balls that a file names, if it does: a norm of the user's own is not stored."""
    if plain is None:
        return None
    delta, norm = (stored_values.restore_object(plain[name]) for name in ("delta", "norm"))
    if delta is None or norm is None:
        return None
    settings.check_delta(delta)
    if not isinstance(norm, Norm) or isinstance(delta, str | list | tuple):
        raise ValueError(f"balls={str(plain)[:80]} must be a radius or Nearest(k), and a norm.")
    return ChosenBalls(delta, norm, "stored")
