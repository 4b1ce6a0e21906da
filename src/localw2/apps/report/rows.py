"""The report on a regressor: what it says of observed rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array, as_array, check_count
from localw2._wording import as_html
from localw2.apps.report import figures, joint, parts
from localw2.apps.tables.inputs import Inputs
from localw2.estimators.scores import DRAWS, score_rows
from localw2.judging.explanations import column_importance
from localw2.judging.inputs import Input, is_whole, show_number
from localw2.judging.seen_rows import SeenRowsWarning
from localw2.models.sampler import encode_rows

if TYPE_CHECKING:
    from localw2.estimators.scores import ScoredRows

_PLACE_DRAWS = 4000  # at each of the chosen inputs
_GROUP_DRAWS = 50  # at every row, for groups of rows
_SHUFFLES = 3  # of each column, for its importance
_SHUFFLED_ROWS = 20_000  # that are scored in all for it: seconds
SHOWN_COLUMNS = 4  # columns with pictures of their own
_LETTERS = "ABCDEFGH"  # of chosen rows
COARSE, FINE = 9, 41  # points of a curve, to compare columns and to draw it


@final
@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Rows as a table and as numbers x (N, p), and what the model says of them."""

    model: Any
    table: Any
    inputs: Inputs
    x: Array
    scored: ScoredRows
    targets: list[str]
    random_state: Any

    def sample(self, table: Any, n_samples: int) -> Array:
        """Draws (S, N, d) at the rows of a table."""
        draws = self.model.sample(table, n_samples, random_state=self.random_state)
        return np.asarray(draws).reshape(*draws.shape[:2], -1)


def report_rows(
    model: Any,
    X: Any,
    y: Any,
    *,
    feature_names: Sequence[str] | None = None,
    target_names: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    source: str | None = None,
    n_samples: int = DRAWS,
    random_state: Any = 0,
) -> str:
    """The report as a string: see ``localw2.apps.report.report_html``."""
    n_samples = check_count(n_samples, "n_samples", 40, why="fewer draws do not show a distribution")
    if not hasattr(model, "sample") or not hasattr(model, "predict_interval"):
        raise ValueError(
            f"there is no report on a {type(model).__name__}; pass a fitted LocalW2Regressor, "
            "RandomCoefficientRegressor or LocalW2ODE."
        )
    if feature_names is None:
        feature_names = getattr(X, "columns", None)
    if target_names is None:
        target_names = getattr(y, "columns", [y.name] if getattr(y, "name", None) else None)
    judged = _judge(model, X, y, feature_names, target_names, n_samples, random_state)
    inputs, y = judged.inputs, judged.scored.y
    columns = [*zip(inputs.each, judged.x.T, strict=True)]
    columns += [(Input(name, "number"), values) for name, values in zip(judged.targets, y.T, strict=True)]
    body = [
        parts.lead(model, f"{len(y)} rows", source),
        parts.warn_of_training(model, encode_rows(judged.model, judged.table), y, "rows"),
        parts.verdict(judged.scored.diagnosis),
        parts.number_outputs(judged.targets),
        _tiles(judged),
        "<h2>Predictions and observations</h2>",
        *show_predictions(judged),
        "<h2>Column by column</h2>",
        *show_columns(judged),
        *show_importance(
            judged.model,
            judged.table,
            judged.scored.y if len(judged.targets) > 1 else judged.scored.y[:, 0],
            inputs,
            judged.random_state,
        ),
        "<h2>Distributions at selected rows</h2>",
        *show_distributions(judged),
        *show_joint(judged),
        "<h2>Can it be trusted?</h2>",
        *parts.trust(judged.scored.diagnosis, dict(enumerate(judged.targets))),
        parts.figure(
            figures.draw_ball_sizes(judged.scored.diagnosis.ball_sizes, judged.scored.diagnosis.delta),
            "balls",
            "Number of rows close to each row",
        ),
        "<h2>Data</h2>",
        *parts.columns_tables(columns),
        parts.left_out(inputs.left_out),
        "<h2>Model</h2>",
        *parts.model_parts(model, settings),
        "<h2>Citation and reproduction</h2>",
        parts.reproduce(source),
    ]
    return parts.page(f"{', '.join(judged.targets)} given {parts.join_names(inputs.names)}", body)


def _judge(
    model: Any, X: Any, y: Any, features: Any, targets: Any, n_samples: int, random_state: Any
) -> JudgedRows:
    inputs = Inputs(model, features)
    x = inputs.encode(X)
    outputs = as_array(y, "y")
    targets = parts.name_columns(targets, outputs[0].size, "y", "target_names")
    table: Any = X
    if not hasattr(X, "columns") or not hasattr(model, "feature_names_in_"):
        model, table = inputs.model, inputs.decode(x)  # scikit-learn would warn of arrays without names
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeenRowsWarning)  # the page says it
        scored = score_rows(model, table, outputs, inputs.table_names, n_samples, random_state)
    return JudgedRows(model, table, inputs, x, scored, targets, random_state)


