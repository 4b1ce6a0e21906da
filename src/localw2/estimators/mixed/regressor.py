"""``LocalW2MixedRegressor``: the joint distribution of numbers and categories at every x."""

from __future__ import annotations

import warnings
from typing import Any, Self, final

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from localw2._validation import Array, check_count, check_flag
from localw2.distribution import DrawsDistribution
from localw2.estimators import cells, settings, stored_values
from localw2.estimators.judged import Tabled
from localw2.estimators.mixed.class_model import ClassModel
from localw2.estimators.mixed.coding import OutputCoding, check_classes, list_labels
from localw2.estimators.mixed.fitting import MixedRecipe, check_network, find_usual_rows, learn_mixed
from localw2.estimators.mixed.judging import CategoricalDistribution, MixedDiagnosis, judge_classes
from localw2.estimators.mixed.law import MixedLaw
from localw2.estimators.mixed.views import NumberOutputs, PointOutputs
from localw2.estimators.powers import Powers
from localw2.estimators.regression.regressor import LocalW2Regressor
from localw2.estimators.tables import Columns, read_rows, read_table
from localw2.judging.seen_rows import SeenRows, SeenRowsWarning, describe_seen, judge_seen
from localw2.judging.swap_test.conditional import ConditionalTest, conditional_test
from localw2.metrics import energy_score
from localw2.models.sampler import encode_rows
from localw2.storage.model_file import Stored

_PARTS = ("balls", "numbers", "network")
FEWEST_ROWS = 5
_SCORED = 100  # draws that a score takes


def _has_classes(model: Any) -> bool:
    """Whether there are probabilities of classes, as far as is known before a fit."""
    coding = getattr(model, "coding_", None)
    if coding is None or coding.classes:
        return True
    raise AttributeError("no column of Y is categorical; name labels that are numbers by categorical=[...].")


