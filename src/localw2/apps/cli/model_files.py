"""Models with the names of their columns, the rows of a table as their inputs and outputs, result tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import pandas as pd
import typer

from localw2._validation import Array
from localw2.apps.cli.config import collect_settings, keep_settings
from localw2.apps.cli.running import note, print_result, split_names
from localw2.apps.tables.tables import Table, read_table, write_table

REGRESSORS = ("LocalW2Regressor", "RandomCoefficientRegressor")
ODE = "LocalW2ODE"
_NAMES = "columns"  # the entry of a model file with the names of the columns that the model was fitted to


@final
@dataclass(frozen=True)
class NamedModel:
    """A fitted estimator and the names of its columns by role; a role without names is absent."""

    estimator: Any
    path: str
    columns: dict[str, list[str]]

    @property
    def kind(self) -> str:
        """The class of the estimator."""
        return type(self.estimator).__name__

    @property
    def n_outputs(self) -> int:
        """The number of outputs of a regressor."""
        return int(getattr(self.estimator, "n_outputs_", 1))

    def choose_features(self, given: list[str]) -> list[str]:
        """The columns used as inputs: those given, or those that the model was fitted to."""
        return self._choose(given, "features", int(self.estimator.n_features_in_), "--features")

    def choose_targets(self, given: list[str]) -> list[str]:
        """The columns with the outputs: those given, or those that the model was fitted to."""
        return self._choose(given, "targets", self.n_outputs, "--target")

    def choose_trajectory_columns(self, given: Mapping[str, list[str]]) -> tuple[str, str, list[str]]:
        """The columns with the trajectory, the time and the states, for an ODE."""
        (identity,) = self._choose(given["id"], "id", 1, "--id")
        (time,) = self._choose(given["time"], "time", 1, "--time")
        count = int(self.estimator.n_states_)
        return identity, time, self._choose(given["states"], "states", count, "--target")

    def target_names(self) -> list[str]:
        """Names for the outputs where no column is needed."""
        numbered = ["y"] if self.n_outputs == 1 else [f"y{k}" for k in range(1, self.n_outputs + 1)]
        return self.columns.get("targets") or numbered

    def read_inputs(self, table: Table, names: Sequence[str]) -> Any:
        """These columns of a table in the form in which the estimator was fitted: a frame or an array.

        Only the estimator knows about categorical columns and missing values. One that was fitted to
        numbers alone gets numbers, so that an unusable cell is reported with its row.
        """
        from localw2.judging.sampler import has_table

        X = table.features(names) if has_table(self.estimator) else table.numbers(names)
        fitted = getattr(self.estimator, "feature_names_in_", None)
        return X if fitted is None else pd.DataFrame(X).set_axis(list(fitted), axis=1)

    def _choose(self, given: list[str], role: str, count: int, flag: str) -> list[str]:
        names = given or self.columns.get(role, [])
        if not names:
            raise ValueError(
                f"{self.path} does not contain the names of its {role}. Name the columns of the table, in "
                f"the order used for fitting: {flag} with {count} name(s)."
            )
        if len(names) != count:
            raise ValueError(f"{flag} has {len(names)} name(s), but {self.path} has {count} {role}.")
        return names


@final
@dataclass(frozen=True, eq=False)
class ModelRows:
    """The rows of a table as a model takes them: X (N, p), and y (N,), (N, d) or None."""

    X: Any
    y: Array | None
    table: Table
    features: list[str]
    targets: list[str]

    @property
    def outputs(self) -> Array:
        """The observed y."""
        assert self.y is not None
        return self.y

    @property
    def number(self) -> Array:
        """The numbers of the rows in their file, from 1."""
        return number_rows(self.table)


def number_rows(table: Table) -> Array:
    """The numbers of a table's rows in the file, from 1."""
    numbers: Array = table.frame.index.to_numpy() + 1
    return numbers


