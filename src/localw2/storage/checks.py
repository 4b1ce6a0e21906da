"""The check of a regressor once it is built: its content cannot mislead compiled code or a later fit.

The compiled code of scikit-learn follows the indices in a tree or an encoder without bounds checks, so every
index that it would follow is checked here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from localw2._validation import Array
from localw2.storage.audit import ALLOWED, RefusedError

_BOOSTING = "sklearn.ensemble._hist_gradient_boosting.gradient_boosting.HistGradientBoostingRegressor"
# The attribute in which each model keeps trees of its own.
_TREES = {
    "sklearn.tree._classes.DecisionTreeRegressor": "tree_",
    "sklearn.tree._classes.ExtraTreeRegressor": "tree_",
    _BOOSTING: "_predictors",
}
# What a file may ask of a refit; more is a mistake or an attack. Whoever wants more sets it after loading.
MOST_WORK = {
    "n_estimators": 10_000,
    "max_iter": 1_000_000,
    "n_alphas": 10_000,
    "alphas": 10_000,  # as a number, what n_alphas was
    "degree": 100,
    "epochs": 1_000_000,
    "max_epochs": 1_000_000,
    "max_steps": 1_000_000,
    "width": 5_000,
    "depth": 100,
    "n_noise": 1_000,
    "n_trees": 10_000,
    "n_draws": 10_000,
    "n_directions": 10_000,
    "n_bootstrap": 100_000,
}


def check_is_regressor(estimator: Any) -> None:
    """Refuse what is not an instance of a scikit-learn regressor."""
    from sklearn.base import BaseEstimator

    if not isinstance(estimator, BaseEstimator) or not callable(getattr(type(estimator), "predict", None)):
        kind = estimator if isinstance(estimator, type) else type(estimator)
        raise RefusedError(f"{kind.__name__} is not an instance of a scikit-learn regressor.")


def check_content(estimator: Any) -> None:
    """Refuse an estimator whose content could mislead compiled code or a later fit."""
    values: list[Any] = [estimator]
    while values:
        value = values.pop()
        name = _full_name(value)
        if isinstance(value, dict):
            values.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            values.extend(value)
        elif isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                values.extend(value.flat)
        elif name in ALLOWED["TreeNode"] or name.endswith(".TreePredictor"):
            raise RefusedError("it contains a tree outside the models that have trees.")
        elif name in ALLOWED["ObjectNode"]:
            _check_attributes(value)
            if name in _CHECKS:
                _CHECKS[name](value)
            trees = _TREES.get(name)  # just checked, and refused anywhere else
            values.extend(part for key, part in vars(value).items() if key != trees)


def _full_name(value: Any) -> str:
    """The module and name of the type of a value."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _check_attributes(value: Any) -> None:
    """Refuse attributes that hide methods, start processes or read pickles."""
    kind, state = type(value), vars(value)
    for key in state:
        if hasattr(kind, key):
            raise RefusedError(f"its {kind.__name__} replaces {key}, which belongs to the class.")
    for key, most in MOST_WORK.items():
        if isinstance(state.get(key), int) and state[key] > most:
            asked = f"{key}={state[key]}"
            raise RefusedError(f"its {kind.__name__} has {asked}; a file may ask for {most} at most.")
    for key in ("steps", "transformers", "transformer_list"):
        parts = state.get(key) or ()
        if not all(isinstance(part, list | tuple) and part and isinstance(part[0], str) for part in parts):
            raise RefusedError(f"the {key} of its {kind.__name__} do not have names that are text.")
    _check_settings(value)
    jobs = state.get("n_jobs")
    if jobs is not None and not (type(jobs) is int and -1024 <= jobs <= 1024):
        raise RefusedError(f"its {kind.__name__} has n_jobs={jobs!r}; use None or a number of processes.")
    if jobs is not None and jobs > (os.cpu_count() or 1):  # of the machine that fitted
        value.n_jobs = None
    if state.get("memory") is not None:
        raise RefusedError(
            f"its {kind.__name__} has a memory, which caches results as pickles; use memory=None."
        )