def _tiles(judged: JudgedRows) -> str:
    """The numbers that people ask for first, output by output; ``localw2 evaluate`` prints the same ones."""
    items = []
    for name, score in judged.scored.list_scores(judged.targets).items():
        of = f" of {as_html(name)}" if len(judged.targets) > 1 else ""
        items += [
            (f"{score['rmse']:.4g}", f"root mean squared error{of}"),
            (f"{score['crps']:.4g}", f"CRPS{of} (lower is better)"),
            (f"{100 * score['coverage']:.1f} %", f"of rows inside their 90 % interval{of}"),
            (f"{score['width']:.4g}", f"mean width of the 90 % intervals{of}"),
        ]
    items.append(parts.describe_skill(judged.scored.diagnosis, "the inputs"))
    return parts.tiles(items)


def show_predictions(judged: JudgedRows) -> list[str]:
    """Observed values with predicted means and intervals, output by output."""
    found, rows = [], judged.scored
    for k, name in enumerate(judged.targets):
        picture = figures.draw_predictions(
            rows.y[:, k], rows.mean[:, k], rows.lower[:, k], rows.upper[:, k], name
        )
        found.append(parts.figure(picture, f"rows{k}", f"Observed {name}, predicted means and intervals"))
    return found


def show_columns(judged: JudgedRows) -> list[str]:
    """Pictures of the columns along which the predictions change most, the others at typical values."""
    inputs, x = judged.inputs, judged.x
    typical = inputs.find_typical(x)
    scale = judged.scored.y.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    grids = [choose_grid(inputs, x, j, COARSE) for j in range(len(inputs))]
    means = split_grids(
        np.asarray(inputs.model.predict(hold_typical(inputs, typical, dict(enumerate(grids))))), grids
    )
    changes = [float((np.ptp(mean, axis=0) / scale).max()) for mean in means]
    chosen = [int(j) for j in np.argsort(-np.array(changes), kind="stable")[:SHOWN_COLUMNS]]
    grids = [choose_grid(inputs, x, j, FINE) for j in chosen]
    places = hold_typical(inputs, typical, dict(zip(chosen, grids, strict=True)))
    means = split_grids(np.asarray(inputs.model.predict(places)), grids)
    quantiles = split_grids(np.moveaxis(inputs.model.predict_quantiles(places, figures.LEVELS), 0, -1), grids)
    draws = judged.sample(judged.table, _GROUP_DRAWS)
    values = [f"{each.name} = {each.show(v)}" for each, v in zip(inputs.each, typical, strict=True)]
    found = [
        f"<p>Left: observed and drawn values in groups of rows. Right: what the model says if only this "
        f"column changes and the others have typical values: {as_html(parts.join_names(values, 12))}.</p>"
    ]
    if len(chosen) < len(inputs):
        found.append(
            f'<p class="soft">Shown are the {len(chosen)} columns along which the mean changes most.</p>'
        )
    for i, j in enumerate(chosen):
        each = inputs.each[j]
        for k, name in enumerate(judged.targets):
            levels = quantiles[i].reshape(len(grids[i]), -1, len(figures.LEVELS))[:, k].T
            groups = (x[:, j], judged.scored.y[:, k], draws[..., k])
            picture = figures.draw_column(each, groups, (grids[i], means[i][:, k], levels), name)
            found.append(parts.figure(picture, f"column{j}of{k}", f"{name} by {each.name}"))
    return found


