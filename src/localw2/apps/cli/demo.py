"""``localw2 demo``: a first look, on a real table that comes with the package."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localw2._wording import align
from localw2.apps.cli.config import keep_settings, settings_path
from localw2.apps.cli.fit import split_rows
from localw2.apps.cli.options import Json, Seed
from localw2.apps.cli.outputs import is_settings_file
from localw2.apps.cli.running import can_explore, name_next, note, print_result, report_errors, show_page

if TYPE_CHECKING:
    from localw2._validation import Array

_TABLE, _HELD, _MODEL = "penguins.csv", "held-out.csv", "model.localw2"
_PICTURE, _PAGE = "demo.png", "report.html"
_SHARE, _COVERAGE, _HEAVY = 0.25, 0.9, 5000  # held out; of the intervals; grams
_TARGET = "body_mass_g"


@report_errors
def demo(
    context: typer.Context,
    out: Annotated[
        str, typer.Option(metavar="FOLDER", help="Folder to write the demo's files to.")
    ] = "localw2-demo",
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the page in a browser.")] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Predict the body mass of penguins, check it on penguins held out, and show the result as a page.

    It does what `localw2 fit penguins.csv --target body_mass_g --hold-out 0.25 --out penguins.localw2`
    does, and opens the page that `localw2 report` writes if somebody is there to see it.
    """
    folder = Path(out)
    check_folder(folder)
    note("342 penguins: predict the body mass from species, island, sex, bill, flipper and year.")
    from localw2 import LocalW2Regressor
    from localw2.apps.cli.model_files import save_model
    from localw2.apps.report import write_report
    from localw2.apps.tables.tables import write_table
    from localw2.datasets import load_penguins

    X, mass = load_penguins()
    table = X.assign(**{_TARGET: mass})
    rows, held = split_rows(len(table), None, _SHARE, seed)
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder / _TABLE, table)
    write_table(folder / _HELD, table.iloc[held])
    note(f"{len(rows)} of them to learn from, {len(held)} held out to check the predictions.")
    start = time.perf_counter()
    model = LocalW2Regressor(random_state=seed, verbose=True).fit(X.iloc[rows], mass.iloc[rows])
    seconds = time.perf_counter() - start
    model.set_params(verbose=False)
    path = str(folder / _MODEL)
    save_model(model, path, features=list(X), targets=[_TARGET])

    new, seen = X.iloc[held], mass.iloc[held].to_numpy()
    predicted = _Predictions(model, new)
    scores = predicted.score(seen, mass.iloc[rows].to_numpy())
    lines = [f"Fitted in {seconds:.1f} s.", "", *describe_scores(scores), ""]
    lines += ["Three of them:", align(predicted.tabulate(new, seen))]
    files = [_TABLE, _HELD, _MODEL]
    try:
        _draw(predicted, new, seen, folder / _PICTURE)
        about = {"feature_names": list(X), "target_names": [_TARGET], "source": _HELD}
        write_report(folder / _PAGE, model, new, seen, **about)
    except ImportError as error:  # without the extra for plots
        note(f"no picture and no page: {error}")
    else:
        files += [_PICTURE, _PAGE]
        lines += ["", f"Picture: {folder / _PICTURE}", f"Page:    {folder / _PAGE}"]
    settings = keep_settings(context, path, {"rows": len(rows), "law": model.weights_} | scores)
    print_result({"folder": out, "files": files, "settings": settings} | scores, "\n".join(lines), as_json)
    if as_json:
        return
    if _PAGE in files and not no_open:
        show_page(folder / _PAGE)
    explore = ["localw2", "explore", path, "--data", folder / _HELD]
    own = ["localw2", "fit", "YOUR.csv", "--target", "COLUMN", "--hold-out", 0.2, "--out", "my.localw2"]
    first = {"change a penguin with sliders, in a browser": explore} if can_explore() else {}
    name_next(first | {"learn from your own table": own})


def check_folder(folder: Path) -> None:
    """Raise if the files of the demo would replace those of somebody else."""
    there = [name for name in (_TABLE, _HELD, _MODEL, _PICTURE, _PAGE) if (folder / name).exists()]
    if there and not is_settings_file(settings_path(folder / _MODEL)):
        raise typer.BadParameter(
            f"{folder} has a file {there[0]}, which the demo would replace. Name another folder by --out."
        )


