"""The report on numbers and categories together: probabilities beside classes, and how both go together."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array, check_count
from localw2._wording import as_html
from localw2.apps.report import classes, parts, rows
from localw2.apps.tables.inputs import Inputs
from localw2.estimators import cells
from localw2.estimators.mixed.views import NumberOutputs, PointOutputs
from localw2.estimators.scores import DRAWS, MixedScores, score_mixed
from localw2.judging.inputs import Input
from localw2.judging.seen_rows import SeenRowsWarning
from localw2.models.sampler import encode_rows

if TYPE_CHECKING:
    from localw2.estimators.mixed.regressor import LocalW2MixedRegressor

_PAIR_DRAWS = 20  # at every row, for classes and numbers together
_SHOWN_PAIRS = 4


@final
@dataclass(frozen=True, eq=False)
class _Judged:
    """Rows, what was seen there and what the model says; ``inputs.model`` takes the tables of ``inputs``."""

    inputs: Inputs
    table: Any
    x: Array
    numbers: Array
    codes: Array
    scored: MixedScores
    probabilities: dict[str, Array]
    names: dict[str, list[str]]
    random_state: Any

    @property
    def model(self) -> LocalW2MixedRegressor:
        """The estimator."""
        found: LocalW2MixedRegressor = self.inputs.model
        return found


def report_mixed(
    model: LocalW2MixedRegressor,
    X: Any,
    Y: Any,
    *,
    feature_names: Sequence[str] | None = None,
    target_names: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    source: str | None = None,
    n_samples: int = DRAWS,
    random_state: Any = 0,
) -> str:
    """The report as a string: see ``localw2.apps.report.report_html``. The names of targets are the fit's."""
    n_samples = check_count(n_samples, "n_samples", 40, why="fewer draws do not show a distribution")
    if feature_names is None:
        feature_names = getattr(X, "columns", None)
    judged = _judge(model, X, Y, feature_names, n_samples, random_state)
    coding, inputs = model.coding_, judged.inputs
    points = coding.embed(judged.numbers, judged.codes)
    numeric = _judge_numbers(judged)
    body = [
        parts.lead(model, f"{len(points)} rows", source),
        parts.warn_of_training(model, encode_rows(judged.model, judged.table), points, "rows"),
        parts.verdict(judged.scored.diagnosis),
        _tiles(judged),
        "<h2>Probabilities and observed classes</h2>",
        *_show_calibration(judged),
        *_show_along_columns(judged),
        *_show_together(judged),
        *rows.show_importance(PointOutputs(judged.model), judged.table, points, inputs, random_state),
        *([] if numeric is None else _show_numbers(numeric)),
        "<h2>Data</h2>",
        *parts.columns_tables(_list_columns(judged)),
        parts.left_out(inputs.left_out),
        "<h2>Model</h2>",
        *parts.model_parts(model, settings),
        "<h2>Citation and reproduction</h2>",
        parts.reproduce(source),
    ]
    return parts.page(f"{', '.join(coding.names)} given {parts.join_names(inputs.names)}", body)


def _judge(
    model: LocalW2MixedRegressor, X: Any, Y: Any, features: Any, n_samples: int, random_state: Any
) -> _Judged:
    Y = cells.as_pandas(Y)
    inputs = Inputs(model, features)
    x, coding = inputs.encode(X), model.coding_
    numbers, codes = coding.read(Y)
    if len(numbers) != len(x):
        raise ValueError(f"X has {len(x)} rows and Y has {len(numbers)}; every row of X needs its outputs.")
    table = inputs.decode(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeenRowsWarning)  # the page says it
        scored = score_mixed(inputs.model, table, Y, inputs.table_names, n_samples, random_state)
    found = model.law_.column_probabilities(inputs.model.standardise(table))
    words = {coding.names[j]: [str(word) for word in each] for j, each in coding.classes.items()}
    probabilities = dict(zip(words, found, strict=True))
    return _Judged(inputs, table, x, numbers, codes, scored, probabilities, words, random_state)


