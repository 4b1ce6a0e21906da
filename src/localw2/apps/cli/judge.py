"""``localw2 evaluate`` and ``test``: can the model be trusted on new rows?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from localw2.apps.cli.config import Config, collect_settings
from localw2.apps.cli.options import (
    Data,
    Decimal,
    DecimalMark,
    DropMissing,
    Features,
    Json,
    Model,
    Seed,
    Target,
)
from localw2.apps.cli.running import FAILED, print_result, report_errors
from localw2.apps.cli.scores import format_scores, score_rows


@report_errors
def evaluate(
    context: typer.Context,
    model: Model,
    data: Data,
    target: Target = None,
    features: Features = None,
    draws: Annotated[int, typer.Option(min=2, help="Draws per row for CRPS and PIT.")] = 200,
    seed: Seed = 0,
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Score a model on rows it was not fitted to: CRPS, RMSE, MAE, coverage and width at 90 %, PIT."""
    from localw2.apps.cli.model_files import load_model, read_data, select_rows

    loaded = load_model(model)
    rows = select_rows(loaded, read_data(data, decimal), features, target, drop_missing)
    found = score_rows(loaded.estimator, rows.X, rows.outputs, rows.features, rows.targets, draws, seed)
    found = {"model": model, "data": rows.table.source} | found | {"settings": collect_settings(context)}
    print_result(found, "\n".join(format_scores(found)), as_json)


@report_errors
def compare(
    context: typer.Context,
    model: Model,
    data: Data,
    delta: Annotated[
        str | None,
        typer.Option(
            metavar="RADIUS|nearest:K|inf", help="Balls to compare in; those of the fit by default."
        ),
    ] = None,
    permutations: Annotated[
        int, typer.Option(min=19, help="Number of random swaps behind the p-value.")
    ] = 999,
    level: Annotated[float, typer.Option(help="Reject if the p-value is at most this level.")] = 0.05,
    fail_on_reject: Annotated[
        bool, typer.Option("--fail-on-reject", help="Exit with code 1 if the test rejects.")
    ] = False,
    target: Target = None,
    features: Features = None,
    seed: Seed = 0,
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Test whether new rows follow the model's conditional distribution, and find where they do not.

    The p-value is exact.
    """
    from localw2 import conditional_test
    from localw2.apps.cli.model_files import load_model, read_data, select_rows

    loaded = load_model(model)
    rows = select_rows(loaded, read_data(data, decimal), features, target, drop_missing)
    balls, norm = choose_balls(loaded.estimator, rows.X, delta)
    result = conditional_test(
        rows.X,
        rows.outputs,
        loaded.estimator,
        balls,
        norm=norm,
        n_permutations=permutations,
        level=level,
        random_state=seed,
    )
    found = {
        "model": model,
        "data": rows.table.source,
        "pvalue": result.pvalue,
        "statistic": result.statistic,
        "level": result.level,
        "reject": result.reject,
        "valid": result.valid,
        "verdict": result.verdict,
        "notes": result.notes,
        "seen_share": result.seen_share,
        "balls": {
            "row": rows.number[result.centers],
            "size": result.ball_sizes,
            "statistic": result.ball_statistics,
            "pvalue": result.ball_pvalues,
        },
        "settings": collect_settings(context),
    }
    print_result(found, result.summary(), as_json)
    if fail_on_reject and result.reject:
        raise typer.Exit(FAILED)


def choose_balls(estimator: Any, X: Any, delta: str | None) -> tuple[Any, Any]:
    """The balls to compare in, and their norm: as given, as in the fit, or else a fifth of the rows each."""
    import math

    from localw2 import Nearest, Weighted
    from localw2.apps.cli.model_files import parse_delta

    fitted = getattr(estimator, "delta_", None), getattr(estimator, "norm_", None)
    balls = fitted[0] if delta in (None, "auto") else parse_delta(str(delta))
    if not isinstance(balls, Nearest | int | float):
        balls = Nearest(max(2, len(X) // 5))
    if isinstance(balls, Nearest):
        return Nearest(min(balls.k, len(X))), fitted[1] or Weighted.standardised(X)
    return (None if math.isinf(balls) else balls), fitted[1]
