"""Fitted estimators and random maps to and from one file each, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from localw2.estimators.stored_maps import KIND, restore_map, store_map
from localw2.estimators.stored_values import check_fits_together
from localw2.models.base import RandomMap
from localw2.storage.model_file import Stored, read, write

# Where each kind lives; it is imported when a file has it.
_KINDS = {
    "LocalW2Regressor": "regression.regressor",
    "LocalW2FieldRegressor": "fields.regressor",
    "LocalW2MixedRegressor": "mixed.regressor",
    "RandomCoefficientRegressor": "coefficients.regressor",
    "LocalW2ODE": "dynamics.ode",
    "LocalW2SDE": "dynamics.sde",
}
# The functions of the user's own that each kind may ask for.
_FUNCTIONS = {"LocalW2ODE": {"field", "observe"}, "LocalW2SDE": {"drift", "diffusion", "jumps"}}


def save(model: Any, path: Any) -> None:
    """Write a fitted estimator or a random map to one file, atomically: an old file stays until it is there.

    Of a ``RandomMap`` the file holds the state dict, the name of the class and the arguments that made it, if
    these are plain values that the model keeps as attributes of the same names, as built-in ones do.

    >>> import tempfile, pathlib, numpy as np
    >>> from localw2 import RandomCoefficientRegressor
    >>> x = np.linspace(0, 1, 50)[:, None]
    >>> model = RandomCoefficientRegressor(method="ml").fit(x, x[:, 0] * np.linspace(1, 2, 50))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, pathlib.Path(folder) / "model.localw2")
    ...     loaded = load(pathlib.Path(folder) / "model.localw2")
    >>> bool((loaded.predict(x) == model.predict(x)).all())
    True
    """
    if isinstance(model, RandomMap):
        write(path, store_map(model))
        return
    name = type(model).__name__
    if name not in _KINDS or not hasattr(model, "to_stored"):
        inside = " Save its model: save(fit.model, path)." if hasattr(model, "model") else ""
        raise ValueError(
            f"{name} is not a model of localw2; save takes {', '.join(_KINDS)} and any RandomMap.{inside}"
        )
    write(path, model.to_stored())


def load(path: Any, *, classes: Mapping[str, Any] | None = None, **functions: Any) -> Any:
    """Read a model that ``save`` wrote. Nothing in the file is ever run.

    An ODE fitted with your own function asks for it: ``load(path, field=logistic)``. A random map of your own
    asks for its class: ``load(path, classes={"Ride": Ride})``, which is then made with the plain arguments in
    the file, or ``classes={"Ride": Ride(...)}``, a model of it that you have made yourself.
    """
    return restore(path, read(path), classes=classes, **functions)


def restore(path: Any, stored: Stored, *, classes: Any = None, **functions: Any) -> Any:
    """The model in what was read from ``path``, which every message names."""
    if stored.kind not in {*_KINDS, KIND}:
        raise ValueError(
            f"{path} holds a {stored.kind}, which is not a model; known are {', '.join([*_KINDS, KIND])}."
        )
    known = {"classes"} if stored.kind == KIND else _FUNCTIONS.get(stored.kind, set())
    given = functions if classes is None else functions | {"classes": classes}
    if unknown := sorted(set(given) - known):
        raise ValueError(f"a stored {stored.kind} does not take {', '.join(unknown)}; give the path alone.")
    try:
        if stored.kind == KIND:
            with check_fits_together(stored, KIND):
                return restore_map(stored, **given)
        kind = getattr(import_module(f"localw2.estimators.{_KINDS[stored.kind]}"), stored.kind)
        return kind.from_stored(stored, **given)
    except ValueError as error:
        reason = str(error) if len(str(error)) <= 1000 else f"{str(error)[:1000]}..."
        raise ValueError(f"{path} cannot be used: {reason}") from error
