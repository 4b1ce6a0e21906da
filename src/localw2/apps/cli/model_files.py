"""Models with the names of their columns, the rows of a table as their inputs and outputs, result tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import pandas as pd
import typer

from localw2.apps.cli.config import collect_settings, keep_settings
from localw2.apps.cli.running import note, print_result, split_names
from localw2.apps.tables.tables import Table, read_table, write_table

if TYPE_CHECKING:
    from localw2._validation import Array
    from localw2.estimators.dynamics.long_tables import LongTable

REGRESSORS = ("LocalW2Regressor", "RandomCoefficientRegressor", "LocalW2MixedRegressor")
ODE, SDE, FIELD = "LocalW2ODE", "LocalW2SDE", "LocalW2FieldRegressor"
_PARTS = {ODE: ("field", "observe"), SDE: ("drift", "diffusion", "jumps")}  # functions of the user's own
_NAMES = "columns"  # the entry of a model file with the names of the columns that the model was fitted to
# The flag that names the columns in a role, and the attribute of the estimator that counts them.
_ROLES = {
    "features": ("--features", "n_features_in_"),
    "targets": ("--target", "n_outputs_"),
    "states": ("--target", "n_observed_"),
    "id": ("--id", ""),
    "time": ("--time", ""),
}


@final
@dataclass(frozen=True, eq=False)
class NamedModel:
    """A fitted estimator and the names of its columns by role; a role without names is absent."""

    estimator: Any
    path: str
    columns: dict[str, list[str]]

    def choose_columns(self, role: str, table: Table, given: str | None) -> list[str]:
        """The columns of a table in a role: those given, or those that the model was fitted to."""
        flag, attribute = _ROLES[role]
        count = getattr(self.estimator, attribute, 1)
        if role == "states" and not hasattr(self.estimator, attribute):  # all states are observed
            count = getattr(self.estimator, "n_states_", 1)
        names = split_names(given, list(table.frame)) or self.columns.get(role, [])
        if not names and role == "targets":
            raise ValueError(
                f"{self.path} does not say which column it predicts: models saved from Python do not know. "
                f"Name the column with {flag}."
            )
        if len(names) != count:
            raise ValueError(
                f"{self.path} has {count} {role}, but {len(names)} are named. Use {flag} with {count} "
                "name(s) of columns, in the order used for fitting."
            )
        return names

    def name_outputs(self) -> list[str]:
        """Names for the outputs where no column is needed."""
        count = getattr(self.estimator, "n_outputs_", 1)
        return self.columns.get("targets") or (["y"] if count == 1 else [f"y{k + 1}" for k in range(count)])


@final
@dataclass(frozen=True, eq=False)
class ModelRows:
    """The rows of a table as a model takes them: X (N, p), and y (N,), (N, d), None, or a frame.

    A frame has numbers and categories, in the names of the fit.
    """

    model: NamedModel
    table: Table
    X: Any
    y: Any
    features: list[str]
    targets: list[str]

    @property
    def number(self) -> Array:
        """The numbers of the rows in their file, from 1."""
        numbers: Array = self.table.frame.index.to_numpy() + 1
        return numbers

    def copy_columns(self, names: str | None) -> dict[str, Any]:
        """The number of each row, and the columns that a result shall carry along."""
        kept = self.table.select(split_names(names, list(self.table.frame)))
        found: dict[str, Any] = {"row": self.number}
        for name, column in kept.items():
            whole = str(column.dtype) == "Int64"  # whole numbers and missing values
            found[name] = column.to_numpy(object, na_value=None) if whole else column.to_numpy()
        return found


def history_path(model: str) -> str:
    """The file to which a fit under way writes its epochs, for the explorer to follow."""
    return f"{model}.history.jsonl"


def save_model(estimator: Any, path: str, **columns: Sequence[str]) -> None:
    """Write a model with the names of its columns by role; ``localw2.load`` reads it like any other."""
    from localw2.storage.model_file import write

    stored = estimator.to_stored()
    names = {role: list(names) for role, names in columns.items()}
    write(path, replace(stored, settings=stored.settings | {_NAMES: names}))
    Path(history_path(path)).unlink(missing_ok=True)


@final
class Absent:
    """A function that a file names but does not hold, where it is only described."""

    def __init__(self, name: str, arguments: Sequence[str] | None = None) -> None:
        self.name = name
        if arguments is not None:  # as those who look at the signature expect them
            kind = Parameter.POSITIONAL_OR_KEYWORD
            self.__signature__ = Signature([Parameter(each, kind) for each in arguments])

    def __call__(self, t: Any, y: Any = None, *noise: Any, **parameters: Any) -> Any:
        """What is unknown of a part of a stochastic equation; of any other there is nothing to call."""
        if hasattr(self, "__signature__"):
            return y * float("nan")
        raise ValueError(f"the function {self.name!r} is not there.")

    def __repr__(self) -> str:
        return f"{self.name} (a function of your own)"


def load_model(
    path: str, kinds: Sequence[str] = REGRESSORS, described: bool = False, **functions: Any
) -> NamedModel:
    """Read a model of one of these kinds, with the user's own ``functions`` of an equation that has some.

    With ``described`` functions may be absent.
    """
    from localw2.estimators.files import restore
    from localw2.storage.model_file import read

    stored = read(path)
    if stored.kind not in kinds:
        groups = {
            ODE: "Use `localw2 ode sample`.",
            SDE: "Use `localw2 sde sample`.",
            FIELD: "Fields are for Python: localw2.load(...), then sample, predict and predict_band.",
        }
        hint = groups.get(stored.kind, f"It needs a {' or '.join(kinds)}.")
        raise ValueError(f"{path} holds a {stored.kind}, which this command cannot use. {hint}")
    given = {name: value for name, value in functions.items() if value is not None}
    if stored.kind in _PARTS:
        given = _complete_functions(path, stored.kind, stored.settings, given, described)
    estimator = restore(path, stored, **given)
    columns = stored.settings.get(_NAMES) or {"features": getattr(estimator, "feature_names_in_", None)}
    known = columns.items() if isinstance(columns, dict) else ()  # files are not trusted
    named = {role: [str(name) for name in names] for role, names in known if hasattr(names, "__iter__")}
    coding = getattr(estimator, "coding_", None)
    if coding is not None and coding.framed:  # a frame had names
        named.setdefault("targets", list(coding.names))
    return NamedModel(estimator, path, named)


def _complete_functions(
    path: str, kind: str, settings: Mapping[str, Any], given: dict[str, Any], described: bool
) -> dict[str, Any]:
    """The functions of an equation: those given, numbered states, or what stands for absent ones."""
    from localw2.apps.cli.equations import States

    names = settings.get("functions")
    names = names if isinstance(names, dict) else {}  # files are not trusted
    columns = settings.get(_NAMES)
    numbers = columns.get("observe") if isinstance(columns, dict) else None
    if "observe" not in given and isinstance(numbers, list) and all(str(k).isdecimal() for k in numbers):
        given = given | {"observe": States([int(k) for k in numbers])}
    for name in _PARTS[kind]:
        if name in given or not isinstance(names.get(name), dict):
            continue
        label = str(names[name].get("function"))[:100]
        if not described:
            raise ValueError(
                f"{path} was fitted with your own function {label!r}, which a model file does not hold: no "
                f"code is ever read from it. Name it again: --{name} FILE.py:{label}."
            )
        given = given | {name: Absent(label, _guess_arguments(name, settings) if kind == SDE else None)}
    return given


def _guess_arguments(part: str, settings: Mapping[str, Any]) -> list[str]:
    """Arguments of an absent part of a stochastic equation: all parameters that the file names."""
    laws = settings.get("laws")
    names = [name for name in laws if str(name).isidentifier()] if isinstance(laws, dict) else []
    return ["t", "y", *(["z"] if part == "jumps" else []), *(n for n in names if n not in ("t", "y", "z"))]


def read_long_table(
    model: NamedModel,
    table: Table,
    identity: str | None = None,
    time: str | None = None,
    states: str | None = None,
) -> LongTable:
    """The trajectories of a table, in the columns given or in those that an equation was fitted to.

    All rows are one path if a stochastic equation was fitted so.
    """
    from localw2.estimators.dynamics.long_tables import Columns

    if type(model.estimator).__name__ == SDE:
        return _read_paths(model, table, identity, time, states)
    columns = getattr(model.estimator, "table_columns_", None)
    if columns is None or identity is not None:
        (who,) = model.choose_columns("id", table, identity)
    else:
        who = columns.subject
    if columns is None or time is not None:
        (when,) = model.choose_columns("time", table, time)
    else:
        when = columns.time
    if columns is None or states is not None:
        observed = tuple(model.choose_columns("states", table, states))
    else:
        observed = columns.observed
    if columns is None:
        columns = Columns.of(who, when, observed)
    return replace(columns, subject=who, time=when, observed=observed).read(table.frame, table.source)


def _read_paths(
    model: NamedModel, table: Table, identity: str | None, time: str | None, states: str | None
) -> LongTable:
    from localw2.estimators.dynamics.processes import read_long_table as read_paths

    # Of a model from Python nothing is known: without --id its rows are one path.
    known = identity is not None or bool(model.columns.get("id"))
    who = model.choose_columns("id", table, identity)[0] if known else None
    (when,) = model.choose_columns("time", table, time)
    observed = model.choose_columns("states", table, states)
    return read_paths(table.frame, who, when, observed, table.source)


def select_rows(
    model: NamedModel,
    data: str | Table,
    decimal: str,
    features: str | None,
    target: str | None = None,
    drop_missing: bool = False,
    observed: bool = True,
) -> ModelRows:
    """Select the inputs and, if ``observed``, the outputs of a model from a table or from a file.

    The estimator itself reads categories, dates and missing values. Only what must be a number is checked
    here, because here an unusable cell has a row. Columns that the fit left out need not be there.
    """
    columns = getattr(model.estimator, "columns_", None)
    # A column that was text stays text, even if all of its cells look like numbers here.
    known = split_names(features) or model.columns.get("features", [])
    coded = [] if columns is None else [columns.used[place] for place in columns.categorical]
    text = [known[j] for j in coded] if len(known) == model.estimator.n_features_in_ else []
    coding = getattr(model.estimator, "coding_", None)
    if coding is not None and observed:
        told = split_names(target) or model.columns.get("targets", [])
        words = [j for j, found in coding.classes.items() if all(isinstance(word, str) for word in found)]
        text += [told[j] for j in words] if len(told) == len(coding.names) else []
    table = read_table(data, decimal, text) if isinstance(data, str) else data
    inputs = model.choose_columns("features", table, features)
    outputs = model.choose_columns("targets", table, target) if observed else []
    used = inputs if columns is None else [inputs[j] for j in columns.used]
    if drop_missing:
        needed = used if not observed or columns is None else []
        table = drop_incomplete(table, [*needed, *outputs])
    table.select(used)
    others = [] if columns is None else [*columns.categories, *columns.dates, *columns.durations]
    table.features([name for place, name in enumerate(used) if place not in others], numeric=True)
    y = read_outputs(table, outputs, coding) if observed else None
    if coding is not None and y is not None:
        scored = find_known(coding, y, table.source)
        table, y = replace(table, frame=table.frame[scored]), y[scored]
    fitted = getattr(model.estimator, "feature_names_in_", None)
    if fitted is None or not hasattr(model.estimator, "columns_"):  # arrays, or a model that takes no gaps
        X = table.numbers(inputs, missing=hasattr(model.estimator, "columns_"))
        X = X if fitted is None else pd.DataFrame(X, columns=list(fitted))
    else:
        X = table.frame.reindex(columns=inputs).set_axis(list(fitted), axis=1)
    return ModelRows(model, table, X, y, inputs, outputs)


def read_outputs(table: Table, names: Sequence[str], coding: Any = None) -> Any:
    """The columns to predict: (N,), or (N, d) if there are several; a frame as a ``coding`` takes it."""
    if coding is not None:
        found = table.outcomes(names, {names[j] for j in coding.classes})
        return found.set_axis(list(coding.names), axis=1)
    y = table.numbers(names)
    return y[:, 0] if len(names) == 1 else y


def find_known(coding: Any, y: Any, source: str) -> Array:
    """The rows (N,) whose classes the fit has seen, with a note on the others: they cannot be scored."""
    unknown: Array = coding.find_unknown(y)
    if unknown.any():
        note(
            f"{unknown.sum()} of {len(y)} rows of {source} have a class that the fit has not seen and are "
            "left out, which flatters the scores."
        )
    if unknown.all():
        raise ValueError(
            f"no row of {source} has classes that the fit has seen. Is it another table, or has nearly every "
            "row a class of its own?"
        )
    return ~unknown


def drop_incomplete(table: Table, names: Sequence[str]) -> Table:
    """Drop the rows with a missing value in any of these columns; one without any value does not count."""
    gaps = table.select(names).dropna(axis=1, how="all").isna()
    missing = gaps.any(axis=1)
    if missing.any():
        lacking = [str(name) for name in gaps.columns[gaps.any()]]
        note(f"{missing.sum()} of {len(missing)} rows have missing values in {', '.join(lacking)}: left out.")
    if missing.all():
        raise ValueError(f"every row of {table.source} has a missing value in {', '.join(names)}.")
    return replace(table, frame=table.frame[~missing])


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
    found: dict[str, Any] = {"rows": len(next(iter(columns.values()))), "columns": list(columns)}
    if out != "-" or not as_json:
        write_table(out, columns)
    if out != "-":
        found |= {"out": out, "settings": keep_settings(context, out, found | {"sha256": sha256})}
        print_result(found, f"{out}: {found['rows']} rows", as_json)
    elif as_json:
        print_result(found | {"columns": columns, "settings": collect_settings(context)}, "", True)
