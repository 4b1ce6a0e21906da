"""The part of ``LocalW2ODE`` for long tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Self

from localw2.estimators.dynamics.long_tables import Columns, LabelledSubjects, LongTable


class TableMethods(LabelledSubjects):
    """What an estimator of ODEs does with tables that have a row for each observation or dose."""

    fit: Callable[..., Any]
    table_columns_: Columns | None

    def fit_table(
        self,
        frame: Any,
        *,
        subject: str | None = None,
        time: str | None = None,
        observed: Any = None,
        dose: str | None = None,
        dose_state: Any = 0,
        duration: Any = None,
        covariates: Any = None,
        inputs: Any = None,
        y0: Any = None,
        t0: float | None = None,
        sample_weight: Any = None,
        quantity: str | None = None,
        event: str | None = None,
        dose_time: Any = None,
    ) -> Self:
        """Learn from a long table: a pandas or polars frame, a dict of columns, or a ``LongTable``.

        A row has an observation, a dose, or both, of one subject at one time; rows may come in any order.
        ``subject``, ``time``, ``observed`` and ``dose`` name columns, see ``LongTable.of`` for them and for
        all others. ``y0`` are the initial states, one number for each, or the columns that hold them for each
        subject; without it subjects with doses start from zero. ``t0`` is the earliest time of a dose or an
        observation unless given. ``sample_weight`` is a column, or (n,) in the order of ``subjects_``.

        The labels of the subjects are kept in ``subjects_``, and the columns in ``table_columns_``, so that
        ``individual_parameters`` and others take a frame of the same form in place of Y.

        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> slopes = np.repeat(rng.normal(2.0, 0.4, 30), 3)
        >>> rows = {"plant": np.repeat(np.arange(30), 3), "week": np.tile([1.0, 2.0, 3.0], 30)}
        >>> rows["cm"] = slopes * rows["week"] + 0.2 * rng.normal(size=90)
        >>> from localw2 import LocalW2ODE, Normal
        >>> model = LocalW2ODE(lambda t, y, k: k + 0 * y, {"k": Normal(1.0, 0.5)}, noise="additive",
        ...                    max_epochs=40, random_state=0)
        >>> model = model.fit_table(rows, subject="plant", time="week", observed="cm", y0=0.0, t0=0.0)
        >>> abs(model.population_.find("k", "typical").value - 2.0) < 0.3, len(model.subjects_)
        (True, 30)
        """
        named = {"subject": subject, "time": time, "observed": observed}
        if not isinstance(frame, LongTable) and (missing := [name for name in named if named[name] is None]):
            raise ValueError(f"name the column of {missing[0]}, as in fit_table(frame, subject='ID', ...).")
        others = {
            "dose": dose,
            "duration": duration,
            "covariates": covariates,
            "inputs": inputs,
            "y0": y0,
            "quantity": quantity,
            "event": event,
            "dose_time": dose_time,
        }
        if isinstance(frame, LongTable):
            if given := [name for name, value in (named | others).items() if value is not None]:
                raise ValueError(f"{given[0]} would be ignored: a LongTable has been read.")
            return self._fit_long_table(frame, t0, sample_weight)
        table = LongTable.of(frame, **named, **others, dose_state=dose_state)
        return self._fit_long_table(table, t0, sample_weight)

    def _fit_long_table(self, table: LongTable, t0: Any = None, sample_weight: Any = None) -> Self:
        if table.Y is None:
            raise ValueError("observed names no column; a fit needs at least one observed quantity.")
        if isinstance(sample_weight, str):
            sample_weight = table.of_subjects(sample_weight)
        if t0 is None and table.doses is not None:
            t0 = table.first
        self.fit(table.Y, table.t, table.y0, t0, sample_weight, **table.design)
        self.subjects_, self.table_columns_ = table.subjects, table.columns
        return self

    def _plain_columns(self) -> dict[str, Any] | None:
        """The columns as plain values, for a file."""
        columns = getattr(self, "table_columns_", None)
        return None if columns is None else asdict(columns)

    def _keep_columns(self, plain: Any) -> None:
        """Take over columns from a file, checked as those of a user."""
        if plain is not None:
            self.table_columns_ = Columns.of(**plain)