@final
class LocalW2MixedRegressor(Tabled, stored_values.Storable, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The joint distribution of several outputs, numbers and categories, at every x.

    Rows of balls are drawn whole, so that a class and a number of one row stay together: a draw takes the
    combination of classes by its probability, a row of a ball at x that has it, and adds that row's residuals
    to the cross-fitted mean of the numbers. The probabilities are those of the balls, mixed with a
    multinomial logistic regression on polynomials in x, by the log loss of held-out rows. A network learns
    points by the local loss, in which a category is a vertex of a simplex, and is weighted by the energy
    score of held-out rows; its draws are the nearest vertices. What a mismatch of categories costs beside a
    number is chosen so that both weigh alike (``estimators.mixed.coding``). One categorical output alone is a
    classifier.

    Parameters
    ----------
    law : "auto", "balls", "network" or Network
        "auto" is balls, with a network where there are at most two columns and it predicts better.
    base : "auto", None or a scikit-learn regressor
        The mean of the numbers, as in ``LocalW2Regressor``.
    categorical : None, or names or places of columns of Y
        Columns of whole numbers that are labels. Text, truth values and categories of pandas are categorical
        anyway.
    n_jobs : int or None
        How many trees are grown at the same time; None and -1 mean all cores.
    random_state : None, int, RandomState or Generator
        With an int two fits to the same data are equal.

    Attributes
    ----------
    law_ : the ``MixedLaw``.
    classes_ : the classes of each categorical column by its name; an array if Y is one categorical column.
    coding_ : the ``OutputCoding``: which columns are numbers, and what a mismatch costs.
    columns_ : how the columns of X became numbers (``estimators.tables``).
    weights_ : the weights of balls and network in the law.
    smooth_share_ : the share of the logistic regression in the probabilities of the balls.
    n_features_in_, feature_names_in_, n_outputs_ : as in scikit-learn.

    Examples
    --------
    >>> import pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(-1, 1, (400, 1))
    >>> kind = np.where(rng.random(400) < 1 / (1 + np.exp(-3 * x[:, 0])), "high", "low")
    >>> level = np.where(kind == "high", 2.0, 0.0) + rng.normal(0, 0.3, 400)
    >>> Y = pd.DataFrame({"kind": kind, "level": level})
    >>> model = LocalW2MixedRegressor(law="balls", random_state=0).fit(x, Y)
    >>> model.predict_proba([[1.0]])["kind"].round(1)
    array([[0.9, 0.1]])
    >>> draws = model.sample([[0.0]], n_samples=500, random_state=0)
    >>> draws.groupby("kind")["level"].mean().round(0).astype(int).to_dict()
    {'high': 2, 'low': 0}
    """

    def __init__(
        self,
        law: Any = "auto",
        base: Any = "auto",
        categorical: Any = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.law = law
        self.base = base
        self.categorical = categorical
        self.n_jobs = n_jobs
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn should know: several outputs, missing inputs and categories are welcome."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows X (N, p) and outputs y: a frame, a series, or an array (N,) or (N, d).

        ``sample_weight`` (N,) >= 0 says how much a row counts relative to others, as in ``LocalW2Regressor``:
        only ratios matter, and a row of weight 0 is as if it were not there.
        """
        settings.check_jobs(self.n_jobs)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        Y, weights = cells.as_pandas(y), None
        if sample_weight is not None:
            X, Y, _, weights = settings.weigh_rows(X, Y, sample_weight)
        coding, numbers, codes = OutputCoding.learn(Y, self.categorical, weights)
        target = np.column_stack([numbers, codes]) if numbers.shape[1] else codes.astype(np.float64)
        reader = LocalW2Regressor()
        x, _, columns = read_table(reader, X, target[:, 0] if target.shape[1] == 1 else target)
        if len(x) < FEWEST_ROWS:
            raise ValueError(f"there are {len(x)} rows; at least {FEWEST_ROWS} are needed to hold some out.")
        rows = columns.expand(x)
        points = coding.embed(numbers, codes)
        center, scale = rows.mean(0), rows.std(0)
        scale = np.where(scale > 1e-12 * np.abs(center), scale, 1.0)
        kept = find_usual_rows(numbers)
        network, alone = check_network(self.law, rows.shape[1])
        seed = settings.draw_seed(self.random_state) % 2**32
        recipe = MixedRecipe(coding, network, alone, self.base, self.n_jobs, seed)
        with settings.share_threads(rows.size, self.n_jobs):
            law = learn_mixed(
                recipe,
                ((rows - center) / scale)[kept],
                numbers[kept],
                codes[kept],
                None if weights is None else weights[kept],
            )
        self._keep(law, columns, center, scale, SeenRows.of(rows[kept], points[kept]))
        return self

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None, as_array: bool = False) -> Any:
        """Independent draws of all outputs together at every row.

        If Y was a frame, a frame with the same columns and S * N rows, whose index has ``draw`` and ``row``.
        Otherwise, or with ``as_array``, an array (S, N, d), or (S, N) for one output, in which a category is
        its place in ``coding_.classes``.
        """
        numbers, codes = self.draw(X, n_samples, random_state)
        if check_flag(as_array, "as_array") or not self.coding_.framed:
            return self.coding_.as_array(numbers, codes)
        return self._frame(numbers, codes, *numbers.shape[:2])

    def sample_columns(self, X: Any, n_samples: int = 1, random_state: Any = None) -> dict[str, Array]:
        """The draws of ``sample`` as an array (S, N) for each output, by its name; classes are as in Y."""
        numbers, codes = self.draw(X, n_samples, random_state)
        columns = self.coding_.as_columns(numbers, codes)
        return {name: values.reshape(numbers.shape[:2]) for name, values in columns.items()}

    def predict(self, X: Any) -> Any:
        """The mean of numbers and the most probable class of categories, in the form of Y."""
        x = self.standardise(X)
        means = [numbers.mean(0) for _, numbers, _ in self.law_.common_draws(x)]
        numbers = np.concatenate(means)
        probabilities = self.law_.column_probabilities(x)
        codes = (
            np.stack([p.argmax(1) for p in probabilities], 1)
            if probabilities
            else np.empty((len(x), 0), np.int64)
        )
        if self.coding_.framed:
            return self._frame(numbers, codes)
        if self.coding_.classes:
            found = list(self.coding_.as_columns(numbers, codes).values())
            return found[0] if self.coding_.single else np.stack([one.astype(object) for one in found], 1)
        return self.coding_.as_array(numbers, codes)

    @available_if(_has_classes)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    def predict_proba(self, X: Any) -> Any:
        """The probabilities (N, K) of the classes of each categorical column, by its name.

        If Y is one categorical column, the array alone, as classifiers return it.
        """
        x = self.standardise(X)
        found = self.law_.column_probabilities(x)
        if self.coding_.single:
            return found[0]
        return dict(zip(self.class_names, found, strict=True))

    def predict_distribution(self, X: Any) -> dict[str, DrawsDistribution | CategoricalDistribution]:
        """The distribution of each column at every row, by its name.

        A number has a ``DrawsDistribution``, a category a ``CategoricalDistribution``, which has ``pmf``,
        ``mode``, ``entropy`` and ``rvs``.
        """
        x = self.standardise(X)
        draws = np.concatenate([numbers for _, numbers, _ in self.law_.common_draws(x)], 1)
        numeric = {
            self.coding_.names[j]: DrawsDistribution.of(draws[..., k])
            for k, j in enumerate(self.coding_.numeric)
        }
        found = zip(self.coding_.classes.values(), self.law_.column_probabilities(x), strict=True)
        classes = {
            name: CategoricalDistribution(words, probabilities)
            for name, (words, probabilities) in zip(self.class_names, found, strict=True)
        }
        every: dict[str, DrawsDistribution | CategoricalDistribution] = {**numeric, **classes}
        return {name: every[name] for name in self.coding_.names}

    def score(self, X: Any, y: Any) -> float:
        """Minus the mean energy score of all outputs together, as points; larger is better."""
        return -float(self.energy_scores(X, y).mean())

    def energy_scores(self, X: Any, Y: Any, n_samples: int = _SCORED, random_state: Any = 0) -> Array:
        """The energy score (N,) of each row: numbers in SDs, a mismatch at its cost; lower is better."""
        points = self.encode_outputs(Y)
        rng = np.random.default_rng(settings.draw_seed(random_state))
        draws = self.law_.sample(self.standardise(X), check_count(n_samples, "n_samples", 2), rng)
        return energy_score(points, self.coding_.embed(*draws))

    def encode_outputs(self, Y: Any) -> Array:
        """Outputs as points (N, D), in which distances add up what numbers and categories differ by."""
        check_is_fitted(self, "law_")
        return self.coding_.embed(*self.coding_.read(cells.as_pandas(Y)))

    def diagnose(
        self, X: Any, Y: Any, n_samples: int = 200, random_state: Any = 0, names: Any = None
    ) -> MixedDiagnosis:
        """Check on rows not trained on: a diagnosis of the numbers, and calibration of the classes.

        ``names`` are other names for all columns of X.
        """
        check_is_fitted(self, "law_")
        numbers, codes = self.coding_.read(cells.as_pandas(Y))
        share = self._find_seen(X, self.coding_.embed(numbers, codes))
        view = NumberOutputs(self)
        options = {"n_samples": n_samples, "random_state": random_state, "names": names}
        found = view.diagnose(X, numbers, **options) if numbers.shape[1] else None
        probabilities = self.law_.column_probabilities(self.standardise(X))
        classes = judge_classes(self.coding_, codes, probabilities)
        return MixedDiagnosis(found, classes, share, len(numbers))

    def conditional_test(
        self, X: Any, Y: Any, delta: Any = "auto", random_state: Any = None, **options: Any
    ) -> ConditionalTest:
        """The exact test of ``localw2.conditional_test`` on the points of all outputs together."""
        points = self.encode_outputs(Y)
        return conditional_test(X, points, PointOutputs(self), delta, random_state=random_state, **options)

    def encode(self, X: Any) -> Array:
        """The numbers (N, q) that a table becomes: codes for categories, NaN for missing values."""
        check_is_fitted(self, "law_")
        return read_rows(self, X, self.columns_)

    def standardise(self, X: Any) -> Array:
        """The rows of a table as the law takes them: finite numbers (N, p), in standard deviations."""
        rows = self.encode(X)
        found: Array = (self.columns_.expand(rows) - self._center) / self._scale
        return found

    @property
    def class_names(self) -> list[str]:
        """The names of the categorical columns."""
        check_is_fitted(self, "law_")
        return [self.coding_.names[j] for j in self.coding_.classes]

    def to_stored(self) -> Stored:
        """Everything that prediction needs: plain settings, tensors and regressors."""
        check_is_fitted(self, "law_")
        law, coding = self.law_, self.coding_
        parameters = self.get_params(deep=False)
        own = {name: parameters.pop(name) for name in ("law", "base")}
        own = {
            name: value if value is None or isinstance(value, str) else None for name, value in own.items()
        }
        if any(own[name] is None and getattr(self, name) is not None for name in own):
            warnings.warn(
                "law and base are stored as settings only if they are words; a loaded estimator draws the "
                "same and refits with the defaults unless you set them.",
                stacklevel=3,
            )
        labels = parameters.pop("categorical")
        counts, seen = stored_values.store_seen(self.seen_rows_)
        tensors: dict[str, Any] = {
            **seen,
            "combinations": torch.tensor(law.combinations),
            "joint": torch.tensor(law.joint),
            "center": torch.tensor(self._center),
            "scale": torch.tensor(self._scale),
            "scales": torch.tensor(coding.scales),
            "costs": torch.tensor(coding.costs),
        }
        plain: dict[str, Any] = {
            "parameters": stored_values.store_parameters(parameters),
            "words": own,
            "categorical": None if labels is None else list_labels(labels),
            "n_features": self.n_features_in_,
            "feature_names": None if self.columns_.names is None else list(self.columns_.names),
            "table": self.columns_.to_stored(),
            "outputs": list(coding.names),
            "classes": {str(j): list(words) for j, words in coding.classes.items()},
            "framed": coding.framed,
            "single": coding.single,
            "shares": [law.smooth, law.of_network],
            "degree": None,
            "parts": {},
            "seen_rows": counts,
        }
        if law.model is not None:
            plain["degree"] = law.model.powers.degree
            tensors |= {
                "class_weights": torch.tensor(law.model.weights),
                "lower": torch.tensor(law.model.powers.lower),
                "upper": torch.tensor(law.model.powers.upper),
            }
        regressors: dict[str, Any] = {}
        for part in _PARTS:
            if (estimator := getattr(law, part)) is not None:
                inner = estimator.to_stored()
                plain["parts"][part] = inner.settings
                tensors |= {f"{part}:{name}": tensor for name, tensor in inner.tensors.items()}
                regressors |= {f"{part}:{name}": one for name, one in inner.regressors.items()}
        return Stored(type(self).__name__, plain, tensors, regressors)

    @classmethod
    def from_stored(cls, stored: Stored) -> LocalW2MixedRegressor:
        """The estimator that ``to_stored`` described; its draws are equal bit for bit."""
        with stored_values.check_fits_together(stored, cls.__name__):
            return cls._from_stored(stored)

    @classmethod
    def _from_stored(cls, stored: Stored) -> LocalW2MixedRegressor:
        plain, tensors = stored.settings, stored.tensors
        whole, array, text = stored_values.whole_number, stored_values.sized_array, stored_values.text
        estimator = cls()
        parameters = stored_values.restore_parameters(plain["parameters"])
        words = {name: value for name, value in plain["words"].items() if value is not None}
        labels = plain.get("categorical")
        if labels is not None:
            if not isinstance(labels, list):
                raise ValueError(f"categorical={str(labels)[:80]} is no list.")
            parameters["categorical"] = [one if type(one) is int else text(one) for one in labels]
        stored_values.set_stored_parameters(
            estimator, parameters | {name: text(v) for name, v in words.items()}
        )
        p = whole(plain["n_features"], 1, stored_values.MOST_COLUMNS)
        columns = Columns.from_stored(plain["table"], p, plain["feature_names"])
        width = columns.expanded_width
        names = tuple(text(name) for name in plain["outputs"])
        classes = {}
        for place, found in plain["classes"].items():
            check_classes(found)
            classes[whole(int(place), 0, len(names) - 1)] = tuple(found)
        sizes = tuple(map(len, classes.values()))
        single = check_flag(plain["single"], "single")
        if len(set(names)) < len(names) or (single and len(names) != 1):
            raise ValueError(f"the outputs {str(names)[:80]} are not single, or share a name.")
        coding = OutputCoding(
            names,
            classes,
            _positive("scales", array("scales", tensors["scales"], len(names) - len(classes))),
            _positive("costs", array("costs", tensors["costs"], len(classes))),
            check_flag(plain["framed"], "framed"),
            single,
        )
        parts = {}
        for part in _PARTS:
            if part not in plain["parts"]:
                continue
            head = f"{part}:"
            parts[part] = LocalW2Regressor.from_stored(
                Stored(
                    LocalW2Regressor.__name__,
                    plain["parts"][part],
                    {name.removeprefix(head): t for name, t in tensors.items() if name.startswith(head)},
                    {n.removeprefix(head): r for n, r in stored.regressors.items() if n.startswith(head)},
                )
            )
            if parts[part].n_features_in_ != width:
                raise ValueError(
                    f"{part} takes {parts[part].n_features_in_} columns, and the table has {width}."
                )
        n_points = len(coding.scales) + sum(sizes)
        for part, d in (("balls", n_points), ("network", n_points), ("numbers", len(coding.scales))):
            if part in parts and parts[part].n_outputs_ != d:
                raise ValueError(f"{part} has {parts[part].n_outputs_} outputs; expected {d}.")
        if (len(coding.scales) > 0) != ("numbers" in parts):
            raise ValueError("the mean of the numbers is missing, or is there without numbers.")
        joint = tensors["joint"]
        n_rows, n_kinds = whole(len(joint)), whole(len(tensors["combinations"]))
        combinations = array(
            "combinations", tensors["combinations"], n_kinds, len(classes), dtype=torch.int64
        )
        codes = array("joint", joint, n_rows, dtype=torch.int64)
        if len(np.unique(combinations, axis=0)) < n_kinds:
            raise ValueError("a combination of classes is there twice.")
        if (codes < 0).any() or (codes >= n_kinds).any() or (combinations < 0).any():
            raise ValueError("a row has a combination of classes that is not there.")
        if len(sizes) and (combinations >= np.array(sizes)).any():
            raise ValueError("a combination has a class that is not there.")
        for part in ("balls", "numbers"):
            for member in parts[part].law_.members if part in parts else ():
                if not hasattr(member, "balls") or len(member.balls.shown) != n_rows:
                    raise ValueError(f"{part} does not hold the {n_rows} rows of the fit.")
        model = None
        if plain["degree"] is not None:
            ends = array("lower", tensors["lower"], width), array("upper", tensors["upper"], width)
            powers = Powers(*ends, whole(plain["degree"], 0, 10))
            model = ClassModel(
                powers, array("class_weights", tensors["class_weights"], powers.n_terms, n_kinds)
            )
        smooth, of_network = (float(share) for share in plain["shares"])
        if not (0 <= smooth <= 1 and 0 <= of_network <= 1):
            raise ValueError(f"the shares {plain['shares']} are not between 0 and 1.")
        if of_network > 0 and "network" not in parts:
            raise ValueError(f"a network has the share {of_network}, and there is none.")
        law = MixedLaw(
            coding, combinations, codes, parts["balls"], model, smooth, parts.get("numbers"),
            parts.get("network"), of_network,
        )  # fmt: skip
        ends = (
            array("center", tensors["center"], width),
            _positive("scale", array("scale", tensors["scale"], width)),
        )
        seen = stored_values.restore_seen(plain.get("seen_rows"), tensors)
        estimator._keep(law, columns, *ends, seen)
        return estimator

    def _keep(
        self, law: MixedLaw, columns: Columns, center: Array, scale: Array, seen: SeenRows | None
    ) -> None:
        self._forget()
        self.law_, self.coding_, self.seen_rows_ = law, law.coding, seen
        self.n_outputs_ = len(law.coding.names)
        self.columns_, self._center, self._scale = columns, center, scale
        self.n_features_in_ = columns.n_features
        if columns.names is not None:
            self.feature_names_in_ = np.array(columns.names, dtype=object)
        by_name = {self.coding_.names[j]: np.array(words) for j, words in self.coding_.classes.items()}
        self.classes_ = next(iter(by_name.values())) if self.coding_.single and by_name else by_name
        shares = {"balls": 1 - law.of_network, "network": law.of_network}
        self.weights_ = {name: share for name, share in shares.items() if share > 0}
        self.smooth_share_ = law.smooth

    def draw(self, X: Any, n_samples: int, random_state: Any) -> tuple[Array, Array]:
        """Independent draws as numbers (S, N, d_n) and codes (S, N, d_c)."""
        x, count = self.standardise(X), check_count(n_samples, "n_samples", 1)
        return self.law_.sample(x, count, np.random.default_rng(settings.draw_seed(random_state)))

    def _find_seen(self, X: Any, points: Array) -> float:
        """The share of training rows, 0 if chance explains it; otherwise there is a warning."""
        seen = self.seen_rows_
        share, beyond_chance = (
            (0.0, False) if seen is None else judge_seen(seen, encode_rows(self, X), points)
        )
        if beyond_chance:
            warnings.warn(describe_seen(share, len(points)), SeenRowsWarning, stacklevel=3)
        return share if beyond_chance else 0.0

    def _frame(self, numbers: Array, codes: Array, n_samples: int | None = None, n: int = 0) -> Any:
        columns = self.coding_.as_columns(numbers, codes)
        shape = None if n_samples is None else (n_samples, n)
        return cells.make_frame(columns, shape)


def _positive(name: str, values: Array) -> Array:
    if not (values > 0).all():
        raise ValueError(f"{name} must be positive.")
    return values