def show_importance(model: Any, table: Any, y: Array, inputs: Inputs, random_state: Any) -> list[str]:
    """Which columns matter for the law and for its mean, in few enough rows that it takes seconds."""
    used = [j for j, name in enumerate(inputs.table_names) if name not in inputs.left_out]
    if len(used) < 2 or len(y) < 2:
        return []
    most = int(np.clip(_SHUFFLED_ROWS // (_SHUFFLES * len(used)), 50, 300))
    found = column_importance(
        table,
        y,
        model,
        n_repeats=_SHUFFLES,
        max_rows=most,
        n_samples=_GROUP_DRAWS,
        random_state=random_state,
    )
    names = [inputs.table_names[j] for j in used]
    law, mean = found.law[used], found.mean[used]
    first = int(law.mean(1).argmax())
    of = ", averaged over the outputs" if y.ndim > 1 else ""
    text = (
        f"<p>How much worse the model predicts if the values of one column are shuffled: the CRPS sees the "
        f"whole distribution, the squared error its mean alone. Shuffling {as_html(names[first])} matters "
        f"most: the CRPS{of} grows from {found.crps:.3g} to {found.crps + law[first].mean():.3g} SDs of y."
    )
    if only := [names[j] for j in _find_shapers(law, mean)]:
        text += f" {as_html(parts.join_names(only, 6))} {'changes' if len(only) == 1 else 'change'} the "
        text += "spread or the shape, but hardly the mean."
    return [
        "<h2>Which columns drive the distribution</h2>",
        f"{text}</p>",
        parts.figure(figures.draw_importance(law, mean, names), "importance", "Importance by column"),
        f'<p class="soft">From {found.n_rows} of {len(y)} rows, {_SHUFFLES} shuffles of each column '
        f"(lines: one SD) and {_GROUP_DRAWS} draws per row. Columns that say the same share their "
        "importance.</p>",
    ]


def _find_shapers(law: Array, mean: Array) -> list[int]:
    """Columns that clearly matter for the law (p, n_repeats) but not for its mean, most important first."""
    size, height = law.mean(1), mean.mean(1)
    clear = (size > 4 * law.std(1)) & (size > 0.02 * size.max())
    idle = height < 0.02 * max(height.max(), 0.1)  # of the largest, or of a tenth of the variance
    return [int(j) for j in np.argsort(-size, kind="stable") if clear[j] and idle[j]]


def choose_grid(inputs: Inputs, x: Array, j: int, points: int) -> Array:
    """Values of a column from its lowest to its highest, or its most frequent categories."""
    column, each = x[:, j], inputs.each[j]
    seen = column[np.isfinite(column)]
    if len(seen) == 0:
        return np.full(1, np.nan)
    if each.kind == "category":
        codes, counts = np.unique(seen, return_counts=True)
        codes = np.sort(codes[np.argsort(-counts, kind="stable")[: figures.MOST_CATEGORIES]])
        return np.append(codes, [np.nan] if len(seen) < len(column) else [])
    grid = np.linspace(seen.min(), seen.max(), points)
    return np.unique(np.round(grid) if is_whole(seen) else grid)


def hold_typical(inputs: Inputs, typical: Array, grids: Mapping[int, Array]) -> Any:
    """A table in which one column after the other takes the values of its grid, the others typical ones."""
    rows = []
    for j, grid in grids.items():
        places = np.repeat(typical[None], len(grid), axis=0)
        places[:, j] = grid
        rows.append(places)
    return inputs.decode(np.concatenate(rows))


def split_grids(values: Array, grids: Sequence[Array]) -> list[Array]:
    """Values of stacked grids (sum of G, ...), grid by grid, (G, d) each."""
    ends = np.cumsum([len(grid) for grid in grids])[:-1]
    return [part.reshape(len(part), -1) for part in np.split(values, ends)]


def show_distributions(judged: JudgedRows) -> list[str]:
    """Draws at a few rows, with the observed rows nearest to each."""
    inputs, x, scored = judged.inputs, judged.x, judged.scored
    chosen, near = figures.choose_places(scored.mean[:, 0], _embed(judged))
    draws = inputs.model.sample(inputs.decode(x[chosen]), _PLACE_DRAWS, random_state=judged.random_state)
    draws = draws.reshape(_PLACE_DRAWS, len(chosen), -1)
    found = [
        f"<p>The model's draws at {len(chosen)} rows, from a low to a high predicted mean. Outline and ticks "
        f"show the {near.shape[1]} observed rows nearest to each. Since these rows have other inputs, their "
        "values are shifted by the difference between the predicted means.</p>"
    ]
    for k, name in enumerate(judged.targets):
        titles = [f"{_LETTERS[i]}: mean {show_number(scored.mean[row, k])}" for i, row in enumerate(chosen)]
        shifted = scored.y[near, k] - scored.mean[near, k] + scored.mean[chosen, k][:, None]
        picture = figures.draw_distributions(draws[..., k].T, shifted, titles, name)
        found.append(parts.figure(picture, f"laws{k}", f"Draws of {name} at {len(chosen)} inputs"))
    return [*found, _list_places(judged, chosen)]


def _embed(judged: JudgedRows) -> Array:
    """The rows where the distance is Euclidean."""
    inputs, x = judged.inputs, judged.x
    embedded: Array = inputs.choose_norm(x).embed(inputs.embed(x) - inputs.embed(x).mean(0))
    return embedded


def _list_places(judged: JudgedRows, chosen: Array) -> str:
    """The inputs and predicted means of chosen rows, by letter."""
    inputs = judged.inputs
    head = ["", *inputs.names, *(f"mean of {name}" for name in judged.targets)]
    lines = []
    for letter, row in zip(_LETTERS, chosen, strict=False):
        cells = [each.show(v) for each, v in zip(inputs.each, judged.x[row], strict=True)]
        lines.append([letter, *cells, *map(show_number, judged.scored.mean[row])])
    return parts.table(head, lines)


def show_joint(judged: JudgedRows) -> list[str]:
    """How several outputs depend on each other, in all rows and at a few."""
    scored, names = judged.scored, judged.targets
    if len(names) < 2:
        return []
    rows = joint.choose_rows(len(scored.y))
    table = judged.inputs.decode(judged.x[rows])
    draws = np.asarray(judged.inputs.model.sample(table, joint.DRAWS, random_state=judged.random_state))
    seen = joint.JointRows.of(scored.y[rows], draws, rows)

    def sample(places: Array) -> Array:
        at = judged.inputs.decode(judged.x[places])
        return np.asarray(judged.inputs.model.sample(at, joint.PLACE_DRAWS, random_state=judged.random_state))

    local, places = joint.describe_places(seen, names, _embed(judged), sample, scored.y, scored.mean)
    found = ["<h2>Dependence between outputs</h2>", *joint.describe_joint(seen, names), *local]
    return [*found, _list_places(judged, places)] if local else found
