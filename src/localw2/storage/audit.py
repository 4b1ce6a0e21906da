"""The audit of a packed regressor before anything in it is built: what it names, and how large it is.

A packed regressor is a skops archive: a zip file of ``schema.json``, which says what to build, and of
arrays. skops builds whatever a trusted type asks for, and numpy allocates whatever an array's header
says, so both are read here first, as plain data.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

# --- what may be named ----------------------------------------------------------------------------------

_ESTIMATORS = {
    "sklearn.linear_model._base": "LinearRegression",
    "sklearn.linear_model._ridge": "Ridge RidgeCV",
    "sklearn.linear_model._coordinate_descent": "Lasso LassoCV ElasticNet ElasticNetCV MultiTaskLasso "
    "MultiTaskElasticNet",
    "sklearn.linear_model._bayes": "BayesianRidge ARDRegression",
    "sklearn.linear_model._huber": "HuberRegressor",
    "sklearn.linear_model._theil_sen": "TheilSenRegressor",
    "sklearn.linear_model._quantile": "QuantileRegressor",
    "sklearn.linear_model._stochastic_gradient": "SGDRegressor",
    "sklearn.linear_model._least_angle": "Lars LassoLars",
    "sklearn.linear_model._omp": "OrthogonalMatchingPursuit",
    "sklearn.linear_model._glm.glm": "PoissonRegressor GammaRegressor TweedieRegressor",
    "sklearn.kernel_ridge": "KernelRidge",
    "sklearn.cross_decomposition._pls": "PLSRegression",
    "sklearn.dummy": "DummyRegressor",
    "sklearn.tree._classes": "DecisionTreeRegressor ExtraTreeRegressor",
    "sklearn.ensemble._forest": "RandomForestRegressor ExtraTreesRegressor",
    "sklearn.ensemble._gb": "GradientBoostingRegressor",
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting": "HistGradientBoostingRegressor",
    "sklearn.ensemble._bagging": "BaggingRegressor",
    "sklearn.ensemble._weight_boosting": "AdaBoostRegressor",
    "sklearn.ensemble._voting": "VotingRegressor",
    "sklearn.ensemble._stacking": "StackingRegressor",
    "sklearn.neighbors._regression": "KNeighborsRegressor",
    "sklearn.neural_network._multilayer_perceptron": "MLPRegressor",
    "sklearn.svm._classes": "SVR NuSVR LinearSVR",
    "sklearn.gaussian_process._gpr": "GaussianProcessRegressor",
    "sklearn.compose._target": "TransformedTargetRegressor",
    "sklearn.compose._column_transformer": "ColumnTransformer",
    "sklearn.multioutput": "MultiOutputRegressor RegressorChain",
    "sklearn.pipeline": "Pipeline FeatureUnion",
    "sklearn.preprocessing._data": "StandardScaler MinMaxScaler MaxAbsScaler RobustScaler Normalizer "
    "PowerTransformer QuantileTransformer",
    "sklearn.preprocessing._polynomial": "PolynomialFeatures",
    "sklearn.preprocessing._encoders": "OneHotEncoder OrdinalEncoder",
    "sklearn.preprocessing._label": "LabelBinarizer",  # an MLPRegressor holds one
    "sklearn.preprocessing._function_transformer": "FunctionTransformer",
    "sklearn.impute._base": "SimpleImputer MissingIndicator",
    "sklearn.decomposition._pca": "PCA",
    "sklearn.feature_selection._variance_threshold": "VarianceThreshold",
    "localw2.estimators.regression.kernel_mean": "KernelMean",
}
_PARTS = {
    "sklearn.gaussian_process.kernels": "ConstantKernel WhiteKernel RBF Matern RationalQuadratic "
    "ExpSineSquared DotProduct Sum Product Exponentiation CompoundKernel Hyperparameter",
    "sklearn.neural_network._stochastic_optimizers": "AdamOptimizer SGDOptimizer",
    "sklearn._loss.link": "IdentityLink LogLink Interval",
    "sklearn._loss.loss": "HalfSquaredError AbsoluteError PinballLoss HuberLoss HalfPoissonLoss "
    "HalfGammaLoss HalfTweedieLoss HalfTweedieLossIdentity",
    "sklearn.ensemble._hist_gradient_boosting.binning": "_BinMapper",
    "sklearn.ensemble._hist_gradient_boosting.predictor": "TreePredictor",
}
_LOSSES = {
    "sklearn._loss._loss": "CyHalfSquaredError CyAbsoluteError CyPinballLoss CyHuberLoss CyHalfPoissonLoss "
    "CyHalfGammaLoss CyHalfTweedieLoss CyHalfTweedieLossIdentity",
}
_FUNCTIONS = {
    "numpy": "absolute arcsinh arctan arctanh cbrt cos exp exp2 expm1 log log10 log1p log2 negative "
    "reciprocal sin sinh sqrt square tan tanh"
}
_SCALARS = {"numpy": "float64 float32 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool bool_ str_"}


def _names(*tables: dict[str, str]) -> frozenset[str]:
    """The full names in tables of module and names."""
    return frozenset(
        f"{module}.{name}" for table in tables for module in table for name in table[module].split()
    )


# Modules of ours under the names that files know them by: a file's words outlive a move.
STORED_MODULES = {"localw2.estimators.regression.kernel_mean": "localw2.estimators.kernel_mean"}
PRESENT_MODULES = {stored: present for present, stored in STORED_MODULES.items()}

# For each way of building an object that skops knows, the types that may be built so. No other way is
# allowed: no methods, partials, operators, reduce calls, sparse matrices or references back.
ALLOWED = {
    "ObjectNode": _names(_ESTIMATORS, _PARTS),
    "TreeNode": frozenset({"sklearn.tree._tree.Tree"}),
    "LossNode": _names(_LOSSES),
    "FunctionNode": _names(_FUNCTIONS),
    "TypeNode": _names(_SCALARS, {"builtins": "str int float bool", "numpy": "object_"}),
    "NdArrayNode": _names(_SCALARS, {"numpy": "ndarray"}),
    "DTypeNode": frozenset({"numpy.dtype"}),
    "DictNode": frozenset({"builtins.dict", "sklearn.utils._bunch.Bunch"}),
    "ListNode": frozenset({"builtins.list"}),
    "TupleNode": frozenset({"builtins.tuple"}),
    "SetNode": frozenset({"builtins.set"}),
    "SliceNode": frozenset({"builtins.slice"}),
    "JsonNode": frozenset({"builtins.str"}),
    "RandomStateNode": frozenset({"numpy.random.mtrand.RandomState"}),
    "RandomGeneratorNode": frozenset({"numpy.random._generator.Generator"}),
}
TRUSTED = frozenset().union(*ALLOWED.values())
"""Every type and function that a stored regressor may name. It is fixed: no file and no call widens it."""


# --- the audit ------------------------------------------------------------------------------------------

Node = dict[str, Any]
Places = Iterator[tuple[Any, str]]  # nodes, each with the path that leads to it
Header = tuple[np.dtype[Any], tuple[int, ...]]
_TREE_STATE = {"max_depth", "node_count", "nodes", "values"}


class RefusedError(ValueError):
    """Our own refusal, whose message needs no more words."""


def audit(data: bytes) -> None:
    """Refuse, with RefusedError or the error of a reader, a packed regressor that skops must not see."""
    _Audit(data).run()


class _Audit:
    """Reads a packed regressor as plain data and refuses whatever skops could be led astray by."""

    def __init__(self, data: bytes) -> None:
        self._budget = 8 * len(data) + 1_000_000  # one array may be named in a few places, not in millions
        self._archive = zipfile.ZipFile(io.BytesIO(data))
        members = self._archive.infolist()
        if len({member.filename for member in members}) < len(members):
            raise RefusedError("the packed regressor holds a name twice.")
        for member in members:
            if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                raise RefusedError("the packed regressor is compressed, which ours never are.")
        if sum(member.file_size for member in members) > len(data):
            raise RefusedError("the packed regressor states sizes beyond its own.")
        self._arrays: dict[str, Header] = {}

    def run(self) -> None:
        """Visit every node."""
        schema = json.loads(self._archive.read("schema.json"))
        if type(schema.get("protocol")) is not int or schema["protocol"] < 2:
            raise RefusedError(
                f"the packed regressor has skops protocol {schema.get('protocol')!r}; ours have 2."
            )
        nodes: list[tuple[Any, str]] = [(schema, "")]
        while nodes:
            node, where = nodes.pop()
            nodes.extend(self._children(node, where))

    def _children(self, node: Any, where: str) -> Places:
        """The parts of a node, which is itself a good one."""
        loader = _loader(node, where)
        content: Any = node.get("content")
        match loader:
            case "DictNode":
                yield from self._dict(node, where)
            case "ListNode" | "TupleNode" | "SetNode":
                yield from _items(content, where)
            case "ObjectNode":
                if content is not None and content.get("content") != "null":  # "null": it has no attributes
                    if content.get("__loader__") != "DictNode" or content.get("__class__") != "dict":
                        raise RefusedError(f"the state of {where or 'the regressor'} is not a dict.")
                    yield content, where
            case "NdArrayNode":
                yield from self._ndarray(node, where)
            case "TreeNode":
                self._tree(node, where)
                yield node["__reduce__"]["args"], where
                yield node["content"], where
            case "LossNode":
                yield from self._loss(node, where)
            case "DTypeNode":
                if content.get("__loader__") != "NdArrayNode" or content.get("type") != "numpy":
                    raise RefusedError(f"the dtype at {where} is not stored as an array.")
                yield content, where
            case "RandomStateNode":
                yield content, where
            case "RandomGeneratorNode":
                yield from self._generator(node, where)
            case "SliceNode":
                if not all(
                    content[key] is None or type(content[key]) is int for key in ("start", "stop", "step")
                ):
                    raise RefusedError(f"the slice at {where} is not of whole numbers.")
            case "JsonNode":
                if not isinstance(content, str):
                    raise RefusedError(f"the value at {where} is not JSON.")

    def _dict(self, node: Node, where: str) -> Places:
        """The keys are text in the archive, and made again by their types."""
        kinds = node["key_types"]
        if kinds.get("__loader__") != "ListNode" or not isinstance(node["content"], dict):
            raise RefusedError(f"the dict at {where or 'root'} has no list of key types.")
        for kind in _listed(kinds["content"], where):
            if kind.get("__loader__") != "TypeNode":
                raise RefusedError(f"a key of the dict at {where or 'root'} has no plain type.")
        yield kinds, where
        yield from ((item, f"{where}.{key}" if where else key) for key, item in node["content"].items())

    def _ndarray(self, node: Node, where: str) -> Places:
        """Numbers are stored as a file, objects as a list of nodes."""
        if node["type"] == "numpy":
            self._array(node, where)
        elif node["type"] == "json" and node["__class__"] == "ndarray":
            yield from _items(node["content"], where)
            yield node["shape"], where
        else:
            raise RefusedError(f"the array at {where} is stored in an unknown way.")

    def _array(self, node: Node, where: str) -> Header:
        """The dtype and shape of a stored array, whose bytes are exactly as many as these need."""
        if node.get("__loader__") != "NdArrayNode" or node.get("type") != "numpy" or "__id__" in node:
            raise RefusedError(f"a plain array is missing at {where}.")
        name = node["file"]
        self._budget -= self._archive.getinfo(name).file_size
        if self._budget < 0:
            raise RefusedError("the packed regressor names its arrays again and again.")
        if name not in self._arrays:
            self._arrays[name] = _npy_header(self._archive.read(name), where)
        return self._arrays[name]

    def _tree(self, node: Node, where: str) -> None:
        """Check the numbers by which the constructor of a Tree allocates before its own checks."""
        args, state = node["__reduce__"]["args"], node["content"]
        if args.get("__loader__") != "TupleNode" or state.get("__loader__") != "DictNode":
            raise RefusedError(f"the tree at {where} has no plain state.")
        keys = state["key_types"]["content"]
        if [(kind["__module__"], kind["__class__"]) for kind in keys] != [("builtins", "str")] * 4:
            raise RefusedError(f"the tree at {where} has odd keys.")
        n_features, n_outputs = _whole(args["content"][0], where), _whole(args["content"][2], where)
        count, depth = (_whole(state["content"][key], where) for key in ("node_count", "max_depth"))
        dtype, shape = self._array(args["content"][1], where)
        _, nodes = self._array(state["content"]["nodes"], where)
        kind, values = self._array(state["content"]["values"], where)
        good = dtype.kind == "i" and shape == (n_outputs,) and nodes == (count,) and kind == np.float64
        if not good or len(args["content"]) != 3 or set(state["content"]) != _TREE_STATE:
            raise RefusedError(f"the tree at {where} is damaged: its arrays do not fit each other.")
        if values != (count, n_outputs, 1) or min(n_features, n_outputs, count) < 1 or depth < 0:
            raise RefusedError(f"the tree at {where} is damaged, or not of a regressor.")

    def _loss(self, node: Node, where: str) -> Places:
        """A loss is made of numbers and has no state."""
        args, state = node["__reduce__"]["args"], node["content"]
        plain = args.get("__loader__") == "TupleNode" and not state.get("content") and "__id__" not in state
        if not plain or state.get("__loader__") not in ("DictNode", "TupleNode"):
            raise RefusedError(f"the loss at {where} has more than plain arguments.")
        for item in _listed(args["content"], where):
            if item.get("__loader__") != "JsonNode" or type(json.loads(item["content"])) not in (int, float):
                raise RefusedError(f"the loss at {where} has arguments that are not numbers.")
        yield args, where
        yield state, where

    def _generator(self, node: Node, where: str) -> Places:
        """A random generator is a PCG64, seeded with one number."""
        state, seeds = node["content"]["bit_generator"], node["content"]["seed_seq"]
        if state["content"]["bit_generator"]["content"] != '"PCG64"':
            raise RefusedError(f"the random generator at {where} is not PCG64.")
        entropy, spawn_key = seeds["content"]["entropy"], seeds["content"]["spawn_key"]
        number = entropy.get("__loader__") == "NdArrayNode" and self._array(entropy, where)[1] == ()
        good = (number or _whole(entropy, where) >= 0) and not spawn_key["content"]
        # numpy takes time quadratic in pool_size.
        if not good or _whole(seeds["content"]["pool_size"], where) != 4:
            raise RefusedError(f"the random generator at {where} has an odd seed.")
        yield state, where
        yield seeds, where


def _loader(node: Any, where: str) -> str:
    """The way in which a node is built, if its type may be built so."""
    if not isinstance(node, dict) or "__id__" in node:
        raise RefusedError(f"the regressor's part {where or 'root'} is not one that localw2 packed.")
    loader, module, name = (node.get(key) for key in ("__loader__", "__module__", "__class__"))
    if not all(isinstance(word, str) for word in (loader, module, name)):
        raise RefusedError(f"the regressor's part {where or 'root'} does not say what it is.")
    module = PRESENT_MODULES.get(str(module), module)
    if "." in str(name) or f"{module}.{name}" not in ALLOWED.get(str(loader), ()):
        raise RefusedError(_not_listed(f"{module}.{name}", where))
    return str(loader)


def _not_listed(name: str, where: str) -> str:
    """Why a name is refused, and what to use instead."""
    place = f" (at {where})" if where else ""
    hint = " It may also have moved in another version of scikit-learn."
    if name.startswith("sklearn.neighbors._") and "Tree" in name:
        hint = ' The search tree of a nearest-neighbour model cannot be checked. Use algorithm="brute".'
    elif name in ("functools.partial", "sklearn.utils.validation.check_array"):
        hint = " Encode categories in a Pipeline (OneHotEncoder) rather than by categorical_features."
    elif not name.startswith(("sklearn.", "numpy.", "scipy.")):
        hint = " Use scikit-learn's own regressors and transformers, without functions of your own."
    return f"it holds {name}{place}, which is not on localw2's list of types that are safe to load.{hint}"


def _listed(content: Any, where: str) -> list[Any]:
    """The content, if it is a list of nodes."""
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise RefusedError(f"the list at {where or 'root'} is damaged.")
    return content


def _items(content: Any, where: str) -> Places:
    """The nodes of a list."""
    return ((item, f"{where}[{i}]") for i, item in enumerate(_listed(content, where)))


def _whole(node: Any, where: str) -> int:
    """The whole number that a node holds, of at most 256 bits."""
    value = json.loads(node["content"]) if node["__loader__"] == "JsonNode" and "__id__" not in node else None
    if type(value) is not int or value >= 1 << 256:
        raise RefusedError(f"a whole number is missing at {where}.")
    return value


def _npy_header(data: bytes, where: str) -> Header:
    """The dtype and shape that a .npy file states, if its bytes are as many as these need."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise RefusedError(f"the array at {where} has an unknown format.")
    parts = [dtype] if dtype.fields is None else [part[0] for part in dtype.fields.values()]
    if any(part.kind not in "biufUS" or part.shape or part.hasobject for part in parts):
        raise RefusedError(f"the array at {where} has dtype {dtype}, which is not plain numbers or text.")
    # numpy allocates by the header alone.
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise RefusedError(f"the array at {where} is damaged: shape {shape} does not fit its bytes.")
    return dtype, shape
