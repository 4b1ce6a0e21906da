"""How regressors are judged: a diagnosis on new rows, in the words of their tables."""

from __future__ import annotations

from typing import Any

from localw2._validation import Array
from localw2.estimators.tables import read_rows
from localw2.judging.diagnosis.diagnose import Diagnosis, diagnose
from localw2.judging.inputs import Input, describe_inputs


class Tabled:
    """An estimator that knows the columns of its table."""

    def list_inputs(self, X: Any, names: Any = None) -> tuple[Array, list[Input]]:
        """The used columns of a table as numbers (N, p), and what they mean to people.

        ``names`` are other names for all columns of the table.
        """
        columns = getattr(self, "columns_", None)
        if columns is None:
            raise ValueError("the estimator was fitted to plain numbers; its inputs are the columns of X.")
        return read_rows(self, X, columns), describe_inputs(columns, names)


class Judged(Tabled):
    """A regressor that can be diagnosed."""

    def diagnose(
        self, X: Any, y: Any, n_samples: int = 200, random_state: Any = None, **settings: Any
    ) -> Diagnosis:
        """Check on rows X, y that were not trained on whether the draws can be trusted.

        ``settings`` are those of ``localw2.diagnose``, such as ``x_train`` and ``y_train``, with which
        extrapolated rows are flagged. Rows of the fit itself give a ``SeenRowsWarning``: on them any overfit
        looks calibrated.
        """
        return diagnose(X, y, self, n_samples=n_samples, random_state=random_state, **settings)
