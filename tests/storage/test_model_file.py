"""Model files: what goes in comes out, and nothing else gets in."""

import contextlib
import io
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import time
import tracemalloc
import warnings
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
    StackingRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import (
    BayesianRidge,
    ElasticNet,
    ElasticNetCV,
    GammaRegressor,
    HuberRegressor,
    Lasso,
    LassoCV,
    LinearRegression,
    PoissonRegressor,
    Ridge,
    RidgeCV,
)
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    PolynomialFeatures,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
)
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor, ExtraTreeRegressor
from threadpoolctl import threadpool_limits

from forgery import closed, npy, opened, parts, sealed, with_regressor
from localw2 import LocalW2Regressor
from localw2.estimators.regression.kernel_mean import KernelMean
from localw2.estimators.regression.polynomial_ridge import PolynomialRidge
from localw2.storage import model_file, regressors
from localw2.storage.audit import TRUSTED
from localw2.storage.model_file import FORMAT_VERSION, Stored, check_writable, read, write
from localw2.storage.regressors import (
    check_storable,
    pack_regressor,
    unpack_regressor,
)

RNG = np.random.default_rng(3)
X = np.column_stack([RNG.integers(0, 3, 60), RNG.normal(size=(60, 2))]).astype(float)
X_NEW = np.column_stack([RNG.integers(0, 3, 50), RNG.normal(size=(50, 2))]).astype(float)
Y = X[:, 0] + X[:, 1] ** 2 + 0.1 * RNG.normal(size=60) + 1