def _judge_numbers(judged: _Judged) -> rows.JudgedRows | None:
    """The numbers alone, as the report on a regressor takes them."""
    if judged.scored.numbers is None:
        return None
    view = NumberOutputs(judged.model)
    inputs = Inputs(judged.model, judged.inputs.table_names)
    inputs.model = view
    return rows.JudgedRows(
        view, judged.table, inputs, judged.x, judged.scored.numbers, view.names, judged.random_state
    )


def _tiles(judged: _Judged) -> str:
    """The numbers that people ask for first; ``localw2 evaluate`` prints the same ones."""
    names = judged.model.coding_.names
    items = []
    for name, score in judged.scored.list_scores(names).items():
        of = f" of {as_html(name)}" if len(names) > 1 else ""
        if "log_loss" in score:
            items += [
                (f"{score['log_loss']:.3f}", f"log loss{of} (lower is better)"),
                (f"{100 * score['accuracy']:.1f} %", f"of rows have the most probable class{of}"),
                (
                    f"{score['calibration_error']:.3f}",
                    f"calibration error{of}; {score['chance']:.3f} by chance",
                ),
            ]
        else:
            items += [
                (f"{score['crps']:.4g}", f"CRPS{of} (lower is better)"),
                (f"{100 * score['coverage']:.1f} %", f"of rows inside their 90 % interval{of}"),
            ]
    if len(names) > 1:
        items.append((f"{judged.scored.energy:.3g}", "energy score of all outputs, in SDs (lower is better)"))
    return parts.tiles(items)


def _show_calibration(judged: _Judged) -> list[str]:
    found = [
        "<p>Left: rows in groups by the probability of a class, and the share of the group that has it; on "
        "the diagonal both agree, and the grey band holds about nine of ten points of right probabilities. "
        "Right: the mean probability of every class in the rows of each observed one.</p>"
    ]
    for k, (name, p) in enumerate(judged.probabilities.items()):
        picture = classes.draw_calibration(judged.codes[:, k], p, judged.names[name], name)
        label = f"Calibration of the probabilities of {name}, and mean probabilities by observed class"
        found.append(parts.figure(picture, f"classes{k}", label))
    return found


def _show_along_columns(judged: _Judged) -> list[str]:
    """Pictures of the columns along which the probabilities change most, the others at typical values."""
    inputs, x = judged.inputs, judged.x
    typical = inputs.find_typical(x)
    grids = [rows.choose_grid(inputs, x, j, rows.COARSE) for j in range(len(inputs))]
    coarse = _predict(judged, rows.hold_typical(inputs, typical, dict(enumerate(grids))))
    changes = np.zeros(len(inputs))
    for p in coarse:
        changes += [float(np.ptp(part, axis=0).max()) for part in rows.split_grids(p, grids)]
    chosen = [int(j) for j in np.argsort(-changes, kind="stable")[: rows.SHOWN_COLUMNS]]
    grids = [rows.choose_grid(inputs, x, j, rows.FINE) for j in chosen]
    fine = _predict(judged, rows.hold_typical(inputs, typical, dict(zip(chosen, grids, strict=True))))
    values = [f"{each.name} = {each.show(v)}" for each, v in zip(inputs.each, typical, strict=True)]
    found = [
        "<h2>Classes, column by column</h2>",
        "<p>Left: the mean probabilities of the classes (bars, one on top of the other) and observed shares "
        "(dots, where bars should end) in groups of rows. Right: the probabilities if only this column "
        "changes and the others have typical values: "
        f"{as_html(parts.join_names(values, 12))}.</p>",
    ]
    if len(chosen) < len(inputs):
        found.append(f'<p class="soft">Shown are the {len(chosen)} columns along which they change most.</p>')
    for k, (name, p) in enumerate(judged.probabilities.items()):
        along = rows.split_grids(fine[k], grids)
        for i, j in enumerate(chosen):
            each, seen = inputs.each[j], (x[:, j], judged.codes[:, k], p)
            picture = classes.draw_along(each, seen, (grids[i], along[i]), judged.names[name], name)
            found.append(parts.figure(picture, f"class{k}along{j}", f"{name} by {each.name}"))
    return found


