"""A scikit-learn regressor as bytes and back, through skops but without trusting the bytes."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from localw2.storage.audit import PRESENT_MODULES, STORED_MODULES, TRUSTED, RefusedError, audit
from localw2.storage.checks import check_content, check_is_regressor


def pack_regressor(estimator: Any) -> bytes:
    """A scikit-learn regressor as bytes that ``unpack_regressor`` reads; ValueError if that is impossible.

    Packing twice gives the same bytes. An object that is referenced twice comes back as two equal objects.

    >>> from sklearn.linear_model import LinearRegression
    >>> line = LinearRegression().fit([[0.0], [1.0]], [1.0, 3.0])
    >>> unpack_regressor(pack_regressor(line)).predict([[2.0]])
    array([5.])
    """
    from skops.io import dumps

    check_is_regressor(estimator)
    name = type(estimator).__name__
    try:
        data = _normalize(dumps(estimator), STORED_MODULES)
    except Exception as error:
        raise ValueError(f"{name} cannot be stored without pickle: {error}") from error
    try:
        unpack_regressor(data)
    except ValueError as error:
        raise ValueError(f"{name} cannot be stored: {error}") from error
    return data


def unpack_regressor(data: bytes) -> Any:
    """The regressor that ``pack_regressor`` packed; ValueError for anything else, before any of it is used.

    The bytes may come from an attacker: only types in ``TRUSTED`` are built, and every index that compiled
    code would follow without a bounds check is checked.
    """
    from skops.io import loads

    if not isinstance(data, bytes | bytearray):
        raise ValueError(f"a packed regressor is bytes, not {type(data).__name__}.")
    data = bytes(data)
    try:
        audit(data)
        estimator = loads(_normalize(data, PRESENT_MODULES), trusted=sorted(TRUSTED))
        check_is_regressor(estimator)
        check_content(estimator)
    except RefusedError as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        raise ValueError(
            "the regressor is damaged, or was written with an incompatible version of scikit-learn: "
            f"{type(error).__name__}: {error}"
        ) from error
    return estimator


def check_storable(estimator: Any) -> None:
    """Raise ValueError if an unfitted regressor could not be stored once it is fitted.

    The regressor itself is packed first, which finds classes and functions that cannot be stored; then a
    small copy is fitted on made-up rows and packed. A copy that cannot be fitted on those is not an error:
    it may need named columns.

    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.neighbors import KNeighborsRegressor
    >>> check_storable(Ridge())
    >>> check_storable(KNeighborsRegressor())
    Traceback (most recent call last):
    ...
    ValueError: KNeighborsRegressor cannot be stored: it contains ...
    """
    pack_regressor(estimator)
    trial = _fit_trial(estimator)
    if trial is not None:
        pack_regressor(trial)


def _fit_trial(estimator: Any) -> Any:
    """A small copy, fitted on rows with one output or with two; None if both fail."""
    from sklearn.base import clone

    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 2.0, size=(40, 3))
    y = x.sum(axis=1) + rng.uniform(size=40)
    for target in (y, np.column_stack([y, y])):
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return _shrink(clone(estimator)).fit(x, target)
        except Exception:  # any code of the user's may run here
            continue
    return None


def _shrink(estimator: Any) -> Any:
    """The same estimator with less work to do, in this process, and with a seed of its own."""
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


def _normalize(data: bytes, modules: dict[str, str]) -> bytes:
    """A skops archive with these modules renamed, and without addresses, dates and references back."""
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