class _Predictions:
    """What a model says of n rows: the distribution, its mean and its interval, all (n,)."""

    def __init__(self, model: Any, X: Any) -> None:
        self.law = model.predict_distribution(X)
        self.mean: Array = model.predict(X)
        self.lower, self.upper = model.predict_interval(X, coverage=_COVERAGE)

    def score(self, y: Array, known: Array) -> dict[str, float]:
        """How good they are beside what one would say of every row from the outputs ``known`` alone."""
        import numpy as np
        from scipy.stats import binom

        usual = binom.interval(0.95, len(y), _COVERAGE)
        low, high = np.quantile(known, [(1 - _COVERAGE) / 2, (1 + _COVERAGE) / 2])
        inside = (self.lower <= y) & (y <= self.upper)
        return {
            "held_out": len(y),
            "mean_error": float(np.abs(self.mean - y).mean()),
            "mean_error_without_inputs": float(np.abs(known.mean() - y).mean()),
            "inside": int(inside.sum()),
            "usual_low": int(usual[0]),
            "usual_high": int(usual[1]),
            "width": float((self.upper - self.lower).mean()),
            "width_without_inputs": float(high - low),
        }

    def choose(self) -> list[int]:
        """A light row, one in the middle and a heavy one, by the predicted mean."""
        import numpy as np

        order = np.argsort(self.mean, kind="stable")
        return [int(order[round(share * (len(order) - 1))]) for share in (0.1, 0.5, 0.9)]

    def tabulate(self, X: Any, y: Array) -> list[list[str]]:
        """The chosen rows in words."""
        heavy = self.law.sf(_HEAVY)
        lines = [["", "predicted", "90 % interval", f"P(> {_HEAVY} g)", "observed"]]
        for i in self.choose():
            interval = f"{self.lower[i]:.0f} to {self.upper[i]:.0f} g"
            found = [f"{self.mean[i]:.0f} g", interval, f"{100 * heavy[i]:.0f} %", f"{y[i]:.0f} g"]
            lines.append([f"  {name_penguin(X, i)}", *found])
        return lines


def describe_scores(scores: dict[str, float]) -> list[str]:
    """Put the scores into words."""
    n, inside = scores["held_out"], scores["inside"]
    return [
        f"On the {n} penguins that were held out:",
        f"  The prediction is off by {scores['mean_error']:.0f} g on average.",
        f"  The mean of all penguins would be off by {scores['mean_error_without_inputs']:.0f} g.",
        f"  90 % prediction intervals contain {inside} of {n} masses ({100 * inside / n:.0f} %);",
        f"  with exact intervals, {scores['usual_low']} to {scores['usual_high']} would be typical.",
        f"  They are {scores['width']:.0f} g wide on average. One interval for all penguins, without",
        f"  looking at the other columns, would be {scores['width_without_inputs']:.0f} g wide.",
    ]


def name_penguin(X: Any, i: int) -> str:
    """A row in words."""
    return f"{X['species'].iloc[i]}, {X['sex'].iloc[i]}"


def _draw(predicted: _Predictions, X: Any, y: Array, path: Path) -> None:
    """Intervals of all rows beside what was observed, and the predicted distributions of three."""
    import io

    import numpy as np

    from localw2.apps.report.figures import draw_intervals, new_figure
    from localw2.storage.atomic import replace_file

    figure, axes = new_figure(9.5, 3.9, 1, 2)
    left, right = axes[0]
    draw_intervals(left, y, predicted.mean, predicted.lower, predicted.upper, "body mass [g]")
    left.set_title(f"{len(y)} penguins that were held out", fontsize=10.5)
    grid = np.linspace(2500, 6500, 401)
    above = predicted.law.sf(grid[:, None])
    for i in predicted.choose():
        (line,) = right.plot(grid, 100 * above[:, i], lw=1.8, label=name_penguin(X, i))
        right.plot(y[i], 100 * predicted.law.sf(y[i])[i], "o", ms=5, color=line.get_color(), clip_on=False)
    right.plot([], [], "o", ms=5, color="#444a54", label="its observed mass")
    right.set(xlabel="v [g]", ylabel="P(body mass > v) [%]", ylim=(0, 125), yticks=range(0, 101, 20))
    right.set_title("Predicted distributions of three of them", fontsize=10.5)
    right.legend(frameon=False, fontsize=9, ncols=2)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    out = io.BytesIO()
    figure.savefig(out, dpi=120)
    replace_file(path, out.getvalue())