def save_model(estimator: Any, path: str, **columns: Sequence[str]) -> None:
    """Write a model with the names of its columns by role; ``localw2.load`` reads it like any other."""
    from localw2.storage.model_file import write

    stored = estimator.to_stored()
    write(
        path, replace(stored, settings=stored.settings | {_NAMES: {k: list(v) for k, v in columns.items()}})
    )


def load_model(path: str, kinds: Sequence[str] = REGRESSORS) -> NamedModel:
    """Read a model of one of these kinds."""
    import localw2
    from localw2.storage.model_file import read

    stored = read(path)
    if stored.kind not in kinds:
        hint = "Use `localw2 ode sample`." if stored.kind == ODE else f"It needs a {' or '.join(kinds)}."
        raise ValueError(f"{path} holds a {stored.kind}, which this command cannot use. {hint}")
    estimator = getattr(localw2, stored.kind).from_stored(stored)
    columns = _check_columns(stored.settings.get(_NAMES))
    if not columns and (names := getattr(estimator, "feature_names_in_", None)) is not None:
        columns = {"features": [str(name) for name in names]}
    return NamedModel(estimator, path, columns)


def _check_columns(found: Any) -> dict[str, list[str]]:
    """The names of columns by role; files are not trusted."""
    if not isinstance(found, dict):
        return {}
    return {
        str(role): names
        for role, names in found.items()
        if isinstance(names, list) and all(isinstance(name, str) for name in names)
    }


def select_rows(
    model: NamedModel,
    table: Table,
    features: str | None,
    target: str | None = None,
    drop_missing: bool = False,
    observed: bool = True,
) -> ModelRows:
    """Select the inputs and, if ``observed``, the outputs of a model from a table."""
    inputs = model.choose_features(split_names(features, table.names))
    outputs = model.choose_targets(split_names(target, table.names)) if observed else []
    if drop_missing:
        table = drop_incomplete(table, [*inputs, *outputs])
    X = model.read_inputs(table, inputs)
    y = table.numbers(outputs) if observed else None
    return ModelRows(X, y[:, 0] if y is not None and y.shape[1] == 1 else y, table, inputs, outputs)


def drop_incomplete(table: Table, names: Sequence[str]) -> Table:
    """Drop the rows with a missing value in any of these columns."""
    missing = pd.concat([table.column(name) for name in names], axis=1).isna().any(axis=1)
    if missing.any():
        note(f"{missing.sum()} of {table.n_rows} rows of {table.source} have missing values and are dropped.")
    if table.n_rows and missing.all():
        raise ValueError(f"every row of {table.source} has a missing value in {', '.join(names)}.")
    return replace(table, frame=table.frame[~missing])


def read_data(path: str, decimal: Any) -> Table:
    """Read the table given to a command."""
    return read_table(path, decimal=getattr(decimal, "value", decimal))


def parse_delta(text: str) -> Any:
    """Parse ``--delta``: "auto", a radius (or inf), or ``nearest:50`` for that many nearest rows."""
    from localw2.balls.neighborhoods import Nearest

    if text == "auto":
        return text
    try:
        return Nearest(int(text.removeprefix("nearest:"))) if text.startswith("nearest:") else float(text)
    except ValueError:
        raise typer.BadParameter(f"--delta {text!r} is neither auto, a radius nor nearest:K.") from None


def write_result(
    context: typer.Context, columns: Mapping[str, Any], out: str, as_json: bool, sha256: str | None = None
) -> None:
    """Write columns to a file, with the settings beside it, or to standard output.

    ``sha256`` is the hash of the table they were computed from. With ``--json`` a file's name is printed.
    """
    n = len(next(iter(columns.values())))
    if out != "-":
        write_table(out, columns)
        settings = keep_settings(context, out, {"rows": n, "columns": list(columns), "sha256": sha256})
        found = {"out": out, "settings": settings, "rows": n, "columns": list(columns)}
        print_result(found, f"{out}: {n} rows", as_json)
    elif as_json:
        found = {"rows": n, "columns": columns, "settings": collect_settings(context)}
        print_result(found, "", True)
    else:
        write_table("-", columns)