def _check_settings(model: Any) -> None:
    """Refuse settings that scikit-learn itself would refuse, but only at the next fit.

    Settings that a newer version of scikit-learn has and the file has not are none of our business.
    """
    from sklearn.utils._param_validation import validate_parameter_constraints

    constraints = getattr(type(model), "_parameter_constraints", {})
    given = {name: part for name, part in vars(model).items() if name in constraints}
    try:
        validate_parameter_constraints(constraints, given, type(model).__name__)
    except (TypeError, ValueError) as error:
        raise RefusedError(f"its {type(model).__name__} has a wrong setting: {str(error)[:300]}") from error


def _require(good: Any, model: Any, what: str) -> None:
    """Refuse the model for the stated reason unless it is good."""
    if not good:
        raise RefusedError(f"its {type(model).__name__} is damaged: {what}.")


def _n_features(model: Any) -> int:
    """The number of columns that the model was fitted on."""
    count = vars(model).get("n_features_in_")
    _require(isinstance(count, int | np.integer) and not isinstance(count, bool), model, "no n_features_in_")
    return int(count)


def _check_branches(
    model: Any, left: Array, right: Array, leaf: Array, feature: Array, n_features: int
) -> None:
    """Every node but the first has one parent, which comes before it; so every path ends at a leaf."""
    n = len(leaf)
    inner = np.flatnonzero(~leaf)
    children = np.concatenate([left[inner], right[inner]]).astype(np.int64)
    _require(np.array_equal(np.sort(children), np.arange(1, n)), model, "its nodes do not form a tree")
    _require((children > np.tile(inner, 2)).all(), model, "a node comes before its parent")
    split = feature[inner].astype(np.int64)
    _require(((split >= 0) & (split < n_features)).all(), model, "it splits on a feature that does not exist")


def _check_tree(model: Any) -> None:
    """The indices, depth and shapes are those of one tree, which belongs to this model."""
    from sklearn.tree._tree import Tree

    tree = vars(model).get("tree_")
    if tree is None:
        return
    _require(type(tree) is Tree, model, "tree_ is not a tree")
    n_features = _n_features(model)
    nodes = tree.__getstate__()["nodes"]
    left, right = nodes["left_child"], nodes["right_child"]
    same = tree.n_features == n_features and tree.max_n_classes == 1
    _require(same, model, "its tree belongs to another model")
    _require(vars(model).get("n_outputs_") == tree.n_outputs, model, "its tree has other outputs")
    _require(((left == -1) == (right == -1)).all(), model, "a node has one child")
    _check_branches(model, left, right, left == -1, nodes["feature"], n_features)
    # decision_path writes to as many places as max_depth states.
    level, depth = np.zeros(1, np.int64), -1
    while level.size:
        level = level[left[level] != -1]
        level, depth = np.concatenate([left[level], right[level]]), depth + 1
    _require(depth == tree.max_depth, model, "its tree is not as deep as it states")


def _check_forest(model: Any) -> None:
    """A forest is a list of fitted trees on the columns of the forest."""
    trees = vars(model).get("estimators_")
    if trees is None:
        return
    _require(isinstance(trees, list) and trees, model, "it has no list of trees")
    for tree in trees:
        is_tree = _TREES.get(_full_name(tree)) == "tree_" and "tree_" in vars(tree)
        _require(is_tree, model, "a member is not a tree")
        _require(_n_features(tree) == _n_features(model), model, "a member has other features")
        same = vars(model).get("n_outputs_") == vars(tree).get("n_outputs_")  # by which predict allocates
        _require(same, model, "a member has other outputs")


def _check_boosting(model: Any) -> None:
    """Every step is one tree on numbers and category codes, and no fit is under way.

    While ``_preprocessor`` is None, ``predict`` takes the codes 0, 1, ... of categories as they are.
    """
    state = vars(model)
    if "_predictors" not in state:
        return
    n_features = _n_features(model)
    _require(not state.get("_in_fit", False), model, "it claims to be in a fit")
    _require(state.get("_preprocessor") is None, model, "it has a preprocessor")
    categorical = _check_bins(model, n_features)
    steps = state["_predictors"]
    single = isinstance(steps, list) and all(isinstance(step, list) and len(step) == 1 for step in steps)
    _require(single and state.get("n_trees_per_iteration_") == 1, model, "a step is not one tree")
    for (tree,) in steps:
        _check_boosted_tree(model, tree, categorical)


