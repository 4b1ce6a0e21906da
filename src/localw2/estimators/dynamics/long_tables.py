"""Long tables: a row for each observation or dose of a subject, as people keep them, read for a fit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from localw2._validation import Array, as_array, brief, check_number
from localw2._wording import suggest

# Cells that say "nothing here", in any case: a point stands for it in the tables of NONMEM.
MISSING = frozenset({"", ".", "na", "n/a", "nan", "null", "none", "<na>", "nat"})
# What a row is, in a column of events (EVID): others restart a subject, which no trajectory can.
OBSERVATION, DOSE, OTHER = 0, 1, 2
# A common grid of times, with missing observations, is used while it has at most this many times as many
# entries as the median trajectory.
LARGEST_GRID = 2.0


@final
@dataclass(frozen=True)
class Columns:
    """What the columns of a long table mean: see ``LongTable.of``, whose arguments these are."""

    subject: str
    time: str
    observed: tuple[str, ...] = ()
    quantity: str | None = None
    event: str | None = None
    dose: str | None = None
    dose_state: int | str = 0
    duration: float | str | None = None
    dose_time: float | str | None = None
    covariates: Mapping[str, str] | None = None
    inputs: Mapping[str, str] | None = None
    y0: tuple[str, ...] | tuple[float, ...] | None = None

    @classmethod
    def of(
        cls,
        subject: str,
        time: str,
        observed: Any = (),
        quantity: str | None = None,
        event: str | None = None,
        dose: str | None = None,
        dose_state: Any = 0,
        duration: Any = None,
        dose_time: Any = None,
        covariates: Any = None,
        inputs: Any = None,
        y0: Any = None,
    ) -> Columns:
        """Check what can be checked without the table."""
        for role, name in (
            ("subject", subject),
            ("time", time),
            ("quantity", quantity),
            ("event", event),
            ("dose", dose),
        ):
            if not (isinstance(name, str) or (name is None and role not in ("subject", "time"))):
                raise ValueError(f"{role}={name!r} must be the name of a column.")
        columns = (observed,) if isinstance(observed, str) else tuple(observed)
        if wrong := [name for name in columns if not isinstance(name, str)]:
            raise ValueError(f"observed: {wrong[0]!r} must be the name of a column.")
        if quantity is not None and len(columns) != 1:
            raise ValueError(
                f"quantity={quantity!r} says which quantity the one column of observations holds, but "
                f"observed has {len(columns)} columns; name one."
            )
        beside = {
            "dose_state": dose_state != 0,
            "duration": duration is not None,
            "dose_time": dose_time is not None,
        }
        for name, given in beside.items():
            if given and dose is None:
                raise ValueError(f"{name} describes doses; name the column of their amounts with dose=.")
        if not isinstance(dose_state, str):
            check_number(dose_state, "dose_state", lambda v: v >= 0 and v % 1 == 0, "a column or 0, 1, ..")
            dose_state = int(dose_state)
        for name, value in (("duration", duration), ("dose_time", dose_time)):
            if value is not None and not isinstance(value, str):
                check_number(value, name, np.isfinite, "a column or a number")
        named = _by_name(covariates, "covariates"), _by_name(inputs, "inputs")
        if twice := sorted({*(named[0] or {})} & {*(named[1] or {})}):
            raise ValueError(f"{twice[0]!r} is both a covariate and an input; it can be one of them.")
        start = _states(y0)
        return cls(
            subject, time, columns, quantity, event, dose, dose_state, duration, dose_time, *named, start
        )

    def read(self, frame: Any, source: str = "the table") -> LongTable:
        """Read a table with these columns."""
        return _Reader(self, frame, source).read()


def _states(y0: Any) -> tuple[str, ...] | tuple[float, ...] | None:
    """Columns of initial states, or initial states that all subjects have."""
    if y0 is None:
        return None
    if isinstance(y0, str):
        return (y0,)
    if isinstance(y0, list | tuple) and len(y0) and all(isinstance(name, str) for name in y0):
        return tuple(y0)
    states = as_array(y0 if np.ndim(y0) else [y0], "y0").astype(float)
    if states.ndim != 1:
        raise ValueError(
            f"y0 has shape {states.shape}; of a table it is one state for all subjects, (d,), or the names "
            "of the columns with the initial states of each."
        )
    return tuple(states.tolist())


def _by_name(columns: Any, what: str) -> dict[str, str] | None:
    """{name in the equation: column}, from that, or from names of columns."""
    if columns is None:
        return None
    if isinstance(columns, str):
        columns = [columns]
    named = dict(columns) if isinstance(columns, Mapping) else {str(name): name for name in columns}
    for name, column in named.items():
        if not isinstance(column, str):
            raise ValueError(f"{what}: {column!r} must be the name of a column.")
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(
                f"{what}: the equation cannot have an argument {name!r}; give it a name of its own, as in "
                f"{what}={{'weight': {column!r}}}."
            )
    return named or None


@final
@dataclass(frozen=True, eq=False)
class LongTable:
    """Subjects of a long table, in the form that ``LocalW2ODE.fit`` takes.

    ``subjects`` are their labels, numbers by size and text by alphabet. ``Y`` is (n, T, p) at common times
    ``t`` (T,), NaN where nothing was observed, or both are lists where subjects share few times.

    >>> rows = {"who": ["b", "a", "b", "b"], "h": [0, 2, 2, 0], "mg": [5, None, None, None],
    ...         "conc": [None, 3.0, 1.0, 0.1], "kg": [70, 60, None, None]}
    >>> table = LongTable.of(rows, subject="who", time="h", observed="conc", dose="mg", covariates="kg")
    >>> table.subjects, table.Y[..., 0], table.t
    (['a', 'b'], array([[nan, 3. ], [0.1, 1. ]]), array([0., 2.]))
    >>> table.doses["subject"], table.doses["amount"], table.covariates["kg"]
    (array([1]), array([5.]), array([60., 70.]))
    """

    subjects: list[Any]
    quantities: list[str]
    Y: Any
    t: Any
    doses: dict[str, Array] | None
    covariates: dict[str, Array] | None
    inputs: dict[str, tuple[Array, Array]] | None
    first: float
    columns: Columns
    _reader: Any = field(repr=False)

    @classmethod
    def of(cls, frame: Any, *, source: str = "the table", **columns: Any) -> LongTable:
        """Read a pandas or polars frame, or a dict of columns; rows may come in any order.

        subject, time
            Whose row it is (any text or number), and when.
        observed
            The column of the observed quantity, or one for each. Empty cells (and ".") were not observed.
        quantity
            With one column of observations: a column (DVID) that says which quantity a row has. They are
            taken in the order of their numbers, or by alphabet.
        dose
            The column of amounts. A row with an amount is a dose, whether or not it has an observation too;
            an empty cell or 0 is none. What is observed at the time of a dose is observed before it, in
            whatever order the rows come.
        dose_state, duration
            To which state it goes (0, 1, ..) and over how long (0: at once): a column, or one for all.
        dose_time
            For tables that repeat a subject's one dose in each of its rows: when it was given, a number or a
            column.
        event
            A column (EVID) of 0 for observations, 1 for doses and 2 for neither. Then what stands in the
            column of observations of a dose does not count, nor the reverse.
        covariates, inputs
            Columns, or {name in the equation: column}. A covariate has one value for each subject; what
            changes with time is an input: linear between its values, constant before and after them.
        y0
            The initial states: one number for each state, or the columns that hold them for each subject.
        """
        return Columns.of(**columns).read(frame, source)

    @property
    def design(self) -> dict[str, Any]:
        """What was done to subjects, as ``fit``, ``sample`` and others take it."""
        return {"doses": self.doses, "covariates": self.covariates, "inputs": self.inputs}

    def of_subjects(self, column: str) -> Array:
        """The one value (n,) of each subject in a column."""
        found: Array = self._reader.constant(column, "value", "there is one for each subject.")
        return found

    @property
    def y0(self) -> Array | None:
        """The initial states: (n, d) from columns, (d,) if all have the same, None if they are unknown."""
        given = self.columns.y0
        if given is None:
            return None
        if isinstance(given[0], str):
            return np.column_stack([self.of_subjects(str(name)) for name in given])
        return np.array(given)

    def paths(self) -> list[tuple[Array, Array]]:
        """Times (T_i,) and values (T_i, p) of each subject, without times at which nothing was observed."""
        times = self.t if isinstance(self.t, list) else [self.t] * len(self.Y)
        there = [np.isfinite(values).any(1) for values in self.Y]
        return [(own[seen], values[seen]) for own, values, seen in zip(times, self.Y, there, strict=True)]


@final
class _Reader:
    """A frame with the meaning of its columns, and the subject (0 to n - 1) of every row."""

    def __init__(self, columns: Columns, frame: Any, source: str) -> None:
        self.columns, self.source = columns, source
        self.frame = frame
        if not (isinstance(frame, Mapping) or hasattr(frame, "columns")):
            raise ValueError(
                f"{source} is {type(frame).__name__}; give a data frame of pandas or polars, or a dict of "
                "columns."
            )
        self.names = [str(name) for name in (frame.columns if hasattr(frame, "columns") else frame)]
        self.labels = self._labels()
        self.subjects, self.number = self._count_subjects()
        self.time = self._complete(columns.time, "time")

    # Cells

    def _column(self, name: Any) -> Any:
        if name not in self.names:
            hint = suggest(str(name), self.names, "Its columns are")
            raise ValueError(f"{self.source} has no column {name!r}. {hint}")
        return self.frame[name]

    def numbers(self, name: str) -> Array:
        """A column as numbers, NaN where a cell is empty."""
        column = self._column(name)
        if np.asarray(column).dtype.kind in "mM":
            raise ValueError(
                f"column {name!r} of {self.source} holds dates or durations, whose unit is unknown; give "
                "numbers, such as the hours or days since a start."
            )
        if hasattr(column, "to_numpy"):
            try:  # pandas' own types have a sign of their own for what is missing
                column = column.to_numpy(dtype=np.float64, na_value=np.nan)
            except (TypeError, ValueError):
                column = column.to_numpy()
        values = np.asarray(column)
        if values.dtype.kind in "OUS":
            values = np.array([self._number(cell, name, i) for i, cell in enumerate(values)])
        values = as_array(values, f"column {name!r} of {self.source}", missing=True).astype(np.float64)
        if values.shape != (len(self.labels) if hasattr(self, "labels") else len(values),):
            raise ValueError(f"column {name!r} of {self.source} has shape {values.shape}, unlike others.")
        return values

    def _number(self, cell: Any, name: str, row: int) -> float:
        if _is_missing(cell):
            return np.nan
        try:
            return float(cell)
        except (TypeError, ValueError):
            comma = " (If its comma is a decimal comma, say so where the file is read.)"
            raise ValueError(
                f"column {name!r} of {self.source} must be numeric, but {brief(cell)} in row {row + 1} is "
                "not a number. Correct the cell, or code what it says as numbers."
                f"{comma if ',' in str(cell) else ''}"
            ) from None

    def _complete(self, name: str, what: str) -> Array:
        values = self.numbers(name)
        if len(empty := np.flatnonzero(np.isnan(values))):
            raise ValueError(
                f"column {name!r} of {self.source} is empty in row {empty[0] + 1}; every row has a {what}."
            )
        return values

    def _labels(self) -> Array:
        name = self.columns.subject
        column = self._column(name)
        values = np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)
        values = values if values.dtype == object else values.astype(object)
        missing = [i for i, label in enumerate(values) if _is_missing(label)]
        if missing:
            raise ValueError(
                f"column {name!r} of {self.source} is empty in {len(missing)} rows, the first of them row "
                f"{missing[0] + 1}; it must say which subject each row belongs to."
            )
        if not len(values):
            raise ValueError(f"{self.source} has no rows; at least one is needed.")
        return values

    def _count_subjects(self) -> tuple[list[Any], Array]:
        numeric = all(isinstance(v, int | float | np.number) for v in self.labels)
        if all(isinstance(v, int | np.integer) for v in self.labels):  # of any size
            found, number = np.unique(np.array([int(v) for v in self.labels], object), return_inverse=True)
            return found.tolist(), number
        if numeric:
            found, number = np.unique(self.labels.astype(float), return_inverse=True)
            whole = bool((found % 1 == 0).all())
            return [int(v) if whole else float(v) for v in found], number
        texts = np.array([str(v) for v in self.labels])
        labels, number = np.unique(texts, return_inverse=True)
        return labels.tolist(), number

    def who(self, row: int) -> str:
        """A row's subject and time, for messages."""
        label = self.subjects[self.number[row]]
        return f"{self.columns.subject} = {label} and {self.columns.time} = {self.time[row]:g}"

    # Subjects

    def constant(self, name: str, kind: str, otherwise: str) -> Array:
        """The one value (n,) that a column has for each subject; its empty cells take it too."""
        values = self.numbers(name)
        found = np.full(len(self.subjects), np.nan)
        known = np.flatnonzero(np.isfinite(values))
        found[self.number[known[::-1]]] = values[known[::-1]]  # the first one stays
        if len(wrong := known[values[known] != found[self.number[known]]]):
            row, label = wrong[0], self.subjects[self.number[wrong[0]]]
            raise ValueError(
                f"row {row + 1} of {self.source} has {name} = {values[row]:g}, but an earlier row of "
                f"{self.columns.subject} = {label} has {found[self.number[row]]:g}; {otherwise}"
            )
        if len(empty := np.flatnonzero(np.isnan(found))):
            row = int(np.argmax(self.number == empty[0]))
            raise ValueError(
                f"column {name!r} of {self.source} is empty in row {row + 1} and in every other row of "
                f"{self.columns.subject} = {self.subjects[empty[0]]}; each subject needs a {kind}."
            )
        return found

    def read(self) -> LongTable:
        """Everything that the columns say."""
        events = self._events()
        doses = self._doses(events)
        rows, values, quantities = self._observations(events)
        if self.columns.observed:
            gone = np.setdiff1d(np.arange(len(self.subjects)), self.number[rows])
            if len(gone):
                raise ValueError(
                    f"{self.columns.subject} = {self.subjects[gone[0]]} of {self.source} has no observation "
                    f"of {' or '.join(self.columns.observed)}; leave its rows out."
                )
        Y, t = self._arrange(rows, values) if len(rows) else (None, None)
        used = self.time[rows] if len(rows) else self.time
        first = min(float(used.min()), float(doses["time"].min()) if doses else np.inf)
        covariates = {
            name: self.constant(
                column,
                "value",
                f"a covariate is one number for each subject. Give what changes with time as an input, "
                f"inputs=[{column!r}].",
            )
            for name, column in (self.columns.covariates or {}).items()
        }
        inputs = {name: self._course(column) for name, column in (self.columns.inputs or {}).items()}
        return LongTable(
            self.subjects,
            quantities,
            Y,
            t,
            doses,
            covariates or None,
            inputs or None,
            first,
            self.columns,
            self,
        )

    # Observations and doses

    def _events(self) -> Array | None:
        """What each row is, if a column says so."""
        if self.columns.event is None:
            return None
        events = self._complete(self.columns.event, "kind of event")
        if len(wrong := np.flatnonzero(~np.isin(events, (OBSERVATION, DOSE, OTHER)))):
            raise ValueError(
                f"row {wrong[0] + 1} of {self.source} has {self.columns.event} = {events[wrong[0]]:g}; "
                "known are 0 (an observation), 1 (a dose) and 2 (neither). A subject that is started anew "
                "is another subject: give its rows a label of their own."
            )
        return events

    def _observations(self, events: Array | None) -> tuple[Array, Array, list[str]]:
        """The rows that were observed, their values (R, p), NaN where there is none, and the quantities."""
        names = self.columns.observed
        if not names:
            return np.empty(0, int), np.empty((0, 0)), []
        values = np.column_stack([self.numbers(name) for name in names])
        if events is not None:
            values[events != OBSERVATION] = np.nan
        rows = np.flatnonzero(np.isfinite(values).any(1))
        quantities = list(names)
        if self.columns.quantity is not None:
            values, rows, quantities = self._split(values[:, 0], rows)
        return rows, values[rows], quantities

    def _split(self, values: Array, rows: Array) -> tuple[Array, Array, list[str]]:
        """One column of several quantities as one column for each."""
        name = self.columns.quantity
        assert name is not None
        column = self._column(name)
        kinds = np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column).astype(object)
        if empty := [i for i in rows if _is_missing(kinds[i])]:
            raise ValueError(
                f"row {empty[0] + 1} of {self.source} has an observation, but {name!r} does not say of what."
            )
        own = kinds[rows]
        if all(isinstance(v, int | float | np.number) for v in own):
            found, place = np.unique(own.astype(float), return_inverse=True)
            labels = [f"{v:g}" for v in found]
        else:
            found, place = np.unique(np.array([str(v) for v in own]), return_inverse=True)
            labels = found.tolist()
        wide = np.full((len(values), len(labels)), np.nan)
        wide[rows, place] = values[rows]
        return wide, rows, labels

    def _arrange(self, rows: Array, values: Array) -> tuple[Any, Any]:
        """Observations (R, p) of these rows by subject and time: (n, T, p) and (T,), or two lists."""
        number, time = self.number[rows], self.time[rows]
        order = np.lexsort((time, number))
        fresh = np.r_[True, (np.diff(number[order]) != 0) | (np.diff(time[order]) != 0)]
        place = np.cumsum(fresh) - 1  # several quantities of one time may stand in several rows
        merged = np.full((place[-1] + 1, values.shape[1]), np.nan)
        for row, at in zip(order, place, strict=True):
            there = np.isfinite(values[row])
            if np.isfinite(merged[at, there]).any():
                raise ValueError(
                    f"row {rows[row] + 1} of {self.source} is the second with {self.who(rows[row])}, but a "
                    "subject has one value of a quantity at a time. Correct the row, average repeated "
                    "measurements, or name another column as the subject."
                )
            merged[at, there] = values[row, there]
        number, time = number[order][fresh], time[order][fresh]
        lengths = np.bincount(number, minlength=len(self.subjects))
        grid, at = np.unique(time, return_inverse=True)
        if len(grid) <= LARGEST_GRID * np.median(lengths):
            Y = np.full((len(self.subjects), len(grid), values.shape[1]), np.nan)
            Y[number, at] = merged
            return Y, grid
        cuts = np.cumsum(lengths)[:-1]
        return np.split(merged, cuts), np.split(time, cuts)

    def _doses(self, events: Array | None) -> dict[str, Array] | None:
        name = self.columns.dose
        if name is None:
            return None
        if self.columns.dose_time is not None:
            return self._single_doses(name)
        amounts = np.nan_to_num(self.numbers(name))
        duration = self._beside(self.columns.duration, 0.0)
        if events is not None:
            if len(empty := np.flatnonzero((events == DOSE) & (amounts == 0))):
                raise ValueError(
                    f"row {empty[0] + 1} of {self.source} is a dose ({self.columns.event} = 1), but {name!r} "
                    "has no amount there. Give it, or drop the row."
                )
            amounts = np.where(events == DOSE, amounts, 0.0)
        rows = np.flatnonzero(amounts)
        lone = np.flatnonzero((np.nan_to_num(duration) > 0) & (amounts == 0))
        if isinstance(self.columns.duration, str) and len(lone):
            raise ValueError(
                f"row {lone[0] + 1} of {self.source} has {self.columns.duration} = {duration[lone[0]]:g}, "
                f"but no amount in {name!r}: it is a dose without one. Give it, or empty the duration."
            )
        self._warn_of_repeated(amounts, rows)
        state = self._beside(self.columns.dose_state, 0)
        doses = self._check_doses(rows, amounts, np.nan_to_num(duration), state)
        return {"subject": self.number[rows], "time": self.time[rows], **doses} if len(rows) else None

    def _single_doses(self, name: str) -> dict[str, Array]:
        """The one dose of each subject, which all its rows repeat."""
        columns = self.columns
        once = "with dose_time each subject has one dose."
        at = columns.dose_time
        assert at is not None
        rows = np.unique(self.number, return_index=True)[1]
        n = len(self.subjects)

        def each(column: Any, what: str) -> Array:
            return self.constant(column, what, once) if isinstance(column, str) else np.full(n, float(column))

        amounts = self.constant(name, "dose", once)
        found = {"amount": amounts, "duration": each(columns.duration or 0.0, "duration")}
        found["state"] = each(columns.dose_state, "state")
        by_row = {key: np.zeros(len(self.time)) for key in found}
        for key, values in found.items():
            by_row[key][rows] = values
        doses = self._check_doses(rows, by_row["amount"], by_row["duration"], by_row["state"])
        return {"subject": np.arange(n), "time": each(at, "time of the dose"), **doses}

    def _beside(self, column: Any, otherwise: float) -> Array:
        if isinstance(column, str):
            return self.numbers(column)
        return np.full(len(self.time), float(otherwise if column is None else column))

    def _check_doses(self, rows: Array, amounts: Array, duration: Array, state: Array) -> dict[str, Array]:
        for what, values, name in (
            ("amount", amounts, self.columns.dose),
            ("duration", duration, self.columns.duration),
        ):
            if len(low := rows[values[rows] < 0]):
                raise ValueError(
                    f"row {low[0] + 1} of {self.source} has a dose with the {what} {values[low[0]]:g} "
                    f"({name}); it must be positive, and an empty cell if there is none."
                )
        if len(empty := rows[~(state[rows] >= 0) | (state[rows] % 1 != 0)]):
            raise ValueError(
                f"row {empty[0] + 1} of {self.source} has a dose, but {self.columns.dose_state!r} does not "
                "say to which state (0, 1, ..) it goes."
            )
        keys = np.column_stack([self.number[rows], self.time[rows], state[rows]])
        order = np.lexsort(keys.T[::-1])
        again = (
            (np.diff(keys[order], axis=0) == 0).all(1)
            if self.columns.dose_time is None
            else np.empty(0, bool)
        )
        if again.any():
            row = rows[order[1:][again][0]]
            raise ValueError(
                f"row {row + 1} of {self.source} is the second dose with {self.who(row)} to the same state. "
                "If both were given, write their sum in one row; otherwise drop one."
            )
        found = {"amount": amounts[rows], "state": state[rows].astype(int), "duration": duration[rows]}
        return found

    def _warn_of_repeated(self, amounts: Array, rows: Array) -> None:
        """Warn of a column that repeats one dose in every row of a subject: it would be given every time."""
        counts = np.bincount(self.number)
        if len(rows) < len(self.time) or counts.max() < 3:
            return
        first = amounts[np.unique(self.number, return_index=True)[1]]
        if (amounts == first[self.number]).all():
            warnings.warn(
                f"{self.columns.dose!r} has an amount in every row of {self.source}, the same for all rows "
                "of a subject, so that it is given again at each of their times. If each subject had one "
                "dose, say when: dose_time=0.",
                stacklevel=6,
            )

    def _course(self, column: str) -> tuple[Array, Array]:
        """Knots (m,) of all subjects, and the values (n, m) of an input at them."""
        values = self.numbers(column)
        known = np.flatnonzero(np.isfinite(values))
        knots = np.unique(self.time[known])
        courses = np.empty((len(self.subjects), len(knots)))
        for i, label in enumerate(self.subjects):
            own = known[self.number[known] == i]
            if not len(own):
                raise ValueError(
                    f"{self.columns.subject} = {label} of {self.source} has no value of the input "
                    f"{column!r}; give at least one."
                )
            own = own[np.argsort(self.time[own], kind="stable")]
            same = np.diff(self.time[own]) == 0
            if len(wrong := np.flatnonzero(same & (np.diff(values[own]) != 0))):
                row = own[wrong[0] + 1]
                raise ValueError(
                    f"row {row + 1} of {self.source} has {column} = {values[row]:g}, but another row with "
                    f"{self.who(row)} has {values[own[wrong[0]]]:g}; an input has one value at a time."
                )
            courses[i] = np.interp(knots, self.time[own], values[own])
        return knots, courses


