"""Fitted estimators to and from one file each, without pickle."""

from __future__ import annotations

from typing import Any

from localw2.estimators.coefficients.regressor import RandomCoefficientRegressor
from localw2.estimators.dynamics.ode import LocalW2ODE
from localw2.estimators.regression.regressor import LocalW2Regressor
from localw2.storage.model_file import Stored, read, write

_KINDS: dict[str, Any] = {c.__name__: c for c in (LocalW2Regressor, RandomCoefficientRegressor, LocalW2ODE)}


def save(estimator: Any, path: Any) -> None:
    """Write a fitted estimator to one file, atomically: an old file stays whole until the new one is.

    >>> import tempfile, pathlib, numpy as np
    >>> x = np.linspace(0, 1, 50)[:, None]
    >>> model = RandomCoefficientRegressor(method="ml").fit(x, x[:, 0] * np.linspace(1, 2, 50))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, pathlib.Path(folder) / "model.localw2")
    ...     loaded = load(pathlib.Path(folder) / "model.localw2")
    >>> bool((loaded.predict(x) == model.predict(x)).all())
    True
    """
    if type(estimator).__name__ not in _KINDS or not hasattr(estimator, "to_stored"):
        raise ValueError(
            f"{type(estimator).__name__} is not an estimator of localw2; save takes {', '.join(_KINDS)}."
        )
    write(path, estimator.to_stored())


def load(path: Any, **functions: Any) -> Any:
    """Read an estimator that ``save`` wrote. Nothing in the file is ever run.

    An ODE fitted with your own function asks for it: ``load(path, field=logistic)``.
    """
    return restore(path, read(path), **functions)


def restore(path: Any, stored: Stored, **functions: Any) -> Any:
    """The estimator in what was read from ``path``, which every message names."""
    if stored.kind not in _KINDS:
        raise ValueError(
            f"{path} holds a {stored.kind}, which is not an estimator; known are {', '.join(_KINDS)}."
        )
    known = ("field", "observe") if stored.kind == "LocalW2ODE" else ()
    if unknown := sorted(set(functions) - set(known)):
        raise ValueError(f"a stored {stored.kind} does not take {', '.join(unknown)}; give the path alone.")
    try:
        return _KINDS[stored.kind].from_stored(stored, **functions)
    except ValueError as error:
        reason = str(error) if len(str(error)) <= 1000 else f"{str(error)[:1000]}..."
        raise ValueError(f"{path} cannot be used: {reason}") from error