def _check_bins(model: Any, n_features: int) -> Array:
    """Which columns are categorical, once their codes are known to be 0, 1, ... up to 254 at most."""
    from sklearn.ensemble._hist_gradient_boosting.binning import _BinMapper

    mapper = vars(model).get("_bin_mapper")
    _require(type(mapper) is _BinMapper, model, "it has no bins")
    keys = ("is_categorical_", "bin_thresholds_", "n_bins_non_missing_")
    flags, edges, counts = (vars(mapper).get(key) for key in keys)
    flagged = _is_plain(flags, np.uint8, (n_features,)) and (flags <= 1).all()
    _require(flagged, model, "it does not say which columns are categorical")
    categorical: Array = flags == 1
    vectors = isinstance(edges, list) and len(edges) == n_features
    vectors = vectors and all(_is_plain(column, np.float64, (np.size(column),)) for column in edges)
    _require(vectors, model, "its bins do not match its columns")
    widths = [len(column) + (not codes) for column, codes in zip(edges, categorical, strict=True)]
    counted = _is_plain(counts, np.uint32, (n_features,)) and np.array_equal(counts, widths)
    _require(counted, model, "its numbers of bins do not match its bins")
    for column in (edges[i] for i in np.flatnonzero(categorical)):
        coded = len(column) <= 255 and np.array_equal(column, np.arange(len(column)))
        _require(coded, model, "its categories are not the codes 0, 1, ... up to 254")
    none = np.zeros(n_features, np.bool_)
    stated = [vars(model).get(key) for key in ("_is_categorical_remapped", "is_categorical_")]
    reordered, given = (none if flags is None else flags for flags in stated)
    same = all(_is_plain(flags, np.bool_, (n_features,)) for flags in (reordered, given))
    same = same and np.array_equal(reordered, categorical) and given.sum() == categorical.sum()
    _require(same, model, "its categorical columns are not those of its bins")
    if not np.array_equal(given, categorical):
        raise RefusedError(
            "its HistGradientBoostingRegressor was fitted with categorical columns after numeric ones, "
            "which it confuses without its preprocessor; put categorical columns first and fit it again."
        )
    return categorical


def _check_boosted_tree(model: Any, tree: Any, categorical: Array) -> None:
    """Its nodes form a tree, and a split on a categorical column has a set of categories of its tree."""
    from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
    from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor

    _require(type(tree) is TreePredictor, model, "a member is not a tree")
    _check_attributes(tree)
    nodes = vars(tree).get("nodes")
    plain = _is_plain(nodes, PREDICTOR_RECORD_DTYPE, (np.size(nodes),)) and len(nodes) > 0
    _require(plain, model, "the nodes of a tree have another layout")
    leaf = nodes["is_leaf"]
    _require((leaf <= 1).all(), model, "a tree has unknown nodes")
    _check_branches(model, nodes["left"], nodes["right"], leaf == 1, nodes["feature_idx"], len(categorical))
    inner, depth = nodes[leaf == 0], nodes["depth"].astype(np.int64)
    deeper = all((depth[inner[side]] == depth[leaf == 0] + 1).all() for side in ("left", "right"))
    _require(depth[0] == 0 and deeper, model, "a tree is not as deep as it states")
    # A row of another column's known categories, or one that does not exist, would be read otherwise.
    same = np.array_equal(inner["is_categorical"], categorical[inner["feature_idx"]])
    _require(same, model, "a tree splits a categorical column like a number, or a number like categories")
    used = inner["bitset_idx"][inner["is_categorical"] == 1]
    for key in ("raw_left_cat_bitsets", "binned_left_cat_bitsets"):
        sets = vars(tree).get(key)
        plain = isinstance(sets, np.ndarray) and _is_plain(sets, np.uint32, (len(sets), 8))
        _require(plain, model, f"the {key} of a tree have another layout")
        _require((used < len(sets)).all(), model, "a tree splits by a set of categories that does not exist")