def read_table(Y: Any, t: Any, columns: Columns | None) -> LongTable | None:
    """The table that Y is, read with these columns unless it has been read; None if it is an array."""
    if isinstance(Y, LongTable):
        return Y
    if t is not None or not (hasattr(Y, "columns") or isinstance(Y, Mapping)):
        return None
    if columns is None:
        raise ValueError(
            "this model was not fitted by fit_table, so that it does not know the columns; read the table "
            "with LongTable.of(frame, subject=..., time=..., observed=...)."
        )
    return columns.read(Y)


def _is_missing(cell: Any) -> bool:
    return cell is None or str(cell).strip().lower() in MISSING


class LabelledSubjects:
    """An estimator that keeps the labels of a table's subjects, also in its file."""

    subjects_: list[Any]

    def _plain_subjects(self) -> list[Any] | None:
        """The labels for a file: those that are no numbers as texts."""
        labels = getattr(self, "subjects_", None)
        if labels is None:
            return None
        plain = [label.item() if isinstance(label, np.generic) else label for label in labels]
        return [label if isinstance(label, int | float | str) else str(label) for label in plain]

    def _keep_subjects(self, plain: Any) -> None:
        """Take over labels from a file, checked."""
        if plain is None:
            return
        if not isinstance(plain, list) or not all(isinstance(label, int | float | str) for label in plain):
            raise ValueError("the labels of the subjects are not a list of numbers and texts.")
        self.subjects_ = plain
