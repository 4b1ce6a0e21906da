"""Subjects: what was done to each of many trajectories, and when it was observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array, as_array

COLUMNS = ("subject", "time", "amount", "state", "duration")
# Times of a subject that differ by less than this part of the span are one.
SAME_TIME = 1e-9
# Subjects without events are solved together if they have at most this many distinct times.
MOST_STOPS = 500


@final
@dataclass(frozen=True)
class Doses:
    """What is added to the states: who (E,), when, how much, to which state, and over how long (0: at once).

    >>> doses = Doses.of({"subject": [0, 1], "time": [0.0, 2.0], "amount": [100.0, 50.0]}, 2, 1)
    >>> doses.state, doses.duration
    (array([0, 0]), array([0., 0.]))
    """

    subject: Array
    time: Array
    amount: Array
    state: Array
    duration: Array

    @classmethod
    def of(cls, table: Any, n_subjects: int, n_states: int) -> Doses:
        """Read a table with the columns subject (0 to n - 1), time, amount, and maybe state and duration."""
        if isinstance(table, Doses):
            return table
        columns = _columns(table)
        count = len(columns["amount"])
        subject = columns.get("subject", np.zeros(count))
        state, duration = columns.get("state", np.zeros(count)), columns.get("duration", np.zeros(count))
        for name, values, top in (("subject", subject, n_subjects), ("state", state, n_states)):
            if ((values % 1 != 0) | (values < 0) | (values >= top)).any():
                wrong = values[(values % 1 != 0) | (values < 0) | (values >= top)][0]
                raise ValueError(f"doses: {name} {wrong:g} does not exist; they are numbered 0 to {top - 1}.")
        if (duration < 0).any():
            raise ValueError(f"doses: a duration is {duration.min():g}; give 0 for a dose at once.")
        return cls(subject.astype(int), columns["time"], columns["amount"], state.astype(int), duration)

    @classmethod
    def none(cls) -> Doses:
        """Nothing is given to anyone."""
        nothing, nobody = np.empty(0), np.empty(0, int)
        return cls(nobody, nothing, nothing, nobody, nothing)

    def of_subject(self, i: int) -> Doses:
        """Those of one subject."""
        own = self.subject == i
        return Doses(*(getattr(self, name)[own] for name in COLUMNS))

    def __len__(self) -> int:
        return len(self.amount)


def _columns(table: Any) -> dict[str, Array]:
    if hasattr(table, "columns"):
        table = {str(name): table[name] for name in table.columns}
    if not isinstance(table, Mapping):
        raise ValueError(
            f"doses is {type(table).__name__}; give a table (a DataFrame or a dict of columns) with the "
            f"columns {', '.join(COLUMNS)}, of which subject, state and duration may be left out."
        )
    if unknown := sorted(set(map(str, table)) - set(COLUMNS)):
        raise ValueError(f"doses: the column {unknown[0]!r} is unknown; they are {', '.join(COLUMNS)}.")
    found = {
        str(name): as_array(np.asarray(values), f"doses: {name}").astype(float)
        for name, values in table.items()
    }
    for name in ("time", "amount"):
        if name not in found:
            raise ValueError(f"doses: the column {name!r} is missing.")
    if len({values.shape for values in found.values()}) > 1 or found["time"].ndim != 1:
        raise ValueError(f"doses: columns have lengths {sorted({v.shape for v in found.values()})}, not one.")
    return found


@final
@dataclass(frozen=True)
class Inputs:
    """What drives the equation from outside: named courses of n subjects, linear between knots (m,)."""

    knots: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)  # (n, m)

    @classmethod
    def of(cls, given: Any, n_subjects: int) -> Inputs:
        """Read ``{name: (times, values)}`` with values (m,) for all, or (n, m)."""
        knots, courses = {}, {}
        if given is not None and not isinstance(given, Mapping):
            raise ValueError(f"inputs is {type(given).__name__}; give a dict {{name: (times, values)}}.")
        for name, pair in (given or {}).items():
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ValueError(f"inputs[{name!r}] must be a pair (times, values).")
            times, values = (as_array(part, f"inputs[{name!r}]").astype(float) for part in pair)
            values = np.broadcast_to(values, (n_subjects, len(times))) if values.ndim == 1 else values
            if times.ndim != 1 or values.shape != (n_subjects, len(times)) or (np.diff(times) <= 0).any():
                raise ValueError(
                    f"inputs[{name!r}]: times of shape {times.shape} and values {values.shape}; expected "
                    f"rising times (m,) and values (m,), or ({n_subjects}, m) with a row for each subject."
                )
            knots[name], courses[name] = times, np.ascontiguousarray(values)
        return cls(knots, courses)


@final
@dataclass(frozen=True)
class Clock:
    """Every subject's own time: J stretches between its stops, which are its observations and events.

    ``stops`` (n, J + 1) rise from 0; a subject with fewer repeats its last, a stretch of length 0. ``jumps``
    (n, J + 1, d) are added to the states at a stop, after what is observed there. ``rates`` (n, J, d) flow
    in during a stretch. ``places`` (n, T) are the stops of the observations.
    """

    stops: Tensor
    jumps: Tensor
    rates: Tensor
    places: Tensor

    @classmethod
    def of(cls, times: Array, seen: Array, doses: Doses, t0: float, n_states: int) -> Clock:
        """Merge times (n, T) since t0, of which ``seen`` count, with the events of each subject."""
        n, span = len(times), float(times[seen].max())
        events = [doses.of_subject(i) for i in range(n)] if len(doses) else [Doses.none()] * n
        rows = [_stops(times[i][seen[i]], events[i], t0, span) for i in range(n)]
        if not (doses.duration > 0).any() and not (doses.time - t0 > SAME_TIME * span).any():
            rows = _in_common(rows, span)
        count = max(map(len, rows))
        stops = np.stack([np.r_[row, np.full(count - len(row), row[-1])] for row in rows])
        jumps, rates = np.zeros((n, count, n_states)), np.zeros((n, count - 1, n_states))
        places = np.zeros(times.shape, int)
        for i, (row, own) in enumerate(zip(rows, events, strict=True)):
            places[i, seen[i]] = _nearest(row, times[i][seen[i]])
            for time, amount, state, duration in zip(
                own.time - t0, own.amount, own.state, own.duration, strict=True
            ):
                if time > row[-1] * (1 + SAME_TIME):  # after the last observation
                    continue
                start = _nearest(row, np.array([time]))[0]
                if duration == 0:
                    jumps[i, start, state] += amount
                    continue
                stop = _nearest(row, np.array([min(time + duration, row[-1])]))[0]
                rates[i, start:stop, state] += amount / duration
        as_tensors = (torch.from_numpy(part) for part in (stops, jumps, rates, places))
        return cls(*as_tensors)

    @property
    def lengths(self) -> Tensor:
        """How long every stretch (n, J) takes."""
        return self.stops.diff(dim=1)

    def runs(self) -> list[tuple[int, int]]:
        """The stretches (first, last + 1) that can be solved in one go: common stops, no event between."""
        count = self.stops.shape[1] - 1
        if count == 0:  # only the start is asked for
            return []
        together = bool((self.stops == self.stops[:1]).all())
        if not together:
            return [(j, j + 1) for j in range(count)]
        breaks = [0]
        for j in range(1, count):
            if bool((self.jumps[:, j] != 0).any()) or bool((self.rates[:, j] != self.rates[:, j - 1]).any()):
                breaks.append(j)
        return list(zip(breaks, [*breaks[1:], count], strict=True))


def _stops(times: Array, doses: Doses, t0: float, span: float) -> Array:
    """The distinct stops of a subject up to its last observation, from 0 on."""
    events = np.concatenate([doses.time, (doses.time + doses.duration)[doses.duration > 0]]) - t0
    if len(events) and (doses.time - t0).min() < -SAME_TIME * span:
        raise ValueError(
            f"a dose at time {doses.time.min():g} is before the start t0 = {t0:g}; give an earlier t0."
        )
    last = times.max()
    stops = np.sort(np.r_[0.0, times, events[(events > 0) & (events < last)]])
    kept: Array = stops[np.r_[True, np.diff(stops) > SAME_TIME * span]]
    return kept


def _in_common(rows: list[Array], span: float) -> list[Array]:
    """The stops of all, for everyone, if they are not too many: then all are solved in one go.

    Where nothing happens after the start a solver need not stop at an observation: it interpolates.
    """
    together = np.unique(np.concatenate(rows))
    together = together[np.r_[True, np.diff(together) > SAME_TIME * span]]
    return [together] * len(rows) if len(together) <= MOST_STOPS else rows


def _nearest(stops: Array, times: Array) -> Array:
    """The places of the stops nearest to these times."""
    if len(stops) == 1:
        return np.zeros(len(times), int)
    right = np.clip(np.searchsorted(stops, times), 1, len(stops) - 1)
    nearest: Array = np.where(times - stops[right - 1] <= stops[right] - times, right - 1, right)
    return nearest
