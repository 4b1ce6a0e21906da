"""A scikit-learn regressor as bytes and back, by skops but without trusting what it is given."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from localw2.storage.audit import PRESENT_MODULES, STORED_MODULES, TRUSTED, RefusedError, audit
from localw2.storage.checks import check_content, check_is_regressor


def needed(module: str) -> Any:
    """The module, imported when it is first used; ImportError says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ImportError(f"storing models needs {package}: pip install safetensors skops") from error


def pack_regressor(estimator: Any) -> bytes:
    """A scikit-learn regressor as bytes that ``unpack_regressor`` gives back; ValueError if it cannot.

    Packing twice gives the same bytes. An object held in two places comes back as two equal ones.

    >>> from sklearn.linear_model import LinearRegression
    >>> line = LinearRegression().fit([[0.0], [1.0]], [1.0, 3.0])
    >>> unpack_regressor(pack_regressor(line)).predict([[2.0]])
    array([5.])
    """
    skops = needed("skops.io")
    check_is_regressor(estimator)
    name = type(estimator).__name__
    try:
        data = _rewritten(skops.dumps(estimator), STORED_MODULES)
    except Exception as error:
        raise ValueError(f"{name} cannot be stored without pickle: {error}") from error
    try:
        unpack_regressor(data)
    except ValueError as error:
        raise ValueError(f"{name} cannot be stored: {error}") from error
    return data


def unpack_regressor(data: bytes) -> Any:
    """The regressor that ``pack_regressor`` packed; ValueError for anything else, before any of it is used.

    The bytes may come from an enemy: only types in ``TRUSTED`` are built, and indices that compiled code
    would follow blindly are checked.
    """
    skops = needed("skops.io")
    if not isinstance(data, bytes | bytearray):
        raise ValueError(f"a packed regressor is bytes, not {type(data).__name__}.")
    data = bytes(data)
    try:
        audit(data)
        estimator = skops.loads(_rewritten(data, PRESENT_MODULES), trusted=sorted(TRUSTED))
        check_is_regressor(estimator)
        check_content(estimator)
    except RefusedError as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        raise ValueError(
            "the regressor is damaged, or from another version of scikit-learn: "
            f"{type(error).__name__}: {error}"
        ) from error
    return estimator


def check_storable(estimator: Any) -> None:
    """Raise ValueError if an unfitted regressor could not be stored once it is fitted.

    A small copy is fitted on made-up rows and packed; where it cannot be fitted on those (it may want
    named columns), the unfitted regressor is packed instead, which finds foreign classes and functions.

    >>> from sklearn.neighbors import KNeighborsRegressor
    >>> check_storable(KNeighborsRegressor(algorithm="brute"))
    >>> check_storable(KNeighborsRegressor())
    Traceback (most recent call last):
    ...
    ValueError: KNeighborsRegressor cannot be stored: ... Use algorithm="brute".
    """
    from sklearn.base import clone

    needed("skops.io")
    check_is_regressor(estimator)
    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 2.0, size=(40, 3))
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            trial = _shrink(clone(estimator)).fit(x, x.sum(axis=1) + rng.uniform(size=40))
    except Exception:
        trial = estimator
    pack_regressor(trial)


def _shrink(estimator: Any) -> Any:
    """The same estimator with less work to do, in this process, and with random numbers of its own."""
    cheaper: dict[str, Any] = {}
    for name, value in estimator.get_params(deep=True).items():
        last = name.rpartition("__")[2]
        if last in ("n_estimators", "max_iter") and isinstance(value, int):
            cheaper[name] = min(value, 3)
        elif last == "random_state" and value is None:
            cheaper[name] = 0
        elif last == "n_jobs":
            cheaper[name] = None
    return estimator.set_params(**cheaper)


def _rewritten(data: bytes, modules: dict[str, str]) -> bytes:
    """A skops archive with these modules renamed, and without addresses, times and references back."""
    members: dict[str, str] = {}

    def clean(value: Any) -> Any:
        if isinstance(value, list):
            return [clean(item) for item in value]
        if not isinstance(value, dict):
            return value
        node = {key: clean(item) for key, item in value.items()}
        if isinstance(value.get("__loader__"), str):
            node.pop("__id__", None)
            if node.get("__module__") in modules:
                node["__module__"] = modules[node["__module__"]]
            if isinstance(value.get("file"), str):
                suffix = Path(value["file"]).suffix
                node["file"] = members.setdefault(value["file"], f"{len(members)}{suffix}")
        return node

    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        schema = json.dumps(clean(json.loads(old.read("schema.json"))), separators=(",", ":"))
        new.writestr(zipfile.ZipInfo("schema.json"), schema)  # ZipInfo: a fixed date
        for name, short in members.items():
            new.writestr(zipfile.ZipInfo(short), old.read(name))
    return buffer.getvalue()