def _predict(judged: _Judged, table: Any) -> list[Array]:
    """The probabilities (N, K_j) of each category at the rows of a table."""
    return judged.model.law_.column_probabilities(judged.model.standardise(table))


def _show_together(judged: _Judged) -> list[str]:
    """How classes and numbers, or classes and classes, go together in rows and in draws."""
    coding = judged.model.coding_
    if len(coding.names) < 2:
        return []
    numbers, codes = judged.model.draw(judged.table, _PAIR_DRAWS, judged.random_state)
    found = [
        "<h2>Outputs together</h2>",
        "<p>All rows as they were observed, beside draws at the same rows. Numbers are shown class by class: "
        "thin lines from 5 to 95 %, thick ones from 25 to 75 %, ticks at the median.</p>",
    ]
    names = [coding.names[j] for j in coding.numeric]
    shown = 0
    for k, category in enumerate(judged.names):
        for i, name in enumerate(names):
            if shown == _SHOWN_PAIRS:
                break
            seen = judged.codes[:, k], judged.numbers[:, i]
            drawn = codes[..., k].ravel(), numbers[..., i].ravel()
            picture = classes.draw_by_class(seen, drawn, judged.names[category], category, name)
            found.append(parts.figure(picture, f"pair{k}of{i}", f"{name} by {category}, rows and draws"))
            shown += 1
    if len(judged.names) > 1:
        found.append(_list_combinations(judged, codes))
    return found


def _list_combinations(judged: _Judged, codes: Array, most: int = 10) -> str:
    """The shares of the most frequent combinations of classes, in rows and in tables of draws."""
    words = list(judged.names.values())
    kinds, counts = np.unique(judged.codes, axis=0, return_counts=True)
    lines = []
    for place in np.argsort(-counts, kind="stable")[:most]:
        drawn = 100 * (codes == kinds[place]).all(-1).mean(1)
        named = [words[k][code][:40] for k, code in enumerate(kinds[place])]
        share = f"{100 * counts[place] / len(judged.codes):.1f} %"
        lines.append([*named, share, f"{drawn.mean():.1f} ± {drawn.std(ddof=1):.1f} %"])
    text = f'<p class="soft">± is the SD of {len(codes)} tables with one draw per row.</p>'
    return parts.table([*judged.names, "of rows", "of draws"], lines) + text


def _show_numbers(judged: rows.JudgedRows) -> list[str]:
    """The numbers alone, as in the report on a regressor."""
    return [
        "<h2>Numbers: predictions and observations</h2>",
        *rows.show_predictions(judged),
        "<h2>Numbers, column by column</h2>",
        *rows.show_columns(judged),
        "<h2>Distributions of numbers at selected rows</h2>",
        *rows.show_distributions(judged),
        *rows.show_joint(judged),
        "<h2>Can the numbers be trusted?</h2>",
        *parts.trust(judged.scored.diagnosis, dict(enumerate(judged.targets))),
    ]


def _list_columns(judged: _Judged) -> list[tuple[Input, Array]]:
    """The inputs and the outputs, for the table of columns."""
    coding = judged.model.coding_
    found = [*zip(judged.inputs.each, judged.x.T, strict=True)]
    numeric, labels = iter(judged.numbers.T), iter(judged.codes.T.astype(np.float64))
    for j, name in enumerate(coding.names):
        if j in coding.classes:
            found.append((Input(name, "category", tuple(judged.names[name])), next(labels)))
        else:
            found.append((Input(name, "number"), next(numeric)))
    return found
