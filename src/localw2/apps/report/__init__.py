"""One self-contained HTML file about a fit: what it says of rows that it has not seen, in words and pictures.

The file is text, tables and SVG pictures. It loads nothing and runs nothing, and it is readable on paper and
on a phone, in light and dark mode.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["report_html", "write_report"]


def write_report(path: Any, model: Any, X: Any, y: Any = None, **options: Any) -> Path:
    """Write the report of ``report_html`` to a file, which appears once it is complete; returns its path."""
    from localw2.storage.atomic import replace_file

    target = Path(path)
    replace_file(target, report_html(model, X, y, **options).encode())
    return target


def report_html(model: Any, X: Any, y: Any = None, **options: Any) -> str:
    """A report on a fitted model as a string, judged by rows X (N, p) and y (N,) or (N, d).

    The rows should be held-out ones; if the model was trained on them, the report says so at the top. For a
    ``LocalW2ODE``, X and y are trajectories Y and their times t, in the forms that its ``fit`` takes; if it
    was fitted with noise, doses or covariates, X may be a ``LongTable`` or a frame, as for its
    ``individual_parameters``, and y0, doses, covariates and inputs are options. For a ``LocalW2SDE``, X and y
    are paths Y and their times t, or one long path. For a ``LocalW2MixedRegressor``, y is a frame or whatever
    else its ``fit`` takes.

    Options: ``feature_names`` and ``target_names``, or ``state_names`` for equations; ``settings`` (a
    dictionary) and ``source`` (a file name, a command), which are shown as they are; ``n_samples`` draws per
    row or trajectory (200); ``random_state`` (0). The scores are those of ``localw2 evaluate``.
    """
    if hasattr(model, "coefficients_along"):
        from localw2.apps.report.processes import report_process

        return report_process(model, X, y, **options)
    if hasattr(model, "sample_field"):
        if getattr(model, "population_", None) is not None:
            from localw2.apps.report.population import report_population

            return report_population(model, X, y, **options)
        from localw2.apps.report.trajectories import report_trajectories

        return report_trajectories(model, X, y, **options)
    if hasattr(model, "coding_"):
        from localw2.apps.report.mixed import report_mixed

        return report_mixed(model, X, y, **options)
    from localw2.apps.report.rows import report_rows

    return report_rows(model, X, y, **options)
