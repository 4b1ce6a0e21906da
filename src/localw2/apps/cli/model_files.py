"""Models with the names of the columns they were fitted to, and tables as their inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import typer

from localw2.apps.cli.running import listed, note
from localw2.apps.tables.csv import Array
from localw2.apps.tables.tables import Table, read_table

REGRESSORS = ("LocalW2Regressor", "RandomCoefficientRegressor")
ODE = "LocalW2ODE"
_NAMES = "columns"  # the entry of a model file that names the columns of the table it was fitted to


@final
@dataclass(frozen=True)
class NamedModel:
    """A fitted estimator and the columns of its table by role; roles are empty where a file has no names."""

    estimator: Any
    path: str
    columns: dict[str, list[str]]

    @property
    def kind(self) -> str:
        """The class of the estimator."""
        return type(self.estimator).__name__

    @property
    def n_outputs(self) -> int:
        """How many outputs a regressor has."""
        return int(getattr(self.estimator, "n_outputs_", 1))

    def features(self, given: list[str]) -> list[str]:
        """The columns that are its inputs: those given, or those it was fitted to."""
        return self._named(given, "features", int(self.estimator.n_features_in_), "--features")

    def targets(self, given: list[str]) -> list[str]:
        """The columns that are its outputs: those given, or those it was fitted to."""
        return self._named(given, "targets", self.n_outputs, "--target")

    def trajectory_columns(self, given: dict[str, list[str]]) -> tuple[str, str, list[str]]:
        """Whose, when and the states: the columns given, or those that an ode was fitted to."""
        (identity,) = self._named(given["id"], "id", 1, "--id")
        (time,) = self._named(given["time"], "time", 1, "--time")
        return (
            identity,
            time,
            self._named(given["states"], "states", int(self.estimator.n_states_), "--target"),
        )

    def target_names(self) -> list[str]:
        """What to call its outputs where no column is needed."""
        plain = ["y"] if self.n_outputs == 1 else [f"y{k}" for k in range(1, self.n_outputs + 1)]
        return self.columns.get("targets") or plain

    def _named(self, given: list[str], role: str, count: int, flag: str) -> list[str]:
        names = given or self.columns.get(role, [])
        if not names:
            raise ValueError(
                f"{self.path} was fitted without names of its {role}. Say which columns of the table they "
                f"are, in the order of the fit: {flag} with {count} name(s)."
            )
        if len(names) != count:
            raise ValueError(f"{flag} names {len(names)} column(s), but {self.path} has {count} {role}.")
        return names


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a table as a model takes them: X (N, p), y (N,), (N, d) or None, and their numbers."""

    X: Array
    y: Array | None
    number: Array
    table: Table
    features: list[str]
    targets: list[str]

    @property
    def outputs(self) -> Array:
        """The observed y."""
        assert self.y is not None
        return self.y


def save_model(estimator: Any, path: str, **columns: Sequence[str]) -> None:
    """Write a model with the names of the columns it was fitted to; ``localw2.load`` reads it as any."""
    from localw2.storage.model_file import write

    stored = estimator.to_stored()
    write(
        path, replace(stored, settings=stored.settings | {_NAMES: {k: list(v) for k, v in columns.items()}})
    )


def load_model(path: str, kinds: Sequence[str] = REGRESSORS) -> NamedModel:
    """Read a model of these kinds."""
    import localw2
    from localw2.storage.model_file import read

    stored = read(path)
    if stored.kind not in kinds:
        hint = "Use `localw2 ode sample`." if stored.kind == ODE else f"It takes a {' or '.join(kinds)}."
        raise ValueError(f"{path} holds a {stored.kind}, which this command cannot use. {hint}")
    estimator = getattr(localw2, stored.kind).from_stored(stored)
    columns = _checked_names(stored.settings.get(_NAMES))
    if not columns and (names := getattr(estimator, "feature_names_in_", None)) is not None:
        columns = {"features": [str(name) for name in names]}
    if hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_  # columns are put in order by name here; arrays are then as good
    return NamedModel(estimator, path, columns)


def _checked_names(found: Any) -> dict[str, list[str]]:
    """Names of columns by role; a file is not trusted."""
    if not isinstance(found, dict):
        return {}
    return {
        str(role): names
        for role, names in found.items()
        if isinstance(names, list) and all(isinstance(name, str) for name in names)
    }


def rows_for(
    model: NamedModel,
    table: Table,
    features: str | None,
    target: str | None = None,
    drop_missing: bool = False,
    observed: bool = True,
) -> Rows:
    """The inputs, and with ``observed`` the outputs, that a table has for a model."""
    inputs = model.features(listed(features, table.names))
    outputs = model.targets(listed(target, table.names)) if observed else []
    table, number = used_rows(table, [*inputs, *outputs], drop_missing)
    X = table.numbers(inputs)
    y = table.numbers(outputs) if observed else None
    if y is not None and y.shape[1] == 1 and np.ndim(model.estimator.predict(X[:1])) == 1:
        y = y[:, 0]
    return Rows(X, y, number, table, inputs, outputs)


def used_rows(table: Table, names: Sequence[str], drop_missing: bool) -> tuple[Table, Array]:
    """The rows to use, and their numbers (from 1) in the file."""
    number = np.arange(1, table.n_rows + 1)
    if not drop_missing:
        return table, number
    whole = table.complete(names)
    if not whole.all():
        note(
            f"{(~whole).sum()} of {table.n_rows} rows of {table.source} have missing values and are left out."
        )
    if table.n_rows and not whole.any():
        raise ValueError(f"every row of {table.source} has a missing value in {', '.join(names)}.")
    return table.rows(whole), number[whole]


def read_data(path: str, decimal: Any) -> Table:
    """Read the table that a command was given."""
    return read_table(path, decimal=getattr(decimal, "value", decimal))


def history_path(model: str) -> str:
    """Where a fit under way writes its epochs, for the explorer to follow."""
    return f"{model}.history.jsonl"


def ball_radius(text: str) -> Any:
    """What ``--delta`` says: "auto", a radius (also inf), or ``nearest:50`` for that many nearest rows."""
    from localw2.balls.ragged import Nearest

    if text == "auto":
        return text
    try:
        return Nearest(int(text.removeprefix("nearest:"))) if text.startswith("nearest:") else float(text)
    except ValueError:
        raise typer.BadParameter(f"--delta {text!r} is neither auto, a radius nor nearest:K.") from None