HGB = HistGradientBoostingRegressor(max_iter=2, min_samples_leaf=5, random_state=0)
REGRESSORS = {
    "linear": LinearRegression(),
    "ridge": Ridge(),
    "ridge_cv": RidgeCV(),
    "lasso": Lasso(),
    "lasso_cv": LassoCV(cv=3),
    "elastic_net": ElasticNet(),
    "elastic_net_cv": ElasticNetCV(cv=3),
    "bayesian_ridge": BayesianRidge(),
    "huber": HuberRegressor(),
    "poisson": PoissonRegressor(),
    "gamma": GammaRegressor(),
    "kernel_ridge": KernelRidge(kernel="rbf"),
    "kernel_mean": KernelMean(),
    "polynomial_ridge": PolynomialRidge(2),
    "histogram": HGB,
    "histogram_quantile": HistGradientBoostingRegressor(max_iter=2, loss="quantile", quantile=0.3),
    "histogram_absolute": HistGradientBoostingRegressor(max_iter=2, loss="absolute_error"),
    "histogram_stopped": HistGradientBoostingRegressor(max_iter=2, early_stopping=True),
    "forest": RandomForestRegressor(2, random_state=0),
    "extra_trees": ExtraTreesRegressor(2, random_state=0),
    "tree": DecisionTreeRegressor(),
    "extra_tree": ExtraTreeRegressor(),
    "tree_pruned": DecisionTreeRegressor(ccp_alpha=0.05),
    "tree_best_first": DecisionTreeRegressor(max_leaf_nodes=7),
    "tree_of_one_leaf": DecisionTreeRegressor(min_samples_leaf=60),
    "dummy": DummyRegressor(),
    "pipeline": make_pipeline(
        StandardScaler(), MinMaxScaler(), RobustScaler(), MaxAbsScaler(), PolynomialFeatures(2), Ridge()
    ),
    "columns": make_pipeline(
        ColumnTransformer(
            [
                ("hot", OneHotEncoder(handle_unknown="ignore"), [0]),
                ("same", "passthrough", slice(1, 2)),
            ],
            remainder=SimpleImputer(add_indicator=True),
        ),
        Ridge(),
    ),
    "one_hot_dropped": make_pipeline(
        ColumnTransformer([("hot", OneHotEncoder(drop="first", sparse_output=False), [0])]), Ridge()
    ),
    "multi_output": MultiOutputRegressor(HGB),
    "categories": clone(HGB).set_params(categorical_features=[0]),
    "categories_of_two_columns": clone(HGB).set_params(categorical_features=[0, 1]),
    "multi_output_categories": MultiOutputRegressor(clone(HGB).set_params(categorical_features=[0])),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Histogram boosting on a busy machine spends its time waiting for its own threads."""
    with threadpool_limits(1):
        yield


@cache
def fitted(name):
    target = np.column_stack([Y, -Y]) if name.startswith("multi_output") else np.abs(Y)
    x = X.copy()
    if name == "categories_of_two_columns":
        x[:, 1] = np.where(x[:, 1] > 0, x[:, 0], np.nan)
    return without_preprocessor(clone(REGRESSORS[name]).fit(x, target))


def without_preprocessor(model):
    """The model, which from now on takes the codes of categories as they are."""
    for part in getattr(model, "estimators_", [model]):
        if isinstance(part, HistGradientBoostingRegressor):
            part._preprocessor = None
    return model


@cache
def packed(name):
    return pack_regressor(fitted(name))


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


# --- round trips ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (3, 2)], ids=str)
def test_tensors_come_back_bit_for_bit(tmp_path, dtype, shape):
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(torch.float32).to(dtype)
    write(tmp_path / "m", Stored("kind", {}, {"t": tensor}))
    back = read(tmp_path / "m").tensors["t"]
    assert back.dtype == dtype
    assert back.shape == shape
    assert torch.equal(back.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_views_parameters_and_shared_memory(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "turned": base.T,
        "again": base,
        "part": base[1:, ::2],
        "wide": base[:1].expand(5, 4),
        "conj": torch.tensor([1 + 2j]).to(torch.complex64).conj(),
        "weight": torch.nn.Parameter(base),
    }
    write(tmp_path / "m", Stored("kind", {}, tensors))
    back = read(tmp_path / "m").tensors
    assert sorted(back) == sorted(tensors)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    assert not back["weight"].requires_grad
    back["again"].add_(1)
    assert base[0, 0] == 0


def test_names_and_settings(tmp_path):
    settings = {
        "ünïcode 名前 😀": ["\0", '"quoted" \\ \n', ""],
        "floats": [math.inf, -math.inf, 1e-320, 0.1, -0.0],
        "ints": [0, -1, 10**40],
        "nothing": None,
        "truth": [True, False],
        "deep": {"a": {"b": [[], {}]}},
        "sha256": "0" * 64,
        "trap": '"localw2":"sha256 ' + "0" * 64 + ' "',
    }
    tensors = {
        "": torch.ones(1),
        "名前.😀": torch.zeros(2),
        'a"b\\c': torch.ones(3),
        "localw2": torch.ones(2),
    }
    write(tmp_path / "模型", Stored("Ünï", settings, tensors))
    back = read(str(tmp_path / "模型"))
    assert back.kind == "Ünï"
    assert back.settings == settings
    assert {name: len(t) for name, t in back.tensors.items()} == {n: len(t) for n, t in tensors.items()}


def test_nan_tuples_and_numpy_floats(tmp_path):
    write(tmp_path / "m", Stored("kind", {"nan": math.nan, "tuple": (1, (2,)), "np": np.float64(0.1)}))
    settings = read(tmp_path / "m").settings
    assert math.isnan(settings["nan"])
    assert settings["tuple"] == [1, [2]]
    assert type(settings["np"]) is float


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors_predict_the_same_bits(name):
    model = fitted(name)
    data = packed(name)
    back = unpack_regressor(data)
    assert type(back) is type(model)
    assert np.array_equal(back.predict(X_NEW), model.predict(X_NEW))
    assert pack_regressor(model) == data


@pytest.mark.parametrize("seed", range(8))
def test_native_categories_predict_the_same_bits(seed):
    """Also for codes that are unknown, beyond the 256 that a set can hold, negative or missing."""
    rng = np.random.default_rng(seed)
    widths = [*rng.choice([1, 2, 3, 31, 32, 33, 64, 255], size=rng.integers(1, 4))]
    n, first = 600, len(widths)
    codes = [rng.permutation(np.arange(n) % width) for width in widths]
    x = np.column_stack([*codes, rng.normal(size=(n, 2))]).astype(float)
    y = sum((column % 3 == 1) * rng.normal() for column in codes) + x[:, -1] ** 2 + 0.1 * rng.normal(size=n)
    x[n // 2 :][rng.random((n // 2, first + 2)) < 0.2] = np.nan  # the first half keeps every category
    trees = clone(HGB).set_params(
        max_iter=8, categorical_features=list(range(first)), early_stopping=bool(seed % 2)
    )
    several = seed % 3 == 0
    model = MultiOutputRegressor(trees) if several else trees
    model.fit(x, np.column_stack([y, -(y**2)]) if several else y)
    with_preprocessor = model.predict(x)
    without_preprocessor(model)
    assert np.array_equal(model.predict(x), with_preprocessor)
    back = unpack_regressor(pack_regressor(model))
    odd = rng.choice([0, 1, 254, 255, 256, 1e6, -1, 0.5, np.nan], size=(300, first + 2))
    for rows in (x, odd, np.full((1, first + 2), np.nan)):
        assert np.array_equal(back.predict(rows), model.predict(rows))
        unknown = rows.copy()
        unknown[:, :first] = np.where(unknown[:, :first] == 255, np.nan, unknown[:, :first])
        assert np.array_equal(back.predict(unknown), model.predict(rows))
    categorical = [
        tree.nodes["is_categorical"].any()
        for part in getattr(back, "estimators_", [back])
        for (tree,) in part._predictors
    ]
    assert any(categorical) or max(widths) == 1


def test_a_file_with_everything(tmp_path):
    regressors = {"fold 0": fitted("histogram"), "fold 1": fitted("ridge")}
    write(tmp_path / "m", Stored("kind", {"a": 1}, {"w": torch.ones(2, 3)}, regressors))
    back = read(tmp_path / "m")
    for name, model in regressors.items():
        assert np.array_equal(back.regressors[name].predict(X_NEW), model.predict(X_NEW))
    first = (tmp_path / "m").read_bytes()
    write(tmp_path / "m", Stored("kind", {"a": 1}, {"w": torch.ones(2, 3)}, regressors))
    assert (tmp_path / "m").read_bytes() == first


# --- what cannot be written -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (Stored(""), "non-empty"),
        (Stored("k", {"a": {1, 2}}), r"settings\['a'\]"),
        (Stored("k", {"a": [np.ones(2)]}), "ndarray"),
        (Stored("k", {"a": {1: 2}}), "key 1"),
        (Stored("k", {"a": np.int64(1)}), "int64"),
        (Stored("k", {}, {"__regressor__.x": torch.ones(1)}), "underscores"),
        (Stored("k", {}, {"\ud800": torch.ones(1)}), "surrogate"),
        (Stored("k", {}, {"a": np.ones(1)}), "torch.as_tensor"),
        (Stored("k", {}, {"a": torch.ones(2).to_sparse()}), "sparse"),
        (Stored("k", {}, {"a": torch.ones(1, dtype=torch.complex128)}), "safetensors"),
        (Stored("k", {}, {}, {"a": "ridge"}), "regressor"),
        (Stored("k", {}, {}, {1: Ridge()}), "str"),
    ],
)
def test_misuse_is_explained(tmp_path, stored, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "m", stored)
    assert not list(tmp_path.iterdir())


def test_settings_that_hold_themselves(tmp_path):
    loop = {}
    loop["loop"] = loop
    with pytest.raises(ValueError, match="itself"):
        write(tmp_path / "m", Stored("k", loop))


def test_where_it_cannot_be_written(tmp_path):
    with pytest.raises(ValueError, match="folder"):
        write(tmp_path, Stored("k"))
    with pytest.raises(FileNotFoundError, match="folder"):
        write(tmp_path / "no" / "m", Stored("k"))
    with pytest.raises(ValueError, match="path"):
        write(3, Stored("k"))
    with pytest.raises(ValueError, match="null"):
        read("a\0b")


@pytest.mark.posix
def test_a_place_is_tried_before_it_is_needed(tmp_path):
    check_writable(tmp_path / "m", "checkpoint")
    assert list(tmp_path.iterdir()) == []
    for place, message in (
        (3, "checkpoint=3"),
        (tmp_path, "folder"),
        (tmp_path / "no" / "m", "exist"),
        ("/proc/m", "written"),
        (tmp_path / ("m" * 300), "written"),
    ):
        with pytest.raises(ValueError, match=message):
            check_writable(place, "checkpoint")


@pytest.mark.parametrize("step", ["os.replace", "os.fsync", "serialise"])
@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, step, failure):
    path = tmp_path / "m"
    write(path, Stored("old"))

    def fail(*_):
        raise failure

    with monkeypatch.context() as patch:
        if step == "serialise":
            patch.setattr(model_file, "_serialise", fail)
        else:
            patch.setattr(os, step.split(".")[1], fail)
        with pytest.raises(type(failure)):
            write(path, Stored("new"))
    assert read(path).kind == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.posix
def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link", Stored("new"))
    assert (tmp_path / "link").is_symlink()
    assert read(tmp_path / "real").kind == "new"


# --- storable or not ------------------------------------------------------------------------------------


class Own(RegressorMixin, BaseEstimator):
    def fit(self, x, y):
        self.mean_ = float(np.mean(y))
        return self

    def predict(self, x):
        return np.full(len(x), self.mean_)


@pytest.mark.parametrize(
    "model",
    [
        HistGradientBoostingRegressor(),
        MultiOutputRegressor(HistGradientBoostingRegressor()),
        RandomForestRegressor(n_estimators=1000, n_jobs=-1),
        KernelMean(),
        make_pipeline(StandardScaler(), PolynomialFeatures(2), StandardScaler(), RidgeCV()),
        make_pipeline(StandardScaler(), KernelRidge()),
        make_pipeline(ColumnTransformer([("a", OneHotEncoder(), ["by name"])]), Ridge()),
    ],
    ids=lambda model: type(model).__name__,
)
def test_storable(model):
    before = repr(model)
    assert check_storable(model) is None
    assert repr(model) == before
    assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Own(), "Own"),
        (KNeighborsRegressor(algorithm="brute"), "KNeighborsRegressor"),
        (make_pipeline(StandardScaler(), SVR()), "SVR"),
        (MLPRegressor(), "MLPRegressor"),
        (GaussianProcessRegressor(), "GaussianProcessRegressor"),
        (GradientBoostingRegressor(), "GradientBoostingRegressor"),
        (StackingRegressor([("ridge", Ridge())]), "StackingRegressor"),
        (make_pipeline(FunctionTransformer(lambda x: x), Ridge()), "lambda"),
        (make_pipeline(FunctionTransformer(np.exp), Ridge()), "exp"),
        (TransformedTargetRegressor(Ridge()), "TransformedTargetRegressor"),
        (HistGradientBoostingRegressor(categorical_features=[0]), "OneHotEncoder"),
        (MultiOutputRegressor(HistGradientBoostingRegressor(categorical_features=[0])), "OneHotEncoder"),
        (Ridge(random_state=np.random.RandomState(0)), "integer"),
        (make_pipeline(StandardScaler(), Ridge(), memory="cache"), "memory"),
        (make_pipeline(SplineTransformer(), Ridge()), "SplineTransformer"),
        (make_pipeline(OneHotEncoder(min_frequency=3, handle_unknown="ignore"), Ridge()), "min_frequency"),
        (StandardScaler(), "regressor"),
        (Ridge, "instance"),
        (None, "regressor"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_not_storable(model, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a Pipeline would cache here
    with pytest.raises(ValueError, match=message):
        check_storable(model)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("several", [False, True])
def test_categories_with_a_preprocessor_are_refused_with_advice(several):
    model = MultiOutputRegressor(HGB) if several else HGB
    name = "estimator__categorical_features" if several else "categorical_features"
    model = clone(model).set_params(**{name: [0]}).fit(X, np.column_stack([Y, Y]) if several else Y)
    with pytest.raises(ValueError, match="auto"):
        pack_regressor(model)
    assert pack_regressor(without_preprocessor(model))


def test_categorical_columns_come_first():
    """Without its preprocessor, which puts them first, boosting would take a number for a category."""
    model = clone(HGB).set_params(categorical_features=[2]).fit(X[:, ::-1], Y)
    with pytest.raises(ValueError, match="first"):
        pack_regressor(without_preprocessor(model))


class Slow(Own):
    def fit(self, x, y):
        raise AssertionError("it must not be fitted")


@pytest.mark.parametrize(
    "base", [Slow(), KNeighborsRegressor(), SVR(), MLPRegressor()], ids=lambda base: type(base).__name__
)
def test_a_base_that_cannot_be_stored_is_named_before_the_fit(base):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=type(base).__name__):
            LocalW2Regressor(base=base).fit(X, Y)


@pytest.mark.parametrize("name", ["histogram", "histogram_quantile", "poisson", "multi_output"])
def test_losses_under_both_names_of_their_module(name):
    """scikit-learn before 1.9 calls it _loss; a file has the full name, whichever version wrote it."""
    data, full = packed(name), b'"__module__":"sklearn._loss._loss"'
    schema, members = opened(data)
    words = json.dumps(schema, separators=(",", ":")).encode()
    assert full in words
    assert b'"_loss"' not in words.replace(b'"_loss":', b"")  # the attribute has that name, too
    short = closed(json.loads(words.replace(full, b'"__module__":"_loss"')), members)
    assert np.array_equal(unpack_regressor(short).predict(X_NEW), fitted(name).predict(X_NEW))


def test_the_list_names_only_numbers_code():
    home = "localw2.estimators.regression"
    own = {f"{home}.kernel_mean.KernelMean", f"{home}.polynomial_ridge.PolynomialRidge"}
    assert all(name.startswith(("sklearn.", "numpy.", "builtins.")) for name in TRUSTED - own)
    assert {name for name in TRUSTED if name.startswith("builtins.")} == {
        f"builtins.{kind}"
        for kind in ("str", "int", "float", "bool", "dict", "list", "tuple", "set", "slice")
    }


# --- hostile regressors ---------------------------------------------------------------------------------


def tuple_of(*nodes):
    return {"__class__": "tuple", "__module__": "builtins", "__loader__": "TupleNode", "content": list(nodes)}


def text(value):
    return {
        "__class__": "str",
        "__module__": "builtins",
        "__loader__": "JsonNode",
        "content": json.dumps(value),
    }


def called(loader, module, name, **more):
    return {"__class__": name, "__module__": module, "__loader__": loader, **more}


def attacks(canary):
    """Nodes that would touch the canary, or get nearer to that, if anything in them ran."""
    command = f"touch {canary}"
    empty = called(
        "DictNode",
        "builtins",
        "dict",
        content={},
        key_types=called("ListNode", "builtins", "list", content=[]),
    )
    code = f"open({str(canary)!r}, 'w')"
    reduce = {"args": tuple_of(text(command))}
    yield called("ObjectNode", "os", "system", content=text(command))
    yield called("FunctionNode", "os", "system")
    yield called("FunctionNode", "numpy", "exp")
    yield called("ObjectNode", "_loss", "CyHalfSquaredError")
    yield called("LossNode", "_loss", "system", __reduce__=reduce, content=empty)
    yield called("FunctionNode", "builtins", "eval")
    yield called("TypeNode", "builtins", "eval")
    yield called("TypeNode", "subprocess", "Popen")
    yield called("ConstructorFromReduceNode", "builtins", "eval", content=tuple_of(text(code)))
    yield called("ConstructorFromReduceNode", "builtins", "str", content=tuple_of(text(code)))
    yield called("LossNode", "os", "system", __reduce__=reduce, content=empty)
    yield called("TreeNode", "os", "system", __reduce__=reduce, content=empty)
    partial = {
        "func": called("FunctionNode", "os", "system"),
        "args": tuple_of(text(command)),
        "kwds": empty,
        "namespace": empty,
    }
    yield called("PartialNode", "functools", "partial", content=partial)
    yield called(
        "OperatorFuncNode", "operator", "methodcaller", attrs=tuple_of(text("system"), text(command))
    )
    yield called("MethodNode", "builtins", "str", content={"func": "format", "obj": text("")})
    yield called("DictNode", "os", "_Environ", content={}, key_types=empty["key_types"])
    eval_keys = called("ListNode", "builtins", "list", content=[called("TypeNode", "builtins", "eval")])
    yield called("DictNode", "builtins", "dict", content={code: text(1)}, key_types=eval_keys)
    yield called("NdArrayNode", "builtins", "eval", type="numpy", file="0.npy")
    yield called("NdArrayNode", "numpy", "void", type="numpy", file="0.npy")
    yield called("NdArrayNode", "numpy", "ndarray", type="numpy", file="pickle.npy")
    yield called("NdArrayNode", "numpy", "ndarray", type="numpy", file="huge.npy")
    yield called("NdArrayNode", "numpy", "ndarray", type="numpy", file="schema.json")
    yield called("NdArrayNode", "numpy", "ndarray", type="numpy", file="/etc/passwd")
    yield called("SparseMatrixNode", "scipy.sparse._csr", "csr_matrix", type="scipy", file="0.npy")
    yield called("CachedNode", "builtins", "str", __id__=1)
    yield {**text(1), "__id__": 1}
    yield called("UnknownNode", "builtins", "str")
    yield called("ObjectNode", "sklearn", "tree._tree.Tree")
    yield called("ObjectNode", "sklearn.tree._tree", "Tree")
    yield called("ObjectNode", "sklearn.linear_model._ridge", "Ridge", content=text([1]))
    yield called("SliceNode", "builtins", "slice", content={"start": [], "stop": None, "step": None})
    yield {"__class__": ["Ridge"], "__module__": "x", "__loader__": "ObjectNode"}
    yield []
    yield "os.system"
    yield None


class Bomb:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch {self.canary}",)


def huge_npy():
    honest = npy(np.zeros((10, 10)))
    return honest.replace(b"(10, 10)", b"(9999999999, 9999999999)".ljust(8))


@pytest.mark.parametrize("number", range(sum(1 for _ in attacks("x"))))
def test_no_attack_gets_in(tmp_path, number):
    canary = tmp_path / "canary"
    node = list(attacks(canary))[number]
    schema, members = opened(packed("ridge"))
    bomb = np.array([Bomb(canary)], dtype=object)
    members |= {"pickle.npy": npy(bomb, allow_pickle=True), "huge.npy": huge_npy()}
    schema["content"]["content"]["alpha"] = node
    with pytest.raises(ValueError):
        unpack_regressor(closed(schema, members))
    assert not canary.exists()
    if isinstance(node, dict):  # as the whole regressor
        with pytest.raises(ValueError):
            unpack_regressor(closed({**node, "protocol": 2}, members))
    assert not canary.exists()


def test_bytes_that_are_no_regressor(tmp_path):
    canary = tmp_path / "canary"
    good = packed("ridge")
    schema, members = opened(good)
    bombs = [pickle.dumps(Bomb(canary)), b"", b"PK", good[:-30], good[30:], closed({}, {}), closed([], {})]
    bombs.append(closed(schema, members, zipfile.ZIP_DEFLATED))
    bombs.append(closed({**schema, "protocol": 0}, members))
    bombs.append(closed({**schema, "protocol": 999}, members))
    bombs.append(closed(schema, {}))
    # As text: encoders of some Python versions have a limit of their own on nested lists.
    schema["content"]["content"]["alpha"] = "deep"
    before, after = json.dumps(called("ListNode", "builtins", "list", content=["deep"])).split('"deep"')
    deep = before * 3000 + json.dumps(text(1)) + after * 3000
    bombs.append(closed(json.dumps(schema).replace('"deep"', deep), members))
    for bomb in bombs:
        with pytest.raises(ValueError):
            unpack_regressor(bomb)
    with pytest.raises(ValueError, match="bytes"):
        unpack_regressor("text")
    assert not canary.exists()


def test_one_array_named_a_million_times():
    schema, members = opened(packed("ridge"))
    members["big.npy"] = npy(np.zeros(100_000))
    array = called("NdArrayNode", "numpy", "ndarray", type="numpy", file="big.npy")
    schema["content"]["content"]["alpha"] = called("ListNode", "builtins", "list", content=[array] * 1000)
    with pytest.raises(ValueError, match="often"):
        unpack_regressor(closed(schema, members))


def quickly(act, seconds=3.0):
    start = time.perf_counter()
    act()
    assert time.perf_counter() - start < seconds


def without_bytes(shape):
    """An array of so many elements that have no bytes."""
    return npy(np.zeros(1, "U1")).replace(b"<U1", b"<U0").replace(b"(1,)", shape)[:128]


@pytest.mark.parametrize("shape", [b"(9999999999,)", b"(99999999, 0)"])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in an array of objects"])
def test_elements_are_bounded_as_well_as_bytes(shape, inside):
    schema, members = opened(packed("ridge"))
    members["many.npy"] = without_bytes(shape)
    node = called("NdArrayNode", "numpy", "ndarray", type="numpy", file="many.npy")
    if inside:
        shape = tuple_of(text(100), text(10**9))
        node = called("NdArrayNode", "numpy", "ndarray", type="json", content=[node] * 100, shape=shape)
    schema["content"]["content"]["alpha"] = node

    def refused():
        with pytest.raises(ValueError, match=r"damaged|often|dimension"):
            unpack_regressor(closed(schema, members))

    quickly(refused)


def test_an_array_without_elements_is_not_long_either():
    schema, members = opened(packed("ridge"))
    members["long.npy"] = npy(np.zeros((2, 0))).replace(b"(2, 0)", b"(99999999, 0)")[:128]
    schema["content"]["content"]["alpha"] = called(
        "NdArrayNode", "numpy", "ndarray", type="numpy", file="long.npy"
    )
    with pytest.raises(ValueError, match="often"):
        unpack_regressor(closed(schema, members))


def test_a_tensor_without_elements_is_not_long(tmp_path, good_file):
    header, content, body = parts(good_file)
    header["history.epoch"] = {"dtype": "F64", "shape": [10**9, 0], "data_offsets": [0, 0]}
    (tmp_path / "m").write_bytes(sealed(header, content, body))
    with pytest.raises(ValueError, match="no content"):
        read(tmp_path / "m")


def test_arrays_of_objects_have_one_dimension():
    """Their elements would become objects at every level: 24 kB took half a minute."""
    schema, members = opened(packed("ridge"))
    members["big.npy"] = npy(np.zeros(10_000))
    node = called("NdArrayNode", "numpy", "ndarray", type="numpy", file="big.npy")
    for _ in range(30):
        shape = tuple_of(text(3), text(1))
        node = called("NdArrayNode", "numpy", "ndarray", type="json", content=[node], shape=shape)
    schema["content"]["content"]["alpha"] = node
    with pytest.raises(ValueError, match="dimension"):
        unpack_regressor(closed(schema, members))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("forest", lambda model: setattr(model, "n_outputs_", 10**8)),
        ("histogram", lambda model: model._predictors[0][0].nodes["depth"].fill(2**32 - 1)),
        ("histogram", lambda model: setattr(model, "max_iter", 10**9)),
        ("forest", lambda model: setattr(model, "n_estimators", 10**9)),
        ("pipeline", lambda model: setattr(model.steps[4][1], "_n_out_full", 10**6)),
    ],
)
def test_numbers_that_ask_for_work_or_memory_are_refused(name, change):
    with pytest.raises(ValueError, match=r"outputs|deep|at most|columns"):
        unpack_regressor(rearranged(name, change))


def test_a_constant_has_as_many_outputs_as_numbers():
    model = DummyRegressor().fit(X, Y)
    model.n_outputs_ = 10**8
    with pytest.raises(ValueError, match="outputs"):
        pack_regressor(model)


def test_jobs_of_another_machine_are_not_started():
    forest = unpack_regressor(rearranged("forest", lambda model: setattr(model, "n_jobs", 1000)))
    assert forest.n_jobs is None


def test_versions_of_others_are_one_warning_with_the_path(tmp_path, good_file):
    header, _, body = parts(good_file)
    data = good_file
    for name in ("a", "b"):
        schema, members = opened(body[slice(*header[f"__regressor__.{name}"]["data_offsets"])])
        schema["content"]["content"]["_sklearn_version"] = text("0.99")
        data = with_regressor(data, closed(schema, members), f"__regressor__.{name}")
    (tmp_path / "m").write_bytes(data)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        read(tmp_path / "m")
    (one,) = said
    assert str(tmp_path / "m") in str(one.message)
    assert "0.99" in str(one.message)


def rearranged(name, change):
    """A regressor with its insides changed by hand, packed past our own check."""
    model = unpack_regressor(packed(name))
    change(model)
    import skops.io

    return regressors._normalize(skops.io.dumps(model), {})


def replaced(**attributes):
    return lambda model: vars(model).update(attributes)


def short(array):
    return np.ascontiguousarray(array[..., :-1])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("forest", lambda m: m.estimators_.clear()),
        ("forest", lambda m: replaced(estimators_=tuple(m.estimators_))(m)),
        ("forest", lambda m: m.estimators_[1].__dict__.update(tree_=3)),
        ("forest", lambda m: m.estimators_[1].__dict__.update(n_features_in_=99)),
        ("forest", lambda m: m.__dict__.pop("n_features_in_")),
        ("forest", lambda m: m.estimators_.append(fitted("ridge"))),
        ("forest", lambda m: m.estimators_.append(DecisionTreeRegressor().fit(X[:, :2], Y))),
        ("forest", replaced(n_jobs=10**6)),
        ("tree", replaced(n_outputs_=7)),
        ("tree", lambda m: replaced(other=m.tree_)(m)),
        ("tree", replaced(predict=np.exp)),
        ("histogram", replaced(_in_fit=True)),
        ("histogram", replaced(_preprocessor=StandardScaler())),
        ("histogram", replaced(n_features_in_=1)),
        ("histogram", lambda m: replaced(spare=m._predictors)(m)),
        ("histogram", lambda m: m._predictors[0].append(m._predictors[1][0])),
        ("pipeline", replaced(memory="/tmp")),
        ("pipeline", lambda m: replaced(steps=[(1.5, m.steps[0][1]), *m.steps[1:]])(m)),
        ("pipeline", lambda m: replaced(order=1.5)(m.steps[4][1])),
        ("one_hot_dropped", lambda m: replaced(_n_features_outs=[1])(m[0].transformers_[0][1])),
        (
            "one_hot_dropped",
            lambda m: replaced(categories_=[np.array([2.0, 1, 0])])(m[0].transformers_[0][1]),
        ),
        (
            "one_hot_dropped",
            lambda m: replaced(_drop_idx_after_grouping=np.array([-9], object))(m[0].transformers_[0][1]),
        ),
    ],
)
def test_well_typed_but_wrong(name, change):
    with pytest.raises(ValueError):
        unpack_regressor(rearranged(name, change))


def bins(**attributes):
    return lambda model: vars(model._bin_mapper).update(attributes)


def bins_of(key, change):
    return lambda model: vars(model._bin_mapper).update({key: change(vars(model._bin_mapper)[key])})


def codes_of(change):
    return bins_of("bin_thresholds_", lambda edges: [change(edges[0]), *edges[1:]])


def with_codes(codes):
    """Other categories in the first column, and the number of bins that goes with them."""

    def change(model):
        codes_of(lambda _: np.asarray(codes, float))(model)
        model._bin_mapper.n_bins_non_missing_[0] = len(codes)

    return change


def trees_of(key, change):
    def apply(model):
        for (tree,) in model._predictors:
            vars(tree)[key] = change(vars(tree)[key])

    return apply


def nodes_of(field, change):
    """Change a field of every inner node that splits on a category."""

    def apply(model):
        for (tree,) in model._predictors:
            at = np.flatnonzero(tree.nodes["is_categorical"])
            assert at.size
            tree.nodes[field][at] = change(tree, at)

    return apply


BITSETS = ["raw_left_cat_bitsets", "binned_left_cat_bitsets"]
BAD_SETS = {
    "fewer": lambda sets: sets[:-1],
    "none": lambda sets: sets[:0],
    "narrow": short,
    "wide": lambda sets: np.hstack([sets, sets]),
    "flat": lambda sets: sets.reshape(-1),
    "deep": lambda sets: sets[..., None],
    "signed": lambda sets: sets.astype(np.int32),
    "small": lambda sets: sets.astype(np.uint8),
    "large": lambda sets: sets.astype(np.uint64),
    "swapped": lambda sets: sets.astype(">u4"),
    "columns": lambda sets: np.asfortranarray(np.vstack([sets, sets])),
    "missing": lambda sets: None,
    "list": lambda sets: sets.tolist(),
    "scalar": lambda sets: sets[0, 0],
}


@pytest.mark.parametrize("change", BAD_SETS.values(), ids=BAD_SETS)
@pytest.mark.parametrize("key", BITSETS)
def test_sets_of_categories_that_do_not_fit(key, change):
    with pytest.raises(ValueError, match="damaged"):
        unpack_regressor(rearranged("categories", trees_of(key, change)))


BAD_CATEGORIES = {
    "set of nobody": nodes_of("bitset_idx", lambda tree, at: len(tree.raw_left_cat_bitsets)),
    "set far away": nodes_of("bitset_idx", lambda tree, at: 2**32 - 1),
    "column of numbers": nodes_of("feature_idx", lambda tree, at: 1),
    "column behind": nodes_of("feature_idx", lambda tree, at: 3),
    "column far away": nodes_of("feature_idx", lambda tree, at: 2**40),
    "column before": nodes_of("feature_idx", lambda tree, at: -1),
    "number": nodes_of("is_categorical", lambda tree, at: 0),
    "neither": nodes_of("is_categorical", lambda tree, at: 2),
    "itself as a child": nodes_of("left", lambda tree, at: at),
    "child of nobody": nodes_of("right", lambda tree, at: len(tree.nodes)),
    "no mapper": replaced(_bin_mapper=None),
    "foreign mapper": replaced(_bin_mapper=StandardScaler()),
    "mapper without flags": lambda m: vars(m._bin_mapper).pop("is_categorical_"),
    "short flags": bins_of("is_categorical_", short),
    "long flags": bins_of("is_categorical_", lambda flags: np.append(flags, flags)),
    "no flag": bins_of("is_categorical_", np.zeros_like),
    "other flags": bins_of("is_categorical_", lambda flags: flags[::-1].copy()),
    "flags beyond one": bins_of("is_categorical_", lambda flags: flags * np.uint8(7)),
    "flags of another type": bins_of("is_categorical_", lambda flags: flags.astype(float)),
    "flags by name": bins(is_categorical_="first"),
    "no categories": codes_of(lambda codes: None),
    "categories in a list": codes_of(lambda codes: codes.tolist()),
    "categories in a square": codes_of(lambda codes: codes[:, None]),
    "categories as integers": codes_of(lambda codes: codes.astype(int)),
    "categories as text": codes_of(lambda codes: codes.astype(str)),
    "one category less": codes_of(short),
    "category beyond": with_codes([0, 1, 300]),
    "256 categories": with_codes(range(256)),
    "category below": with_codes([-1, 0, 1]),
    "half a category": with_codes([0, 0.5, 1]),
    "category twice": with_codes([0, 1, 1]),
    "missing category": with_codes([0, 1, np.nan]),
    "infinite category": with_codes([0, 1, np.inf]),
    "categories with a gap": with_codes([0, 1, 3]),
    "categories out of order": with_codes([0, 2, 1]),
    "bins of fewer columns": bins_of("bin_thresholds_", lambda edges: edges[:-1]),
    "bins of more columns": bins_of("bin_thresholds_", lambda edges: [*edges, edges[-1]]),
    "bins in a tuple": bins_of("bin_thresholds_", tuple),
    "wrong counts": bins_of("n_bins_non_missing_", lambda counts: counts + np.uint32(1)),
    "short counts": bins_of("n_bins_non_missing_", short),
    "long counts": bins_of("n_bins_non_missing_", lambda counts: np.append(counts, counts)),
    "model without flags": replaced(is_categorical_=None),
    "model without reordered flags": replaced(_is_categorical_remapped=None),
    "short flags of the model": replaced(is_categorical_=np.array([True])),
    "short reordered flags": replaced(_is_categorical_remapped=np.array([True])),
    "other flags of the model": replaced(is_categorical_=np.array([False, True, False])),
    "other reordered flags": replaced(_is_categorical_remapped=np.array([True, True, False])),
    "numbers for flags": replaced(is_categorical_=np.array([1, 0, 0])),
    "preprocessor": replaced(_preprocessor=StandardScaler()),
    "fewer columns": replaced(n_features_in_=2),
    "more columns": replaced(n_features_in_=4),
    "in a fit": replaced(_in_fit=True),
}


@pytest.mark.parametrize("change", BAD_CATEGORIES.values(), ids=BAD_CATEGORIES)
@pytest.mark.parametrize("several", [False, True], ids=["alone", "one of two"])
def test_categories_that_lead_astray(change, several):
    name = "multi_output_categories" if several else "categories"
    with pytest.raises(ValueError):
        unpack_regressor(rearranged(name, lambda model: change(model.estimators_[1] if several else model)))


@pytest.mark.parametrize("name", ["categories", "multi_output_categories"])
def test_the_changes_above_start_from_a_good_model(name):
    same = unpack_regressor(rearranged(name, lambda model: None))
    assert np.array_equal(same.predict(X_NEW), fitted(name).predict(X_NEW))


def test_boosting_on_numbers_has_no_categorical_nodes():
    """The table of known categories has no row then, and compiled code would read outside of it."""

    def change(model):
        for (tree,) in model._predictors:
            tree.nodes["is_categorical"] = tree.nodes["is_leaf"] == 0
            tree.raw_left_cat_bitsets = tree.binned_left_cat_bitsets = np.zeros((1, 8), np.uint32)

    with pytest.raises(ValueError, match="damaged"):
        unpack_regressor(rearranged("histogram", change))


# What an attacker can do to the nodes of a tree: field, and a value that no tree has there.
TREE_ATTACKS = [
    ("left", 0),
    ("right", 0),
    ("left", 10**6),
    ("right", 2**31 - 1),
    ("feature", 3),
    ("feature", 10**6),
    ("feature", -5),
]


def with_bad_nodes(data, rng):
    """The packed regressor with one inner node of one tree led astray, its zip checksum made good."""
    schema, members = opened(data)
    trees = []
    for name, member in members.items():
        array = np.load(io.BytesIO(member))
        if array.dtype.names and "threshold" in array.dtype.names and (array["left_child"] != -1).any():
            trees.append((name, array, array["left_child"] != -1, ("left_child", "right_child", "feature")))
        elif array.dtype.names and "is_leaf" in array.dtype.names and not array["is_leaf"].all():
            trees.append((name, array, array["is_leaf"] == 0, ("left", "right", "feature_idx")))
    name, array, inner, fields = trees[rng.integers(len(trees))]
    at = rng.choice(np.flatnonzero(inner))
    field, value = TREE_ATTACKS[rng.integers(len(TREE_ATTACKS))]
    array[dict(zip(("left", "right", "feature"), fields, strict=True))[field]][at] = value
    members[name] = npy(array)
    return closed(schema, members)


@pytest.mark.parametrize(
    "name",
    ["tree", "forest", "extra_trees", "histogram", "multi_output", "categories", "multi_output_categories"],
)
def test_trees_that_lead_astray(name):
    data, rng = packed(name), np.random.default_rng(0)
    for _ in range(10):
        with pytest.raises(ValueError):
            unpack_regressor(with_bad_nodes(data, rng))


@pytest.mark.parametrize(
    ("key", "value"), [("node_count", 10**9), ("max_depth", 1), ("max_depth", -1), ("node_count", 0)]
)
def test_trees_that_lie_about_their_size(key, value):
    schema, members = opened(packed("tree"))
    schema["content"]["content"]["tree_"]["content"]["content"][key] = text(value)
    with pytest.raises(ValueError, match="tree"):
        unpack_regressor(closed(schema, members))


@pytest.mark.parametrize(("place", "value"), [(0, 1), (0, 10**18), (2, 10**12), (2, -1), (2, 0)])
def test_trees_with_lying_arguments(place, value):
    schema, members = opened(packed("tree"))
    schema["content"]["content"]["tree_"]["__reduce__"]["args"]["content"][place] = text(value)
    with pytest.raises(ValueError, match="damaged"):
        unpack_regressor(closed(schema, members))


SCALARS = ["null", "true", "-1", "0", "1", "7", "1e999", "NaN", '"rbf"', "[]", "[[1]]", "123456789"]


def scrambled(data, rng):
    """A well-formed archive with a few values or array elements replaced at random."""
    schema, members = opened(data)
    for _ in range(rng.integers(1, 3)):
        if members and rng.random() < 0.6:
            name = list(members)[rng.integers(len(members))]
            array = np.array(np.load(io.BytesIO(members[name])), order="C")
            if array.size:
                raw = array.reshape(-1).view(np.uint8)
                raw[rng.integers(len(raw))] = rng.choice([0, 1, 127, 255, rng.integers(256)])
            members[name] = npy(array if rng.random() < 0.8 or not array.ndim else array[:-1])
        else:
            nodes, leaves = [schema], []
            while nodes:
                node = nodes.pop()
                if isinstance(node, dict):
                    if node.get("__loader__") == "JsonNode":
                        leaves.append(node)
                    nodes.extend(node.values())
                elif isinstance(node, list):
                    nodes.extend(node)
            leaves[rng.integers(len(leaves))]["content"] = SCALARS[rng.integers(len(SCALARS))]
    return closed(schema, members)


def fuzz(seed, count, *names):
    """How many scrambled regressors were refused, and how many were used."""
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(count):
        data = scrambled(packed(names[rng.integers(len(names))]), rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = unpack_regressor(data)
            except ValueError:
                refused += 1
                continue
            with contextlib.suppress(Exception):
                model.predict(X_NEW)
    return refused, count - refused


def test_scrambled_insides_never_crash():
    names = ("histogram", "forest", "tree", "poisson", "kernel_ridge", "columns")
    assert min(fuzz(1, 40, *names)) > 0
    assert min(fuzz(1, 60, "categories", "categories_of_two_columns", "multi_output_categories")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_scrambled_insides_never_crash_campaign(seed):
    """In a process of its own, so that a crash of compiled code is seen rather than suffered."""
    folders = [str(folder) for folder in Path(__file__).parents[:2]]
    program = (
        f"import sys; sys.path[:0] = {folders!r}; import test_model_file as t; "
        f"assert min(t.fuzz({seed}, 300, *t.REGRESSORS)) > 0"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=360)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-2000:]}"


# --- damaged, foreign and hostile files -----------------------------------------------------------------


@pytest.fixture(scope="module")
def good_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "model"
    tensors = {"first": torch.arange(6.0), "second": -torch.arange(6.0), "mask": torch.tensor([True, False])}
    regressors = {"a": fitted("histogram"), "b": DecisionTreeRegressor(max_depth=3).fit(X, Y)}
    write(path, Stored("LocalW2Regressor", {"delta": 0.1, "names": ["a", "b"]}, tensors, regressors))
    return path.read_bytes()


def test_the_attackers_tools_work(tmp_path, good_file):
    path = tmp_path / "m"
    path.write_bytes(sealed(*parts(good_file)))
    assert read(path).settings == {"delta": 0.1, "names": ["a", "b"]}
    path.write_bytes(with_regressor(good_file, packed("ridge")))
    assert isinstance(read(path).regressors["b"], Ridge)


def flip(data, rng):
    at = rng.integers(len(data))
    return data[:at] + bytes([data[at] ^ rng.integers(1, 256)]) + data[at + 1 :]


def flip_header(data, rng):
    at = rng.integers(8 + int.from_bytes(data[:8], "little"))
    return data[:at] + bytes([data[at] ^ rng.integers(1, 256)]) + data[at + 1 :]


def flip_many(data, rng):
    for _ in range(20):
        data = flip(data, rng)
    return data


def truncate(data, rng):
    return data[: rng.integers(len(data))]


def append(data, rng):
    return data + rng.bytes(rng.integers(1, 100))


def blot(data, rng):
    at, size = rng.integers(len(data)), rng.integers(1, 1000)
    blotted = data[:at] + rng.bytes(min(size, len(data) - at)) + data[at + size :]
    return blotted if blotted != data else append(data, rng)


def lie_about_the_header(data, rng):
    sizes = [0, 1, 2, 2**63, 2**64 - 1, len(data), int(rng.integers(2**62))]
    size = sizes[rng.integers(len(sizes))]
    return size.to_bytes(8, "little") + data[8:]


def lie_about_sizes(data, rng):
    header, content, body = parts(data)
    entry = header[rng.choice([key for key in header if key != "__metadata__"])]
    start, stop = entry["data_offsets"]
    lies = [
        {"shape": [*entry["shape"], 10**15]},
        {"shape": [entry["shape"][0] + 1]},
        {"shape": [2**63, 2**63]},
        {"shape": [-1]},
        {"shape": "big"},
        {"data_offsets": [start, stop + 8]},
        {"data_offsets": [stop, start]},
        {"data_offsets": [start, 10**18]},
        {"data_offsets": [-8, stop]},
        {"data_offsets": [start + 1, stop]},
        {"data_offsets": []},
        {"dtype": "C128"},
        {"dtype": "F64" if entry["dtype"] != "F64" else "F32"},
        {"dtype": None},
    ]
    entry.update(lies[rng.integers(len(lies))])
    return sealed(header, content, body)


def swap_keys(data, rng):
    pairs = [(b'"first"', b'"other"'), (b"regressor__.a", b"regressor__.c"), (b'"mask"', b'"MASK"')]
    old, new = pairs[rng.integers(len(pairs))]
    return data.replace(old, new) if rng.random() < 0.5 else data.replace(b"first", b"secon", 1)


def swap_tensors(data, rng):
    header, _, body = parts(data)
    (a, b), (c, d) = header["first"]["data_offsets"], header["second"]["data_offsets"]
    swapped = bytearray(body)
    swapped[a:b], swapped[c:d] = body[c:d], body[a:b]
    return data[: len(data) - len(body)] + bytes(swapped)


def edit_metadata(data, rng):
    edits = [(b"LocalW2Regressor", b"LocalW2Regressox"), (b"0.1", b"0.2"), (b"delta", b"gamma")]
    old, new = edits[rng.integers(len(edits))]
    return data.replace(old, new, 1)


def forge_metadata(data, rng):
    header, content, body = parts(data)
    lies = [
        {"kind": 3},
        {"kind": ""},
        {"kind": None},
        {"settings": [1]},
        {"settings": None},
        {"settings": "{}"},
        {"regressors": ["a"]},
        {"regressors": ["a", "b", "c"]},
        {"regressors": "ab"},
        {"regressors": {"a": 1, "b": 2}},
        {"regressors": [1, 2]},
        {"format_version": FORMAT_VERSION + 1},
        {"format_version": 10**30},
        {"format_version": "1"},
        {"format_version": True},
        {"format_version": 1.0},
        {"format_version": 0},
        {"format_version": None},
        {"format": "onnx"},
    ]
    words = ["null", "[]", "{}", "{", '{"a":1,"a":2}', "[" * 5000, "NaN", "", "9" * 10_000]
    if rng.random() < 0.3:
        return sealed(header, words[rng.integers(len(words))], body)
    if rng.random() < 0.3:
        del content[rng.choice(list(content))]
        return sealed(header, content, body)
    return sealed(header, {**content, **lies[rng.integers(len(lies))]}, body)


def forge_tree(data, rng):
    name = rng.choice(["a", "b"])
    return with_regressor(data, with_bad_nodes(PACKED[name], rng), f"__regressor__.{name}")


def forge_schema(data, rng):
    schema, members = opened(PACKED["b"])
    choices = list(attacks(CANARY))
    attributes = schema["content"]["content"]
    attributes[rng.choice(list(attributes))] = choices[rng.integers(len(choices))]
    return with_regressor(data, closed(schema, members))


def forge_regressor(data, rng):
    foreign = [b"", rng.bytes(500), pickle.dumps(Bomb(CANARY)), PACKED["a"][:-1], flip_many(PACKED["a"], rng)]
    return with_regressor(data, foreign[rng.integers(len(foreign))])


PACKED = {}
CANARY = Path("/tmp") / f"localw2-canary-{os.getpid()}"
MUTATIONS = [
    flip,
    flip_header,
    flip_many,
    truncate,
    append,
    blot,
    lie_about_the_header,
    lie_about_sizes,
    swap_keys,
    swap_tensors,
    edit_metadata,
    forge_metadata,
    forge_tree,
    forge_schema,
    forge_regressor,
]


class Hang(BaseException):
    pass


def hang(*_):
    raise Hang


def campaign(path, good, seeds):
    PACKED.update(a=packed("histogram"), b=packed("tree"))
    counts = dict.fromkeys(MUTATIONS, 0)
    before = signal.signal(signal.SIGALRM, hang)
    try:
        for seed in seeds:
            rng = np.random.default_rng(seed)
            mutation = MUTATIONS[seed % len(MUTATIONS)]
            bad = mutation(good, rng)
            assert bad != good, f"{mutation.__name__}, seed {seed}"
            path.write_bytes(bad)
            signal.setitimer(signal.ITIMER_REAL, 5.0)
            with pytest.raises(ValueError) as caught:
                read(path)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert str(path) in str(caught.value), f"{mutation.__name__}, seed {seed}"
            assert len(str(caught.value)) < 1000
            counts[mutation] += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not CANARY.exists()
    assert min(counts.values()) >= len(seeds) // len(MUTATIONS)


@pytest.mark.posix
def test_mutated_files(tmp_path, good_file):
    campaign(tmp_path / "m", good_file, range(150))


@pytest.mark.slow
@pytest.mark.posix
def test_a_thousand_mutated_files(tmp_path, good_file):
    campaign(tmp_path / "m", good_file, range(10_000, 11_005))


def test_every_byte_is_under_the_checksum(tmp_path):
    write(tmp_path / "m", Stored("k", {"a": 1}, {"t": torch.ones(1)}))
    good = (tmp_path / "m").read_bytes()
    for at in range(len(good)):
        # 0x29 turns the header's padding from spaces into tabs, which JSON allows too.
        (tmp_path / "m").write_bytes(good[:at] + bytes([good[at] ^ 0x29]) + good[at + 1 :])
        with pytest.raises(ValueError):
            read(tmp_path / "m")


def test_foreign_files(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "m"
    png = b"\x89PNG\r\n\x1a\n" + bytes(100)
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(2)}, buffer)
    for data in (
        b"",
        b"\0" * 8,
        png,
        pickle.dumps(Bomb(CANARY)),
        buffer.getvalue(),
        b"{}" * 50,
        closed({}, {}),
    ):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="model file"):
            read(path)
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="model file"):
        read(path)
    save_file({"a": torch.ones(2)}, path, metadata={"localw2": "yes"})
    with pytest.raises(ValueError, match="model file"):
        read(path)
    assert not CANARY.exists()


def test_newer_file(tmp_path, good_file):
    header, content, body = parts(good_file)
    (tmp_path / "m").write_bytes(sealed(header, {**content, "format_version": FORMAT_VERSION + 1}, body))
    with pytest.raises(ValueError, match="Upgrade"):
        read(tmp_path / "m")


@pytest.mark.posix
def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read(tmp_path / "m")
    with pytest.raises(ValueError, match="folder"):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="regular"):
        read(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a path"):
        read(None)


def test_lying_sizes_allocate_nothing(tmp_path):
    """A file that states a terabyte is refused at once, and so is a terabyte of nothing."""
    header = {"t": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}
    content = {"format": "localw2", "format_version": 1, "kind": "k", "settings": {}, "regressors": []}
    path = tmp_path / "m"
    path.write_bytes(sealed(header, content, bytes(100)))
    start = time.perf_counter()
    with pytest.raises(ValueError, match="truncated"):
        read(path)
    path.write_bytes(bytes(8))
    os.truncate(path, 2**40)
    with pytest.raises(ValueError, match="model file"):
        read(path)
    assert time.perf_counter() - start < 2


def test_settings_cannot_swell_in_memory(tmp_path):
    """A file of empty lists takes thirty times its size when parsed; so settings are few, on both sides."""
    path = tmp_path / "m"
    content = {"format": "localw2", "format_version": 1, "kind": "k", "regressors": []}
    path.write_bytes(sealed({}, {**content, "settings": {"a": [[]] * 3_000_000}}, b""))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="model file"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="10 MB"):
        write(tmp_path / "large", Stored("k", {"a": "x" * 10_000_001}))
    assert not (tmp_path / "large").exists()
    write(path, Stored("k", {"a": "x" * 9_900_000}))
    assert len(read(path).settings["a"]) == 9_900_000


def test_truth_values_are_zero_or_one(tmp_path, good_file):
    header, content, body = parts(good_file)
    at = header["mask"]["data_offsets"][0]
    (tmp_path / "m").write_bytes(sealed(header, content, body[:at] + b"\x07" + body[at + 1 :]))
    with pytest.raises(ValueError, match="Boolean"):
        read(tmp_path / "m")
