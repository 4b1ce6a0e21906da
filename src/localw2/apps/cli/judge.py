"""``localw2 evaluate`` and ``test``: can the model be trusted on new rows?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from localw2._wording import align
from localw2.apps.cli import options
from localw2.apps.cli.config import Config, collect_settings
from localw2.apps.cli.running import FAILED, name_next, print_result, repeat_flags, report_errors

_ROWS = ("target", "features", "drop_missing", "decimal")  # flags that say how DATA is read


@report_errors
def evaluate(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    target: options.Target = None,
    features: options.Features = None,
    draws: Annotated[int, typer.Option(min=2, help="Draws per row for CRPS and PIT.")] = 200,
    seed: options.Seed = 0,
    drop_missing: options.DropMissing = False,
    decimal: options.DecimalMark = options.Decimal.auto,
    config: Config = None,
    as_json: options.Json = False,
) -> None:
    """Score a model on rows it was not fitted to: CRPS, RMSE, MAE, coverage and width at 90 %, PIT.

    Categorical targets have log loss, Brier score, accuracy and calibration error.
    """
    from localw2.apps.cli.model_files import load_model, select_rows

    rows = select_rows(load_model(model), data, decimal, features, target, drop_missing)
    found = score_rows(rows.model.estimator, rows.X, rows.y, rows.features, rows.targets, seed, draws)
    found |= {"model": model, "data": rows.table.source, "settings": collect_settings(context)}
    print_result(found, "\n".join(format_scores(found)), as_json)
    page = ["localw2", "report", model, data, *repeat_flags(context, *_ROWS)]
    name_next({"the same as a page with pictures": page}, as_json)


def score_rows(
    estimator: Any, X: Any, y: Any, features: list[str], targets: list[str], seed: int, draws: int = 200
) -> dict[str, Any]:
    """Compute the scores of each target, and the verdict of ``diagnose``; a report gives the same ones."""
    from localw2.estimators import scores

    together: dict[str, Any] = {}
    found: scores.MixedScores | scores.ScoredRows
    if hasattr(estimator, "coding_"):
        found = scores.score_mixed(estimator, X, y, features, draws, seed)
        together = {"energy_score": found.energy} if len(targets) > 1 else {}
    else:
        found = scores.score_rows(estimator, X, y, features, draws, seed)
    return {
        **together,
        "rows": len(X),
        "interval": scores.COVERAGE,
        "targets": found.list_scores(targets),
        "training_share": found.diagnosis.training_share,
        "calibrated": None if found.diagnosis.training_share else found.diagnosis.calibrated,
        "valid": found.diagnosis.valid,
        "verdict": list(found.diagnosis.verdict),
    }


def format_scores(found: Mapping[str, Any]) -> list[str]:
    """Format the scores for people."""
    percent = f"{100 * found['interval']:.0f} %"
    rows = [["target", "CRPS", "RMSE", "MAE", "R2", f"in {percent}", f"width {percent}"]]
    classes = [["target", "log loss", "Brier", "accuracy", "calibration error", "by chance"]]
    shares = []
    for name, score in found["targets"].items():
        if "log_loss" in score:
            kept = [score[key] for key in ("log_loss", "brier", "accuracy", "calibration_error", "chance")]
            classes.append([name, *(f"{value:.3f}" for value in kept)])
            continue
        cells = [f"{score[key]:.4g}" for key in ("crps", "rmse", "mae", "r2")]
        rows.append([name, *cells, f"{100 * score['coverage']:.1f} %", f"{score['width']:.4g}"])
        pit = " ".join(f"{100 * share:.0f}" for share in score["pit"])
        shares.append(f"PIT of {name}, % of rows per tenth (10 each if calibrated): {pit}")
    tables = [align(table) for table in (rows, classes) if len(table) > 1]
    if "energy_score" in found:
        shares.append(f"energy score of all targets together, in SDs: {found['energy_score']:.4g}")
    return [f"{found['rows']} rows", *tables, *shares, *found["verdict"]]


@report_errors
def compare(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    delta: Annotated[
        str | None,
        typer.Option(
            metavar="RADIUS|nearest:K|inf",
            help="Balls to compare in; those of the fit by default. Several, with commas, make one test.",
        ),
    ] = None,
    permutations: Annotated[
        int, typer.Option(min=19, help="Number of random swaps behind the p-value.")
    ] = 999,
    level: Annotated[float, typer.Option(help="Reject if the p-value is at most this level.")] = 0.05,
    fail_on_reject: Annotated[
        bool, typer.Option("--fail-on-reject", help="Exit with code 1 if the test rejects.")
    ] = False,
    target: options.Target = None,
    features: options.Features = None,
    seed: options.Seed = 0,
    drop_missing: options.DropMissing = False,
    decimal: options.DecimalMark = options.Decimal.auto,
    config: Config = None,
    as_json: options.Json = False,
) -> None:
    """Test whether new rows follow the model's conditional distribution, and find where they do not.

    The p-value is exact.
    """
    from localw2 import Nearest, Weighted, conditional_test
    from localw2.apps.cli.model_files import load_model, parse_delta, select_rows
    from localw2.models.sampler import encode_rows

    rows = select_rows(load_model(model), data, decimal, features, target, drop_missing)
    estimator = rows.model.estimator
    balls = [parse_delta(one.strip()) for one in str(delta or "auto").split(",")]
    if balls == ["auto"]:
        balls = [getattr(estimator, "delta_", "auto")]
    elif "auto" in balls or len({type(one) for one in balls if one != math.inf}) > 1:
        raise typer.BadParameter(
            f"--delta {delta}: give several radii, in the units of the columns, or several nearest:K, which "
            "are measured in standard deviations, but not both in one test."
        )
    norm = getattr(estimator, "norm_", None)
    if norm is None and any(isinstance(one, Nearest) for one in balls):
        norm = Weighted.standardised(encode_rows(estimator, rows.X))
    compared = [None if one == math.inf else one for one in balls]
    options_of_test: dict[str, Any] = {"n_permutations": permutations, "level": level, "random_state": seed}
    if hasattr(estimator, "conditional_test"):  # categories become points first
        result = estimator.conditional_test(rows.X, rows.y, compared, norm=norm, **options_of_test)
    else:
        result = conditional_test(rows.X, rows.y, estimator, compared, norm=norm, **options_of_test)
    names = ("pvalue", "statistic", "level", "reject", "valid", "verdict", "notes", "seen_share")
    found = {"model": model, "data": rows.table.source} | {name: getattr(result, name) for name in names}
    found["deltas"] = dict(zip(result.delta_names, result.delta_pvalues.tolist(), strict=True))
    found["balls"] = {
        "row": rows.number[result.centers],
        "delta": [result.delta_names[number] for number in result.ball_deltas],
        "size": result.ball_sizes,
        "statistic": result.ball_statistics,
        "pvalue": result.ball_pvalues,
    }
    print_result(found | {"settings": collect_settings(context)}, result.summary(), as_json)
    page = ["localw2", "report", model, data, *repeat_flags(context, *_ROWS)]
    name_next({"see where predictions and rows differ": page}, as_json)
    if fail_on_reject and result.reject:
        raise typer.Exit(FAILED)
