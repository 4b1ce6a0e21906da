"""``LocalW2Regressor``: the whole distribution of y at every x, with scikit-learn's conventions."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from localw2._validation import Array, check_count, check_flag, check_probability
from localw2.balls.norms import Norm
from localw2.estimators import settings, stored_values
from localw2.estimators.judged import Judged
from localw2.estimators.regression.balls import ChosenBalls
from localw2.estimators.regression.fitting import Recipe, learn
from localw2.estimators.regression.law import ConditionalLaw
from localw2.estimators.regression.mean import list_kinds
from localw2.estimators.regression.network import Network
from localw2.estimators.regression.outcomes import Outcomes
from localw2.estimators.tables import Columns, read_rows, read_table
from localw2.judging.seen_rows import SeenRows
from localw2.storage.model_file import Stored
from localw2.storage.regressors import check_bases_storable, check_storable

if TYPE_CHECKING:
    from localw2.estimators.regression.balls import RowPlan
    from localw2.training.config import Fit

_NETWORK = tuple(field.name for field in fields(Network))  # settings of the network, by the same names here


@final
class LocalW2Regressor(Judged, stored_values.Storable, RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""Regression that returns distributions: a mean plus a random network, fitted by the local W2 loss.

    .. math:: \hat y = m(x) + \hat f(x, \hat\omega)

    The default is debiased and centred: m is a scikit-learn regressor, cross-fitted, and the network
    :math:`\hat f` learns the conditional distribution of the residuals. ``base=None, debiased=False,
    standardize=False, delta=0.1, n_draws=1, depth=4, max_epochs=1000, learning_rate=0.025,
    schedule="constant"`` is the paper's method as printed, on x and y as they are. y needs a finite variance
    at every x.

    Parameters
    ----------
    base : "auto", None or a scikit-learn regressor
        The mean m. "auto" chooses by cross-validation, with rows weighted by inverse local variance, between
        ridge regression, polynomial ridge (degree 2 up to 20 columns, degree 3 up to 4), histogram gradient
        boosting, coarse and fine, and a kernel (a smooth mean). A regressor of yours is cloned and fitted as
        it is; None means no mean.
    delta : "auto", float, Nearest(k), or a list of these
        A number is the radius of the balls in the units of X, ``Nearest(k)`` takes the k nearest rows of each
        row. "auto" chooses k by ``select_delta`` from the out-of-fold residuals: each row is predicted by the
        other rows of its ball. Given a list, the entry whose network, trained on four fifths of the rows,
        predicts the held-out rows best is used; that takes one fit per entry, on a GPU all at once. See
        ``selection_``.
    norm : "auto" or Norm
        The norm in which balls are measured. A ``Norm`` applies to X as given. "auto" is chosen with delta
        from standardised columns, columns weighted by how much they move the base or by their slopes, and
        Mahalanobis; for ``Nearest(k)`` it is Euclidean on standardised columns, for a number on X as given.
    discrepancy : {"w2", "sliced", "mmd", "energy", "mse", "meanvar"} or Discrepancy
        "w2" is the squared W2 for one output. For several outputs it is the sliced W2 if debiased, because
        the debiased W2 is not minimised by the truth on few rows, and the exact assignment if not. "mse" and
        "meanvar" are the paper's comparisons: they do not identify the spread.
    debiased : bool
        Remove the shrinkage of the spread by finite balls ("w2" and "sliced" only). With a base it also
        divides residuals by their local spread, so that rows have equal weight, and holds the mean of the
        network near 0 where the residuals show no mean in the balls (see ``anchor_strength``).
    width, depth, residual, activation
        The network, see ``RandomMLP``.
    n_draws : int
        Draws of the network at every row in a training step.
    n_folds : int
        Folds of the base regressor. All fold models are kept; each draw uses one of them at random.
    standardize : bool
        Train the network on standardised X and on residuals of unit spread, several outputs decorrelated.
    max_epochs, learning_rate, weight_decay, schedule, batch_balls
        Training, see ``FitConfig``; ``batch_balls=None`` takes all balls in a step. Beyond 50 000 rows an
        epoch is a few steps on some balls, and "auto" fits the base to a sample (see ``plan_``).
    checkpoint : path or None
        A file to continue from: a fit that was killed resumes when ``fit`` is called again with the same data
        and settings. It is removed when the fit is done. With ``random_state=None`` the random numbers then
        follow from data and settings, so that the second call finds the first.
    history : path or None
        A file that gets a line of JSON per epoch while training runs, for others to follow.
    storable : bool
        Refuse, before the fit, a base that ``save`` cannot store without pickle. False fits it anyway.
    calibrate : bool
        Make ``predict_interval`` cover as often as it claims, using rows that the fit has not seen (see
        ``docs/calibration.md``). From 2000 rows on a fifth of them (at most 5000) is held out, and coverage
        is guaranteed. With fewer rows the fit to all of them is followed by 5 more (10 below 500 rows), each
        without a part of the rows, which takes 5 (10) times as long: close, but not guaranteed.
    bounds : "auto", None or (low, high)
        Bounds that draws of every output respect; either may be None, and y must lie between them. "auto"
        takes the smallest or largest y as a bound if many rows (2 %, and at least 5) have exactly that value.
    values : "auto", None or a list of numbers
        Draws are moved to these values, so that each comes as often as in the data; y must have no others.
        "auto" takes the values of y if they are few, as counts are (at most 50, 20 rows each on average).
    device : str
        Where the network is trained; "auto" takes a GPU if there is one.
    random_state : None, int, RandomState or Generator
        With an int two fits to the same data are equal bit for bit (on the same machine and thread count).
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    law_ : the ``ConditionalLaw``, a frozen object that draws and answers; everything below describes it.
    base_models_ : the fitted base regressor of every fold, () without a base.
    base_name_ : which base was chosen; "given" or "none".
    base_slope_, base_intercept_ : (d,), m is ``base_intercept_ + base_slope_ * base``: the regression of y
        on the out-of-fold predictions. A base that finds only noise gets slope 0.
    delta_, norm_ : the balls that the loss was taken on (``Nearest(k)`` or a radius) and their norm.
    selection_ : the ``DeltaSelection`` of ``delta="auto"`` or of a list, else None; None after loading.
    plan_ : the ``RowPlan``, what the fit used of its rows; None after loading.
    model_ : the trained ``RandomMLP`` in float64.
    fit_ : the ``Fit``: history, settings and why training stopped.
    columns_ : how categorical columns and missing values became numbers (``estimators.tables``), or None.
    outcomes_ : the ``Outcomes``, bounds and values that draws respect.
    calibration_ : with ``calibrate`` the ``Calibration`` behind the intervals, else None.
    n_features_in_, feature_names_in_, n_outputs_ : as in scikit-learn.

    Examples
    --------
    >>> from localw2.datasets import Nonlinear
    >>> x, y = Nonlinear().sample(300, random_state=0)
    >>> model = LocalW2Regressor(max_epochs=100, width=20, random_state=0).fit(x, y)
    >>> model.predict([[0.4]]).round(), model.sample([[0.4], [-0.4]], n_samples=5).shape
    (array([8.]), (5, 2))
    >>> lower, upper = model.predict_interval([[0.4]], coverage=0.9)
    >>> bool(lower < 8.4 < upper)
    True
    """

    def __init__(
        self,
        base: Any = "auto",
        delta: Any = "auto",
        norm: Any = "auto",
        discrepancy: Any = "w2",
        debiased: bool = True,
        width: int = 50,
        depth: int = 2,
        residual: bool = True,
        activation: str = "relu",
        n_draws: int = 4,
        n_folds: int = 10,
        standardize: bool = True,
        max_epochs: int = 400,
        learning_rate: float = 0.02,
        weight_decay: float = 0.005,
        schedule: str = "cosine",
        batch_balls: int | None = None,
        checkpoint: Any = None,
        history: Any = None,
        storable: bool = True,
        calibrate: bool = False,
        bounds: Any = "auto",
        values: Any = "auto",
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.base = base
        self.delta = delta
        self.norm = norm
        self.discrepancy = discrepancy
        self.debiased = debiased
        self.width = width
        self.depth = depth
        self.residual = residual
        self.activation = activation
        self.n_draws = n_draws
        self.n_folds = n_folds
        self.standardize = standardize
        self.max_epochs = max_epochs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.batch_balls = batch_balls
        self.checkpoint = checkpoint
        self.history = history
        self.storable = storable
        self.calibrate = calibrate
        self.bounds = bounds
        self.values = values
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn should know: several outputs, missing values and categories are welcome."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the conditional distribution of y given x from rows X (N, p) and outputs y (N,) or (N, d)."""
        # A fresh estimator reads the table: a refit that fails leaves the old fit whole.
        x, y, columns = read_table(type(self)(), X, y)
        outputs = np.ascontiguousarray(y, dtype=np.float64).reshape(len(x), -1)
        recipe = self._recipe(x, outputs, columns)
        law, trained = learn(recipe, x, outputs)
        self._keep(law, y.ndim, trained.fit, SeenRows.of(x, outputs), trained.chosen, trained.plan)
        if self.checkpoint is not None and trained.fit.stopped == "all epochs done":
            settings.remove_checkpoints(*recipe.checkpoints)
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
        are calibrated if the fit was (``calibrate=True``), and otherwise quantiles of the draws.
        """
        x = self.encode(X)
        coverage, joint = check_probability(coverage, "coverage"), check_flag(joint, "joint")
        if self.calibrate and self.calibration_ is None:
            warnings.warn(
                "calibrate=True, but this fit is not calibrated: it was interrupted, or made without. These "
                "intervals are quantiles of the draws; fit again to calibrate them.",
                stacklevel=2,
            )
        lower, upper = self.law_.interval(x, coverage, joint)
        return self._shaped(lower), self._shaped(upper)

    def encode(self, X: Any) -> Array:
        """The numbers (N, q) that the rows of a table become: what the network and the base see."""
        check_is_fitted(self, "law_")
        return read_rows(self, X, self.law_.columns)

    def on_numbers(self) -> LocalW2Regressor:
        """The same fit as an estimator of the numbers that ``encode`` gives."""
        check_is_fitted(self, "law_")
        view = type(self)(**self.get_params(deep=False))
        law = replace(self.law_, columns=Columns(self.law_.columns.width))
        view._keep(law, self._y_ndim, self.fit_, self.seen_rows_, self._chosen, self.plan_)
        return view

    def to_stored(self) -> Stored:
        """Everything that prediction needs: plain settings, tensors and regressors."""
        check_is_fitted(self, "law_")
        parameters = self.get_params(deep=False)
        plain, tensors, regressors = self.law_.to_stored()
        base = parameters.pop("base")
        if not (base is None or isinstance(base, str)):
            regressors["base"], base = base, {"regressor": "base"}
        fit, history = stored_values.store_fit(self.fit_)
        counts, seen = stored_values.store_seen(self.seen_rows_)
        balls = None
        if self._chosen is not None:
            balls = {"delta": self._chosen.balls, "norm": self._chosen.norm}
            balls = stored_values.store_parameters(balls)
        plain |= {
            "parameters": {"base": base} | stored_values.store_parameters(parameters),
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
        parameters = stored_values.restore_parameters(plain["parameters"])
        if parameters["base"] == {"regressor": "base"}:
            parameters["base"] = regressors.pop("base")
        elif parameters["base"] not in (None, "auto"):
            raise ValueError(f"base={parameters['base']!r} is unknown.")
        n_models = len(regressors.keys() - {"columns"})
        if (plain["base_name"] == "none") != (n_models == 0):
            raise ValueError(f"there are {n_models} base models for the base {plain['base_name']!r}.")
        estimator = cls()
        estimator.set_params(**parameters)
        law = ConditionalLaw.from_stored(plain, tensors, regressors)
        d = len(law.outcomes.lower)
        estimator._keep(
            law,
            stored_values.whole_number(plain["y_ndim"], 1 if d == 1 else 2, 2),
            stored_values.restore_fit(law.network.net, plain["fit"], tensors),
            stored_values.restore_seen(plain.get("seen_rows"), tensors),
            _restore_balls(plain.get("balls")),
            None,
        )
        return estimator

    def _recipe(self, x: Array, y: Array, columns: Columns) -> Recipe:
        """The checked settings of a fit to rows x (N, p), y (N, d)."""
        for name in ("storable", "calibrate"):
            check_flag(getattr(self, name), name)
        check_count(self.n_folds, "n_folds", 2, why="a row needs a base model that has not seen it")
        settings.check_files(self.checkpoint, self.history, self.random_state)
        settings.check_norm_setting(self.norm)
        settings.check_delta(self.delta)
        self._check_base(y.shape[1])
        # Without scales of their own the numbers reach the network's single precision as they are.
        for values, name in ((x, "X"), (y, "y")):
            settings.check_range(
                values, name, settings.LARGEST if self.standardize else settings.LARGEST_SINGLE
            )
        fingerprint = settings.hash_fit(self.get_params(deep=False), x, y)
        seed = settings.seed_fit(self.random_state, fingerprint if self.checkpoint is not None else None)
        device = settings.find_device(self.device)
        discrepancy = settings.choose_discrepancy(self.discrepancy, self.debiased, y.shape[1])
        own = {name: getattr(self, name) for name in _NETWORK if name != "discrepancy"}
        return Recipe(
            columns=columns,
            network=Network(discrepancy, **own),
            outcomes=Outcomes.of(y, self.bounds, self.values),
            base=self.base,
            delta=self.delta,
            norm=self.norm,
            n_folds=self.n_folds,
            calibrate=self.calibrate,
            device=device,
            seed=seed,
            verbose=bool(self.verbose),
            fingerprint=fingerprint,
            checkpoint=None if self.checkpoint is None else str(self.checkpoint),
            history=self.history,
        )

    def _check_base(self, d: int) -> None:
        """Raise unless the base is a regressor that can be stored, or need not be."""
        auto = isinstance(self.base, str) and self.base == "auto"
        # An unfitted stack of regressors has predict on its class only.
        methods = [name for name in ("fit", "predict") if hasattr(type(self.base), name)]
        if not (self.base is None or auto) and (isinstance(self.base, type) or len(methods) < 2):
            raise ValueError(
                f"base={self.base!r} is not a regressor; give 'auto', None or an instance such as Ridge()."
            )
        if self.storable and self.base is not None:
            try:
                if auto:
                    check_bases_storable(list_kinds(d))
                else:
                    check_storable(self.base)
            except ValueError as error:
                raise ValueError(
                    f"This fit could not be saved: {error} Choose another base, or give storable=False "
                    "to fit without save()."
                ) from error

    def _keep(
        self,
        law: ConditionalLaw,
        y_ndim: int,
        fit: Fit,
        seen: SeenRows | None,
        chosen: ChosenBalls | None,
        plan: RowPlan | None,
    ) -> None:
        """Take over a law and what describes it, with nothing left of an older fit."""
        self._forget()
        self.law_, self._y_ndim, self._chosen = law, y_ndim, chosen
        self.fit_, self.seen_rows_, self.plan_ = fit, seen, plan
        self.n_features_in_, self.n_outputs_ = law.columns.n_features, len(law.outcomes.lower)
        if law.columns.names is not None:
            self.feature_names_in_ = np.array(law.columns.names, dtype=object)
        self.columns_ = law.columns if law.columns.encoder is not None else None
        self.base_models_, self.base_name_ = law.mean.models, law.mean.name
        self.base_slope_, self.base_intercept_ = law.mean.slope, law.mean.intercept
        self.model_ = law.network.net
        self.outcomes_, self.calibration_ = law.outcomes, law.calibration
        self.selection_ = None if chosen is None else chosen.selection
        if chosen is not None:
            self.delta_, self.norm_ = chosen.balls, chosen.norm

    def _shaped(self, values: Array) -> Array:
        return values[..., 0] if self._y_ndim == 1 else values


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
