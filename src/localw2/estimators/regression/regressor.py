"""``LocalW2Regressor``: the whole distribution of y at every x, with scikit-learn's conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from localw2._validation import Array, check_count, check_flag
from localw2.balls.norms import Norm
from localw2.estimators.judged import Judged
from localw2.estimators.regression.answering import Answering
from localw2.estimators.regression.balls import check_delta, choose_balls
from localw2.estimators.regression.calibration import calibrated, clear_checkpoints, fitted_rows
from localw2.estimators.regression.integration import independent_draws
from localw2.estimators.regression.loss import ResidualLoss
from localw2.estimators.regression.many_rows import center_rows, plan_rows
from localw2.estimators.regression.outcomes import MATCHED_DRAWS, MATCHED_ROWS, Outcomes, check_outcomes
from localw2.estimators.regression.trained_choice import choose_by_training
from localw2.estimators.settings import (
    LARGEST,
    adopt,
    check_files,
    check_range,
    device_of,
    discrepancy_of,
    factor,
    fingerprint,
    fit_seed,
    moments,
)
from localw2.estimators.storing import restore_regressor, store_regressor
from localw2.estimators.tables import read_table
from localw2.judging.seen_rows import SeenRows
from localw2.models.network import RandomMLP
from localw2.storage.model_file import Stored, check_storable, write
from localw2.training.config import FitConfig
from localw2.training.loop import Fit, train

if TYPE_CHECKING:
    from localw2.losses.objective import Objective


@final
class LocalW2Regressor(Answering, Judged, RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""Regression that returns distributions: a mean plus a random network, fitted by the local W2 loss.

    .. math:: \hat y = m(x) + \hat f(x, \hat\omega)

    The default is debiased and centred: m is a scikit-learn regressor used out of fold, and the
    network :math:`\hat f` learns the law of what m leaves. ``base=None, debiased=False, standardize=False,
    delta=0.1, n_draws=1, depth=4, max_epochs=1000, learning_rate=0.025, schedule="constant"`` is the paper's
    method as printed, on x and y as they are. y needs a finite variance at every x.

    Parameters
    ----------
    base : "auto", None or a scikit-learn regressor
        The mean m. "auto" chooses by cross-validation, with rows weighted by inverse local variance, from
        ridge regression, polynomial ridge (degree 2 up to 20 columns, degree 3 up to 4), histogram gradient
        boosting, coarse and fine, and a kernel (a smooth mean). A regressor of yours is cloned and fitted as
        it is; None means no mean.
    delta : "auto", float, Nearest(k), or a list of these
        A number is the radius of the balls in the units of X, ``Nearest(k)`` the k nearest rows of each row.
        "auto" chooses k by ``select_delta`` from what the base leaves out of fold: rows are forecast by the
        others of their balls. Of a list that is taken whose network, trained on four fifths of the rows, best
        forecasts the others: one fit for each, on a GPU all at once. See ``selection_``.
    norm : "auto" or Norm
        The norm that balls are measured in. A ``Norm`` applies to X as given. "auto" is chosen with delta
        from standardised columns, columns weighted by how they move the base, by their slopes, and
        Mahalanobis; for ``Nearest(k)`` it is Euclidean on standardised columns, for a number on X as given.
    discrepancy : {"w2", "sliced", "mmd", "energy", "mse", "meanvar"} or Discrepancy
        "w2" is the squared W2 for one output. For several it is the sliced W2 if debiased, because
        debiased W2 is not minimised by the truth on few rows, and the exact assignment if not. "mse" and
        "meanvar" are the paper's comparisons: they do not identify the spread.
    debiased : bool
        Remove the shrinking of the spread by finite balls ("w2" and "sliced" only). With a base it also
        divides residuals by their local spread, so that rows weigh alike, and holds the mean of the network
        near 0 as far as the residuals show no mean in the balls (see ``anchor_strength``).
    width, depth, residual, activation
        The network, see ``RandomMLP``.
    n_draws : int
        Draws of the network at every row in a step of training.
    n_folds : int
        Folds of the base regressor. All fold models are kept; a draw uses one of them at random.
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
        A file with a line of JSON an epoch, written as training goes, for others to follow.
    storable : bool
        Refuse, before the fit, a base that ``save`` cannot store without pickle. False fits it anyway.
    calibrate : bool
        Make ``predict_interval`` cover as often as it says, by rows that the fit has not seen (see
        ``docs/calibration.md``). From 2000 rows on a fifth of them (at most 5000) is held out: coverage is
        then guaranteed. With fewer the fit, on all rows, is followed by 5 more (below 500 rows 10), each
        without that part of the rows, which takes 5 (10) times as long: close, but not guaranteed.
    bounds : "auto", None or (low, high)
        Ends that draws of every output keep to; either may be None, and y must lie between them. "auto" takes
        the smallest or largest y as an end if many rows have exactly that value (2 %, and 5 rows at least).
    values : "auto", None or a list of numbers
        Draws are moved to these, so that each comes as often as in the data; y must have no others. "auto"
        takes the values of y if they are few (50 at most, of 20 rows each on average), as of counts.
    device : str
        Where the network is trained; "auto" takes a GPU if there is one.
    random_state : None, int, RandomState or Generator
        With an int two fits of the same data are equal bit for bit (same machine and thread count).
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    base_models_ : the fitted base regressor of every fold, () without a base.
    base_name_ : which base was chosen; "given" or "none".
    base_slope_, base_intercept_ : (d,), m is ``base_intercept_ + base_slope_ * base``: the regression of y
        on the out-of-fold predictions. A base that finds only noise gets slope 0.
    delta_, norm_ : the balls that the loss was taken on (``Nearest(k)`` or a radius) and their norm.
    selection_ : the ``DeltaSelection`` of ``delta="auto"`` or a list, else None; not of a loaded estimator.
    plan_ : the ``RowPlan``, what the fit used of its rows; a loaded estimator has it no more.
    model_ : the trained ``RandomMLP`` in float64.
    fit_ : the ``Fit``: history, settings and why training stopped.
    columns_ : how columns of names and missing values became numbers (see ``estimators.columns``), or None.
    outcomes_ : the ``Outcomes`` that draws keep to.
    calibration_ : with ``calibrate`` the ``Calibration`` that intervals rest on, else None.
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

    # Known before the fit: a part of a calibration has those of the whole.
    _chosen_base: str | None = None
    _known_outcomes: Outcomes | None = None

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
        """What scikit-learn should know: several outputs, missing values and names are welcome."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the law of y given x from rows X (N, p) and outputs y (N,) or (N, d)."""
        # A copy is fitted: a refit that fails leaves the old fit whole.
        adopt(self, type(self)(**self.get_params(deep=False))._fit(X, y))
        clear_checkpoints(self)
        return self

    def _fit(self, X: Any, y: Any) -> Self:
        X, y, self.columns_ = read_table(self, X, y)
        self._check_settings()
        outputs = np.ascontiguousarray(y, dtype=np.float64).reshape(len(X), -1)
        # Without scales of their own the numbers meet the network's float32.
        for values, name in ((X, "X"), (outputs, "y")):
            check_range(values, name, LARGEST if self.standardize else 1e18)
        self._y_ndim, self.n_outputs_ = y.ndim, outputs.shape[1]
        self.outcomes_ = self._known_outcomes or Outcomes.of(outputs, self.bounds, self.values)
        data = fingerprint(self, X, outputs)
        seed = fit_seed(self.random_state, data if self.checkpoint is not None else None)
        config, device = self._config(seed, data), device_of(self.device)
        net = RandomMLP(
            X.shape[1],
            self.n_outputs_,
            self.width,
            self.depth,
            self.residual,
            self.activation,
            generator=torch.Generator().manual_seed(seed),
        )
        rows = fitted_rows(self.calibrate, len(X), seed)
        objective, center = self._objective(X[rows], outputs[rows], net.to(device), config)
        inputs = self._inputs(X[rows]).to(device, torch.float32)
        self.fit_: Fit = train(net, objective, inputs, self.plan_.applied(config))
        self.model_ = net.cpu().double().eval()
        self._prediction_seed = seed
        if not self.outcomes_.free:
            self.outcomes_ = self._matched(X[rows], outputs[rows], center, seed)
        self.seen_rows_ = SeenRows.of(X, outputs)
        self.calibration_ = calibrated(self, X, outputs, seed) if self.calibrate else None
        return self

    def to_stored(self) -> Stored:
        """Everything that prediction needs: plain settings, tensors and regressors (see ``persistence``)."""
        check_is_fitted(self, "model_")
        return store_regressor(self)

    @classmethod
    def from_stored(cls, stored: Stored) -> LocalW2Regressor:
        """The estimator that ``to_stored`` described; its predictions are equal bit for bit."""
        estimator = cls()
        restore_regressor(estimator, stored)
        return estimator

    def save(self, path: Any) -> None:
        """Write the fitted estimator to one file without pickle; ``localw2.load`` reads it."""
        write(path, self.to_stored())

    def _check_settings(self) -> None:
        for name in ("debiased", "residual", "standardize", "storable", "calibrate"):
            check_flag(getattr(self, name), name)
        check_count(self.n_folds, "n_folds", 2, why="a row needs a base model that has not seen it")
        check_files(self)
        if not (isinstance(self.norm, Norm) or (isinstance(self.norm, str) and self.norm == "auto")):
            raise ValueError(f"norm={self.norm!r} is not known; give 'auto' or a Norm, such as Euclidean().")
        check_delta(self.delta)
        check_outcomes(self.bounds, self.values)
        if self.base is None or (isinstance(self.base, str) and self.base == "auto"):
            return
        # Of a stack of regressors only the class has predict before it is fitted.
        methods = [name for name in ("fit", "predict") if hasattr(type(self.base), name)]
        if isinstance(self.base, type) or len(methods) < 2:
            raise ValueError(
                f"base={self.base!r} is not a regressor; give 'auto', None or an instance such as Ridge()."
            )
        if self.storable:
            try:
                check_storable(self.base)
            except ValueError as error:
                raise ValueError(
                    f"This fit could not be saved: {error} Choose another base, or give storable=False "
                    "to fit without save()."
                ) from error

    def _config(self, seed: int, data: str) -> FitConfig:
        return FitConfig(
            max_epochs=self.max_epochs,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            n_draws=self.n_draws,
            batch_balls=self.batch_balls,
            seed=seed,
            progress=bool(self.verbose),
            checkpoint=None if self.checkpoint is None else str(self.checkpoint),
            resume=self.checkpoint is not None,
            history=self.history,
            fingerprint=data,
        )

    def _objective(self, X: Array, y: Array, net: RandomMLP, config: FitConfig) -> tuple[Objective, Array]:
        """The loss on what the base leaves, and its means out of fold; learns scales and base on the way."""
        device = next(net.parameters()).device
        discrepancy = discrepancy_of(self.discrepancy, self.debiased, self.n_outputs_)
        self._x_mean, self._x_scale = moments(X, self.standardize)
        mean, base_rows = center_rows(
            self.base, X, y, self.n_folds, config.seed % 2**32, self._chosen_base, self.standardize
        )
        self.base_models_, self.base_name_ = mean.models, mean.name
        self.base_slope_, self.base_intercept_ = mean.slope, mean.intercept
        residuals = y - mean.out_of_fold
        self._y_factor, whiten = factor(residuals, self.standardize)
        residuals = residuals @ whiten
        loss = ResidualLoss(discrepancy, self.base is not None and self.debiased, device)
        if isinstance(self.delta, list | tuple):
            options = [choose_balls(X, y, mean, delta, self.norm, self.debiased) for delta in self.delta]
            inputs = self._inputs(X).to(device, torch.float32)
            chosen = choose_by_training(options, X, residuals, inputs, net, loss, config)
        else:
            chosen = choose_balls(X, y, mean, self.delta, self.norm, self.debiased)
        self.delta_, self.norm_, self.selection_ = chosen.balls, chosen.norm, chosen.selection
        balls = chosen.neighborhoods(X)
        self.plan_ = plan_rows(balls, chosen.balls, self.batch_balls, base_rows)
        return loss.objective(
            X, residuals, chosen, balls, self.plan_.batch_balls is not None
        ), mean.out_of_fold

    def _matched(self, X: Array, y: Array, center: Array, seed: int) -> Outcomes:
        """Outcomes whose cuts suit the draws at some of the rows."""
        chosen = np.random.default_rng(seed).permutation(len(X))[:MATCHED_ROWS]
        generator = torch.Generator().manual_seed(seed)
        draws = independent_draws(self.model_, self._inputs(X[chosen]), MATCHED_DRAWS, generator).numpy()
        return self.outcomes_.matched((draws @ self._y_factor + center[chosen]).reshape(-1, y.shape[1]), y)