def _is_plain(value: Any, dtype: Any, shape: tuple[int, ...]) -> bool:
    """Whether it is an array of this type and shape, stored row by row as compiled code expects it."""
    array = type(value) is np.ndarray and value.dtype == dtype and value.shape == shape
    return bool(array and value.flags.c_contiguous)


def _check_one_hot(model: Any) -> None:
    """It allocates exactly the columns that it fills."""
    state = vars(model)
    if "categories_" not in state:
        return
    if state.get("_infrequent_enabled"):
        raise RefusedError(
            "its OneHotEncoder groups rare categories; leave out min_frequency and max_categories."
        )
    categories, drop = state["categories_"], state.get("_drop_idx_after_grouping")
    known = isinstance(categories, list) and len(categories) == _n_features(model)
    _require(known, model, "its categories do not match its columns")
    _require(drop is None or np.shape(drop) == (len(categories),), model, "dropped categories do not match")
    widths = []
    for i, levels in enumerate(categories):
        filled = isinstance(levels, np.ndarray) and levels.ndim == 1 and len(levels)
        _require(filled, model, "a column has no categories")
        if levels.dtype.kind not in "OUS":  # scikit-learn finds them by bisection
            tail = levels[1:-1] if levels[-1] != levels[-1] else levels[1:]
            _require((levels[: len(tail)] < tail).all(), model, "its categories are not in order")
        dropped = None if drop is None else drop[i]
        if dropped is not None:
            inside = isinstance(dropped, int | np.integer) and 0 <= dropped < len(levels)
            _require(inside, model, "it drops a category that does not exist")
        widths.append(len(levels) - (dropped is not None))
    _require(state.get("_n_features_outs") == widths, model, "its columns do not match its categories")


def _check_polynomial(model: Any) -> None:
    """The columns that it makes are those of its degree, and fit in memory."""
    if "_n_out_full" in vars(model):
        highest, count = vars(model).get("_max_degree"), vars(model)["_n_out_full"]
        _require(type(highest) is int and 0 <= highest <= 100, model, "its degree is out of range")
        most = min(100_000, math.comb(_n_features(model) + highest, highest))
        _require(0 <= count <= most, model, "it makes too many columns")


def _check_constant(model: Any) -> None:
    """It predicts as many outputs as it has constants."""
    if "n_outputs_" in vars(model):
        size = np.size(vars(model).get("constant_"))
        _require(vars(model)["n_outputs_"] == size, model, "its constants do not match its outputs")


def _check_polynomial_ridge(model: Any) -> None:
    """It has a coefficient for every product of columns, and all its numbers are numbers."""
    state = vars(model)
    degree = state.get("degree")
    _require(type(degree) is int and 1 <= degree <= 5, model, "its degree is out of range")
    if "coefficients_" not in state:
        return
    arrays = [np.asarray(state.get(f"{n}_")) for n in ("location", "scale", "coefficients", "intercept")]
    location, scale, coefficients, intercept = arrays
    finite = all(array.dtype == np.float64 and np.isfinite(array).all() for array in arrays)
    _require(finite, model, "its numbers are damaged")
    p = _n_features(model)
    _require(location.shape == scale.shape == (p,) and (scale > 0).all(), model, "its scales are damaged")
    n_products = math.comb(p + degree, degree) - 1
    fits = coefficients.ndim in (1, 2) and len(coefficients) == n_products
    fits = fits and intercept.shape == coefficients.shape[1:]
    _require(fits, model, "its coefficients do not match its degree")


_CHECKS: dict[str, Callable[[Any], None]] = {
    "localw2.estimators.regression.polynomial_ridge.PolynomialRidge": _check_polynomial_ridge,
    "sklearn.tree._classes.DecisionTreeRegressor": _check_tree,
    "sklearn.tree._classes.ExtraTreeRegressor": _check_tree,
    "sklearn.ensemble._forest.RandomForestRegressor": _check_forest,
    "sklearn.ensemble._forest.ExtraTreesRegressor": _check_forest,
    _BOOSTING: _check_boosting,
    "sklearn.preprocessing._encoders.OneHotEncoder": _check_one_hot,
    "sklearn.preprocessing._polynomial.PolynomialFeatures": _check_polynomial,
    "sklearn.dummy.DummyRegressor": _check_constant,
}
