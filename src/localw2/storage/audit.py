"""The audit of a packed regressor before anything in it is built: the types it names and its sizes.

A packed regressor is a skops archive: a zip file with ``schema.json``, which says what to build, and arrays.
skops builds whatever a trusted type asks for, and numpy allocates whatever the header of an array states, so
both are read here first, as plain data.
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
    "sklearn.linear_model._coordinate_descent": "Lasso LassoCV ElasticNet ElasticNetCV",
    "sklearn.linear_model._bayes": "BayesianRidge",
    "sklearn.linear_model._huber": "HuberRegressor",
    "sklearn.linear_model._glm.glm": "PoissonRegressor GammaRegressor",
    "sklearn.kernel_ridge": "KernelRidge",
    "sklearn.dummy": "DummyRegressor",
    "sklearn.tree._classes": "DecisionTreeRegressor ExtraTreeRegressor",
    "sklearn.ensemble._forest": "RandomForestRegressor ExtraTreesRegressor",
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting": "HistGradientBoostingRegressor",
    "sklearn.compose._column_transformer": "ColumnTransformer",
    "sklearn.multioutput": "MultiOutputRegressor",
    "sklearn.pipeline": "Pipeline",
    "sklearn.preprocessing._data": "StandardScaler MinMaxScaler MaxAbsScaler RobustScaler",
    "sklearn.preprocessing._polynomial": "PolynomialFeatures",
    "sklearn.preprocessing._encoders": "OneHotEncoder",
    "sklearn.preprocessing._function_transformer": "FunctionTransformer",  # "passthrough" becomes one
    "sklearn.impute._base": "SimpleImputer MissingIndicator",
    "localw2.estimators.regression.kernel_mean": "KernelMean",
    "localw2.estimators.regression.polynomial_ridge": "PolynomialRidge",
}
_PARTS = {
    "sklearn._loss.link": "IdentityLink LogLink Interval",
    "sklearn._loss.loss": "HalfSquaredError AbsoluteError PinballLoss HalfPoissonLoss HalfGammaLoss",
    "sklearn.ensemble._hist_gradient_boosting.binning": "_BinMapper",
    "sklearn.ensemble._hist_gradient_boosting.predictor": "TreePredictor",
}
_LOSSES = {
    "sklearn._loss._loss": "CyHalfSquaredError CyAbsoluteError CyPinballLoss CyHalfPoissonLoss "
    "CyHalfGammaLoss",
}
_SCALARS = {"numpy": "float64 float32 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool bool_ str_"}


def _join_names(*tables: dict[str, str]) -> frozenset[str]:
    """The full names in tables of modules and names."""
    return frozenset(
        f"{module}.{name}" for table in tables for module in table for name in table[module].split()
    )


# A file keeps the name that a module of ours had in version 0.1, so that the module can move.
_MOVED = {"localw2.estimators.kernel_mean": "localw2.estimators.regression.kernel_mean"}
# scikit-learn before 1.9 calls the module of its compiled losses "_loss"; a file has the full name.
_LOSS_MODULE = {"_loss": "sklearn._loss._loss"}
STORED_MODULES = {present: stored for stored, present in _MOVED.items()} | _LOSS_MODULE
PRESENT_MODULES = _MOVED | _LOSS_MODULE

# For each way in which skops builds an object, the types that may be built that way. No other way is allowed:
# no functions, methods, partials, operators, reduce calls, sparse matrices or references back.
ALLOWED = {
    "ObjectNode": _join_names(_ESTIMATORS, _PARTS),
    "TreeNode": frozenset({"sklearn.tree._tree.Tree"}),
    "LossNode": _join_names(_LOSSES),
    "TypeNode": _join_names(_SCALARS, {"builtins": "str int float bool", "numpy": "object_"}),
    "NdArrayNode": _join_names(_SCALARS, {"numpy": "ndarray"}),
    "DTypeNode": frozenset({"numpy.dtype"}),
    "DictNode": frozenset({"builtins.dict"}),
    "ListNode": frozenset({"builtins.list"}),
    "TupleNode": frozenset({"builtins.tuple"}),
    "SetNode": frozenset({"builtins.set"}),
    "SliceNode": frozenset({"builtins.slice"}),
    "JsonNode": frozenset({"builtins.str"}),
    "RandomGeneratorNode": frozenset({"numpy.random._generator.Generator"}),
}
TRUSTED = frozenset().union(*ALLOWED.values())
"""Every type that a stored regressor may name. It is fixed: no file and no call widens it."""


# --- the audit ------------------------------------------------------------------------------------------

Node = dict[str, Any]
Places = Iterator[tuple[Any, str]]  # nodes, each with the path that leads to it
Header = tuple[np.dtype[Any], tuple[int, ...]]
_TREE_STATE = {"max_depth", "node_count", "nodes", "values"}
_NPY_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class RefusedError(ValueError):
    """Our own refusal, whose message is complete."""


def refuse_unless(good: Any, reason: str) -> None:
    """Raise RefusedError with this reason unless all is good."""
    if not good:
        raise RefusedError(reason)


def audit(data: bytes) -> None:
    """Refuse a packed regressor that skops must not see, with RefusedError or the error of a parser."""
    _Audit(data).run()


class _Audit:
    """Reads a packed regressor as plain data and refuses whatever could mislead skops."""

    def __init__(self, data: bytes) -> None:
        # Bytes and elements of arrays: a few places may name one array, not millions.
        self._budget = 8 * len(data) + 1_000_000
        self._archive = zipfile.ZipFile(io.BytesIO(data))
        self._arrays: dict[str, Header] = {}
        members = self._archive.infolist()
        names = {member.filename for member in members}
        refuse_unless(len(names) == len(members), "the packed regressor has two members of the same name.")
        plain = all(
            member.compress_type == zipfile.ZIP_STORED and member.file_size == member.compress_size
            for member in members
        )
        refuse_unless(plain, "the packed regressor is compressed; those that localw2 writes never are.")
        size = sum(member.file_size for member in members)
        refuse_unless(size <= len(data), "the packed regressor states sizes that exceed its own.")

    def run(self) -> None:
        """Check every node."""
        schema = json.loads(self._archive.read("schema.json"))
        protocol = schema.get("protocol")
        known = type(protocol) is int and protocol >= 2
        refuse_unless(known, f"the packed regressor has skops protocol {protocol!r}; localw2 writes 2.")
        nodes: list[tuple[Any, str]] = [(schema, "")]
        while nodes:
            nodes.extend(self._children(*nodes.pop()))

    def _children(self, node: Any, where: str) -> Places:
        """The parts of a node, once the node itself has been checked."""
        loader, content = _check_type(node, where), node.get("content")
        match loader:
            case "DictNode":
                yield from self._dict(node, where)
            case "ListNode" | "TupleNode" | "SetNode":
                yield from _items(content, where)
            case "ObjectNode":
                if content is not None and content.get("content") != "null":  # "null": it has no attributes
                    is_dict = content.get("__loader__") == "DictNode" and content.get("__class__") == "dict"
                    refuse_unless(is_dict, f"the state of {where or 'the regressor'} is not a dict.")
                    yield content, where
            case "NdArrayNode":
                yield from self._ndarray(node, where)
            case "TreeNode":
                self._tree(node, where)
                yield node["__reduce__"]["args"], where
                yield content, where
            case "LossNode":
                yield from self._loss(node, where)
            case "DTypeNode":
                is_array = content.get("__loader__") == "NdArrayNode" and content.get("type") == "numpy"
                refuse_unless(is_array, f"the dtype at {where} is not stored as an array.")
                yield content, where
            case "RandomGeneratorNode":
                yield from self._generator(content, where)
            case "SliceNode":
                ends = [content[key] for key in ("start", "stop", "step")]
                whole = all(end is None or type(end) is int for end in ends)
                refuse_unless(whole, f"the slice at {where} is not made of integers.")

    def _dict(self, node: Node, where: str) -> Places:
        """Keys are text in the archive; skops converts them by calling their types."""
        kinds, content = node["key_types"], node["content"]
        typed = kinds.get("__loader__") == "ListNode" and isinstance(content, dict)
        typed = typed and all(
            kind.get("__loader__") == "TypeNode" for kind in _check_list(kinds["content"], where)
        )
        refuse_unless(typed, f"the keys of the dict at {where or 'root'} do not have plain types.")
        yield kinds, where
        yield from ((item, f"{where}.{key}" if where else key) for key, item in content.items())

    def _ndarray(self, node: Node, where: str) -> Places:
        """Numbers are stored as a file, and objects as a list of nodes."""
        if node["type"] == "numpy":
            self._array(node, where)
            return
        objects = node["type"] == "json" and node["__class__"] == "ndarray"
        refuse_unless(objects, f"the array at {where} is stored in an unknown way.")
        # With more of them numpy would make an object of every element of the arrays inside, at each level.
        flat = len(_check_list(node["shape"]["content"], where)) == 1
        refuse_unless(flat, f"the array of objects at {where} has more than one dimension.")
        yield from _items(node["content"], where)
        yield node["shape"], where

    def _array(self, node: Node, where: str) -> Header:
        """The dtype and shape of a stored array, which has exactly the bytes that they need."""
        plain = node.get("__loader__") == "NdArrayNode" and node.get("type") == "numpy"
        refuse_unless(plain and "__id__" not in node, f"there is no plain array at {where}.")
        name = node["file"]
        size = self._archive.getinfo(name).file_size
        self._spend(size)
        if name not in self._arrays:
            self._arrays[name] = _parse_npy_header(self._archive.read(name), where)
        self._spend(count_places(self._arrays[name][1]))
        return self._arrays[name]

    def _spend(self, amount: int) -> None:
        """Count bytes or elements that building will take."""
        self._budget -= amount
        refuse_unless(self._budget >= 0, "the packed regressor names the same arrays too often.")

    def _tree(self, node: Node, where: str) -> None:
        """Check the numbers by which a Tree allocates memory before it checks anything itself."""
        args, state = node["__reduce__"]["args"], node["content"]
        plain = args.get("__loader__") == "TupleNode" and state.get("__loader__") == "DictNode"
        keys = [(kind["__module__"], kind["__class__"]) for kind in state["key_types"]["content"]]
        plain = plain and keys == [("builtins", "str")] * 4 and set(state["content"]) == _TREE_STATE
        refuse_unless(
            plain and len(args["content"]) == 3, f"the tree at {where} does not have a plain state."
        )
        n_features, n_outputs = _parse_int(args["content"][0], where), _parse_int(args["content"][2], where)
        count, depth = (_parse_int(state["content"][key], where) for key in ("node_count", "max_depth"))
        dtype, shape = self._array(args["content"][1], where)
        _, nodes = self._array(state["content"]["nodes"], where)
        kind, values = self._array(state["content"]["values"], where)
        good = dtype.kind == "i" and shape == (n_outputs,) and nodes == (count,) and kind == np.float64
        good = good and values == (count, n_outputs, 1) and min(n_features, n_outputs, count) > 0 <= depth
        refuse_unless(good, f"the tree at {where} is damaged, or does not belong to a regressor.")

    def _loss(self, node: Node, where: str) -> Places:
        """A loss is built from numbers and has no state."""
        args, state = node["__reduce__"]["args"], node["content"]
        plain = args.get("__loader__") == "TupleNode" and not state.get("content") and "__id__" not in state
        plain = plain and state.get("__loader__") in ("DictNode", "TupleNode")
        plain = plain and all(
            item.get("__loader__") == "JsonNode" and type(json.loads(item["content"])) in (int, float)
            for item in _check_list(args["content"], where)
        )
        refuse_unless(plain, f"the loss at {where} is built from more than numbers.")
        yield args, where
        yield state, where

    def _generator(self, content: Node, where: str) -> Places:
        """A random generator is a PCG64 that was seeded with one number."""
        state, seeds = content["bit_generator"], content["seed_seq"]
        entropy, spawn_key = seeds["content"]["entropy"], seeds["content"]["spawn_key"]
        number = entropy.get("__loader__") == "NdArrayNode" and self._array(entropy, where)[1] == ()
        good = (number or _parse_int(entropy, where) >= 0) and not spawn_key["content"]
        good = good and state["content"]["bit_generator"]["content"] == '"PCG64"'
        # numpy takes time quadratic in pool_size.
        good = good and _parse_int(seeds["content"]["pool_size"], where) == 4
        refuse_unless(good, f"the random generator at {where} is not a plain PCG64.")
        yield state, where
        yield seeds, where


def _check_type(node: Any, where: str) -> str:
    """How a node is built, if its type may be built that way."""
    words = [node.get(key) for key in ("__loader__", "__module__", "__class__")] if type(node) is dict else []
    plain = words and "__id__" not in node and all(isinstance(word, str) for word in words)
    refuse_unless(plain, f"the regressor's part {where or 'root'} was not packed by localw2.")
    loader, module, name = (str(word) for word in words)
    module = PRESENT_MODULES.get(module, module)
    known = "." not in name and f"{module}.{name}" in ALLOWED.get(loader, ())
    refuse_unless(known, _explain_refusal(f"{module}.{name}", where))
    return loader


def _explain_refusal(name: str, where: str) -> str:
    """Why a name is refused, and what to use instead."""
    if name.startswith("numpy.random."):
        advice = "Give random_state as an integer."
    elif name.startswith(("functools.", "sklearn.preprocessing._encoders.", "sklearn.utils.")):
        advice = (
            "Encode categories with OneHotEncoder in a Pipeline, not with categorical_features; "
            "or leave base='auto', which takes categories as they are."
        )
    else:
        advice = (
            "These can be stored, alone or in a Pipeline: linear models, KernelRidge, decision trees, "
            "forests, HistGradientBoostingRegressor, and the usual scalers, encoders and imputers."
        )
    place = f" (at {where})" if where else ""
    return f"it contains {name}{place}, whose content localw2 cannot check when it reads a file. {advice}"


def _check_list(content: Any, where: str) -> list[Any]:
    """The content, if it is a list of nodes."""
    nodes = isinstance(content, list) and all(isinstance(item, dict) for item in content)
    refuse_unless(nodes, f"the list at {where or 'root'} is damaged.")
    return list(content)


def _items(content: Any, where: str) -> Places:
    """The nodes of a list."""
    return ((item, f"{where}[{i}]") for i, item in enumerate(_check_list(content, where)))


def _parse_int(node: Any, where: str) -> int:
    """The integer in a node, of at most 256 bits."""
    value: Any = (
        json.loads(node["content"]) if node["__loader__"] == "JsonNode" and "__id__" not in node else None
    )
    refuse_unless(type(value) is int and value < 1 << 256, f"there is no integer at {where}.")
    return int(value)


def _parse_npy_header(data: bytes, where: str) -> Header:
    """The dtype and shape that a .npy file states, if it has exactly the bytes that they need."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    refuse_unless(version in _NPY_READERS, f"the array at {where} has an unknown format.")
    shape, _, dtype = _NPY_READERS[version](stream)
    parts = [dtype] if dtype.fields is None else [part[0] for part in dtype.fields.values()]
    plain = all(part.kind in "biufUS" and not part.shape for part in parts)
    refuse_unless(plain, f"the array at {where} has dtype {dtype}, which is not plain numbers or text.")
    # numpy allocates by the header alone.
    full = min(shape, default=0) >= 0 and math.prod(shape) * dtype.itemsize == len(data) - stream.tell()
    full = full and dtype.itemsize > 0  # any number of elements has no bytes otherwise
    refuse_unless(full, f"the array at {where} is damaged: shape {shape} does not match its bytes.")
    return dtype, shape


def count_places(shape: tuple[int, ...]) -> int:
    """How many places a walk through an array visits: a million for shape (1000000, 0), without elements.

    >>> count_places((1000000, 0)), count_places((2, 3)), count_places(())
    (1000000, 6, 1)
    """
    return math.prod(max(size, 1) for size in shape)
