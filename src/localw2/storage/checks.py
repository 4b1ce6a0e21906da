"""The check of a regressor once it is built: its content cannot lead compiled code, or a later fit, astray.

The compiled code of scikit-learn follows the indices of a tree, of a support vector machine or of an
encoder without looking, so every index that it would follow is checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from localw2._validation import Array
from localw2.storage.audit import ALLOWED, RefusedError

_METRICS = {"minkowski", "euclidean", "manhattan", "chebyshev", "cosine", "sqeuclidean", "cityblock"}
# Where the models that have trees of their own keep them.
_TREES = {
    "sklearn.tree._classes.DecisionTreeRegressor": "tree_",
    "sklearn.tree._classes.ExtraTreeRegressor": "tree_",
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting.HistGradientBoostingRegressor": "_predictors",
}


def check_is_regressor(estimator: Any) -> None:
    """Refuse what is not an instance of a scikit-learn regressor."""
    from sklearn.base import BaseEstimator

    if not isinstance(estimator, BaseEstimator) or not callable(getattr(type(estimator), "predict", None)):
        kind = estimator if isinstance(estimator, type) else type(estimator)
        raise RefusedError(f"{kind.__name__} is not an instance of a scikit-learn regressor.")


def check_content(estimator: Any) -> None:
    """Refuse an estimator whose content could lead compiled code, or a later fit, astray."""
    values: list[Any] = [estimator]
    while values:
        value = values.pop()
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        if isinstance(value, dict):
            values.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            values.extend(value)
        elif isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                values.extend(value.flat)
        elif isinstance(value, np.random.RandomState):
            generator: Any = value.get_state(legacy=False)
            if not 0 <= generator["state"]["pos"] <= 624:  # numpy reads there without looking
                raise RefusedError("a random state in it points outside its own numbers.")
        elif name in ALLOWED["TreeNode"] or name.endswith(".TreePredictor"):
            raise RefusedError("it holds a tree outside the models that have trees.")
        elif name in ALLOWED["ObjectNode"]:
            _check_attributes(value)
            if name in _CHECKS:
                _CHECKS[name](value)
            trees = _TREES.get(name)  # just checked, and refused anywhere else
            values.extend(part for key, part in vars(value).items() if key != trees)


def _check_attributes(value: Any) -> None:
    """Refuse attributes that hide methods, start processes or read pickles."""
    kind, state = type(value), vars(value)
    for key in state:
        if hasattr(kind, key) and key != "positive":  # Lars has a default for it on the class
            raise RefusedError(f"its {kind.__name__} replaces {key}, which belongs to the class.")
    jobs = state.get("n_jobs")
    if jobs is not None and not (type(jobs) is int and -1024 <= jobs <= 1024):
        raise RefusedError(f"its {kind.__name__} has n_jobs={jobs!r}; use None or a number of processes.")
    if state.get("memory") is not None:
        raise RefusedError(
            f"its {kind.__name__} has a memory, whose cache is made of pickles; use memory=None."
        )


def _demand(good: Any, model: Any, what: str) -> None:
    """Refuse the model, for the reason given, unless it is good."""
    if not good:
        raise RefusedError(f"its {type(model).__name__} is damaged: {what}.")


def _n_features(model: Any) -> int:
    """The number of columns that the model was fitted on."""
    count = vars(model).get("n_features_in_")
    _demand(isinstance(count, int | np.integer) and not isinstance(count, bool), model, "no n_features_in_")
    return int(count)


def _check_branches(
    model: Any, left: Array, right: Array, leaf: Array, feature: Array, n_features: int
) -> None:
    """Every node but the first has one parent, which stands before it; so every walk ends at a leaf."""
    n = len(leaf)
    inner = np.flatnonzero(~leaf)
    children = np.concatenate([left[inner], right[inner]]).astype(np.int64)
    _demand(np.array_equal(np.sort(children), np.arange(1, n)), model, "the nodes are no tree")
    _demand((children > np.tile(inner, 2)).all(), model, "a node stands before its parent")
    split = feature[inner].astype(np.int64)
    _demand(((split >= 0) & (split < n_features)).all(), model, "it splits on a feature that is not there")


def _check_tree(model: Any) -> None:
    """Indices, depth and shapes of a tree are those of one tree, of this model."""
    from sklearn.tree._tree import Tree

    tree = vars(model).get("tree_")
    if tree is None:
        return
    _demand(type(tree) is Tree, model, "tree_ is not a tree")
    n_features = _n_features(model)
    nodes = tree.__getstate__()["nodes"]
    left, right = nodes["left_child"], nodes["right_child"]
    _demand(tree.n_features == n_features and tree.max_n_classes == 1, model, "the tree is of another model")
    _demand(vars(model).get("n_outputs_") == tree.n_outputs, model, "the tree has other outputs")
    _demand(((left == -1) == (right == -1)).all(), model, "a node has one child")
    _check_branches(model, left, right, left == -1, nodes["feature"], n_features)
    # decision_path writes to as many places as max_depth says.
    level, depth = np.zeros(1, np.int64), -1
    while level.size:
        level = level[left[level] != -1]
        level, depth = np.concatenate([left[level], right[level]]), depth + 1
    _demand(depth == tree.max_depth, model, "the tree is not as deep as it says")


def _check_members(model: Any, trees: list[Any]) -> None:
    """Every member is a fitted tree on the columns of the model."""
    _demand(trees, model, "it has no trees")
    for tree in trees:
        name = f"{type(tree).__module__}.{type(tree).__qualname__}"
        _demand(_TREES.get(name) == "tree_" and "tree_" in vars(tree), model, "a member is not a tree")
        _demand(_n_features(tree) == _n_features(model), model, "a member has other features")


def _check_forest(model: Any) -> None:
    """A forest is a list of trees."""
    trees = vars(model).get("estimators_")
    if trees is not None:
        _demand(isinstance(trees, list), model, "its trees are not a list")
        _check_members(model, trees)


def _check_boosting(model: Any) -> None:
    """A boosted model is a column of trees after a first guess that is one number."""
    from sklearn.dummy import DummyRegressor

    trees, start = vars(model).get("estimators_"), vars(model).get("init_")
    if trees is None:
        return
    _demand(isinstance(trees, np.ndarray) and trees.dtype == object, model, "its trees are no array")
    _demand(trees.ndim == 2 and trees.shape[1] == 1, model, "its trees are not one a step")
    _check_members(model, list(trees.flat))
    _demand(all(tree.tree_.n_outputs == 1 for tree in trees.flat), model, "a tree has several outputs")
    _demand(vars(model).get("n_trees_per_iteration_", 1) == 1, model, "its trees are not one a step")
    # Its compiled code adds to the first guess, row by row, however many rows that has.
    if not (isinstance(start, str) and start == "zero"):
        if type(start) is not DummyRegressor:
            raise RefusedError(f"its {type(model).__name__} has an init of its own; use init=None or 'zero'.")
        _demand(np.shape(vars(start).get("constant_")) == (1, 1), model, "its first guess is no number")
        _demand(vars(start).get("n_outputs_") == 1, model, "its first guess has several outputs")


def _check_histogram_boosting(model: Any) -> None:
    """Every step is one tree, on plain numbers, outside a fit."""
    from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
    from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor

    state = vars(model)
    if "_predictors" not in state:
        return
    n_features = _n_features(model)
    _demand(not state.get("_in_fit", False), model, "it claims to be in a fit")
    _demand(state.get("_preprocessor") is None, model, "it has a preprocessor")
    _demand(state.get("n_trees_per_iteration_") == 1, model, "its trees are not one a step")
    steps = state["_predictors"]
    _demand(isinstance(steps, list), model, "its trees are not a list")
    for step in steps:
        _demand(isinstance(step, list) and len(step) == 1, model, "its trees are not one a step")
        _demand(type(step[0]) is TreePredictor, model, "a member is not a tree")
        _check_attributes(step[0])
        nodes = vars(step[0]).get("nodes")
        _demand(isinstance(nodes, np.ndarray) and nodes.dtype == PREDICTOR_RECORD_DTYPE, model, "odd nodes")
        _demand(nodes.ndim == 1 and len(nodes) > 0, model, "a tree has no nodes")
        flags = nodes["is_leaf"]
        _demand((flags <= 1).all() and not nodes["is_categorical"].any(), model, "odd nodes")
        leaf = flags == 1
        _check_branches(model, nodes["left"], nodes["right"], leaf, nodes["feature_idx"], n_features)


def _check_svm(model: Any) -> None:
    """The arrays that libsvm reads have the shapes that it assumes."""
    state = vars(model)
    if state.get("kernel") not in ("linear", "poly", "rbf", "sigmoid"):
        raise RefusedError(
            f"its {type(model).__name__} has kernel={state.get('kernel')!r}; use a named kernel."
        )
    if "support_" not in state:
        return
    if state.get("_sparse") is not False:
        raise RefusedError(f"its {type(model).__name__} was fitted on sparse data; fit it on an array.")
    n = len(state["support_"])
    shapes = {
        "support_": (n,),
        "support_vectors_": (n, _n_features(model)),
        "_dual_coef_": (1, n),
        "_intercept_": (1,),
        "_n_support": (2,),
    }
    for key, shape in shapes.items():
        dtype = np.int32 if key in ("support_", "_n_support") else np.float64
        array = state.get(key)
        good = isinstance(array, np.ndarray) and array.dtype == dtype and array.shape == shape
        _demand(good, model, f"{key} does not fit")


def _check_neighbors(model: Any) -> None:
    """The neighbours are found among the stored rows, by a metric that needs no function."""
    state = vars(model)
    if "_fit_method" not in state:
        return
    _demand(state["_fit_method"] == "brute" and state.get("_tree") is None, model, "it has a search tree")
    params = state.get("effective_metric_params_")
    if state.get("effective_metric_") not in _METRICS or not set(params or {}) <= {"p"}:
        raise RefusedError(
            f"its {type(model).__name__} has a metric of its own; use one of {sorted(_METRICS)}."
        )
    rows: Any = state.get("_fit_X")
    _demand(isinstance(rows, np.ndarray) and rows.dtype in (np.float32, np.float64), model, "odd rows")
    n, y = len(rows), state.get("_y")
    _demand(rows.shape == (n, _n_features(model)), model, "its rows have other features")
    whole = isinstance(y, np.ndarray) and len(y) == n == state.get("n_samples_fit_")
    _demand(whole, model, "rows are missing")


def _check_one_hot(model: Any) -> None:
    """The columns that it fills are those that it makes room for."""
    state = vars(model)
    if "categories_" not in state:
        return
    _demand(not state.get("_infrequent_enabled"), model, "min_frequency and max_categories cannot be stored")
    categories, drop = state["categories_"], state.get("_drop_idx_after_grouping")
    _demand(isinstance(categories, list) and len(categories) == _n_features(model), model, "odd categories")
    _demand(drop is None or np.shape(drop) == (len(categories),), model, "odd dropped categories")
    widths = []
    for i, known in enumerate(categories):
        _demand(isinstance(known, np.ndarray) and known.ndim == 1 and len(known), model, "odd categories")
        if known.dtype.kind not in "OUS":  # they are found by bisection
            tail = known[1:-1] if known[-1] != known[-1] else known[1:]
            _demand((known[: len(tail)] < tail).all(), model, "its categories are not in order")
        dropped = None if drop is None else drop[i]
        if dropped is not None:
            _demand(isinstance(dropped, int | np.integer), model, "odd dropped categories")
            _demand(0 <= dropped < len(known), model, "it drops a category that is not there")
        widths.append(len(known) - (dropped is not None))
    _demand(state.get("_n_features_outs") == widths, model, "its columns do not fit its categories")


def _check_polynomial(model: Any) -> None:
    """The number of columns that it makes is one that fits in memory."""
    if "_n_out_full" in vars(model):
        highest = vars(model).get("_max_degree")
        _demand(type(highest) is int and 0 <= highest <= 1000, model, "odd degrees")
        _demand(vars(model)["_n_out_full"] <= 10_000_000, model, "it makes too many columns")


def _check_stacking(model: Any) -> None:
    """Only predictions are stacked."""
    methods = vars(model).get("stack_method_", [])
    _demand(isinstance(methods, list) and all(name == "predict" for name in methods), model, "odd methods")


_CHECKS: dict[str, Callable[[Any], None]] = {
    "sklearn.tree._classes.DecisionTreeRegressor": _check_tree,
    "sklearn.tree._classes.ExtraTreeRegressor": _check_tree,
    "sklearn.ensemble._forest.RandomForestRegressor": _check_forest,
    "sklearn.ensemble._forest.ExtraTreesRegressor": _check_forest,
    "sklearn.ensemble._gb.GradientBoostingRegressor": _check_boosting,
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting.HistGradientBoostingRegressor": (
        _check_histogram_boosting
    ),
    "sklearn.ensemble._stacking.StackingRegressor": _check_stacking,
    "sklearn.svm._classes.SVR": _check_svm,
    "sklearn.svm._classes.NuSVR": _check_svm,
    "sklearn.neighbors._regression.KNeighborsRegressor": _check_neighbors,
    "sklearn.preprocessing._encoders.OneHotEncoder": _check_one_hot,
    "sklearn.preprocessing._polynomial.PolynomialFeatures": _check_polynomial,
}
