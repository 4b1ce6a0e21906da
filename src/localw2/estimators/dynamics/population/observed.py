"""Observed subjects of a fitted population: what was seen of each, and what was done to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array, as_array
from localw2.estimators.dynamics.long_tables import Columns, read_table
from localw2.estimators.dynamics.population.learning import make_cohort
from localw2.estimators.dynamics.trajectories import Trajectories
from localw2.models.subjects import Doses

if TYPE_CHECKING:
    from localw2.models.cohort import Cohort


@final
@dataclass(frozen=True, eq=False)
class Observed:
    """n subjects with labels: times (n, T) since t0, which are there, and values (n, T, p), NaN if none."""

    subjects: list[Any]
    quantities: list[str]
    times: Array
    there: Array
    values: Array
    initial: Array
    t0: float
    design: dict[str, Any]
    starts_known: bool

    @classmethod
    def of(
        cls,
        Y: Any,
        t: Any,
        y0: Any,
        t0: float,
        n_states: int,
        design: dict[str, Any],
        columns: Columns | None,
        all_seen: bool,
    ) -> Observed:
        """Read arrays in the forms of ``fit``, or a table if t is None."""
        table = read_table(Y, t, columns)
        if table is not None:
            if given := [name for name, value in design.items() if value is not None]:
                raise ValueError(f"{given[0]} would be ignored: a table has its own.")
            Y, t, design = table.Y, table.t, table.design
            y0 = table.y0 if y0 is None else y0
        start = np.zeros(n_states) if y0 is None else y0
        data = Trajectories.of(Y, t, start, t0, all_seen, None, True, 1)
        if data.initial.shape[1] != n_states:
            raise ValueError(f"y0 has {data.initial.shape[1]} state(s); the equation has {n_states}.")
        times, there, values = data.padded()
        p = values.shape[2]
        labels = list(range(len(times))) if table is None else table.subjects
        names = (["y"] if p == 1 else [f"y{k + 1}" for k in range(p)]) if table is None else table.quantities
        return cls(labels, names, times, there, values, data.initial, data.t0, design, y0 is not None)

    def cohort(self, at: Array | None = None) -> Cohort:
        """The subjects at their own times, or at common times ``at`` (T,)."""
        times, there = self.times, self.there
        if at is not None:
            times = np.broadcast_to(at - self.t0, (len(self.times), len(at)))
            there = np.ones(times.shape, bool)
        return make_cohort(times, there, self.initial, self.t0, *self.design.values())

    def paths(self) -> list[tuple[Array, Array]]:
        """Times (T_i,) and values (T_i, p) of each subject."""
        return [
            (times[there] + self.t0, values[there])
            for times, there, values in zip(self.times, self.there, self.values, strict=True)
        ]

    def amounts(self) -> Array:
        """All that was given to each subject (n,)."""
        doses = Doses.of(self.design["doses"], len(self.times), self.initial.shape[1])
        return np.bincount(doses.subject, doses.amount, len(self.times))

    def later(self, at: Any) -> Array:
        """Rising times (T,) not before the start; None is evenly spaced ones up to the last observation."""
        if at is None:
            return np.linspace(self.t0, self.t0 + float(self.times[self.there].max()), 100)
        times = as_array(at, "at").astype(float)
        if times.ndim != 1 or (np.diff(times) <= 0).any() or times[0] < self.t0:
            raise ValueError(
                f"at has shape {times.shape}; expected rising times (T,) from {self.t0:g}, where subjects "
                "start."
            )
        return times
