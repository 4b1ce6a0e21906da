"""``localw2 reproduce`` and ``demo``: the paper's experiments, and a first look without data of one's own."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from localw2._wording import aligned
from localw2.apps.cli.config import keep_settings
from localw2.apps.cli.options import Json, MaxEpochs, Seed
from localw2.apps.cli.running import INTERRUPTED, fail, give, note, told

EXPERIMENTS = ("linear", "nonlinear", "harder", "architecture", "concrete", "dynamics")
REPOSITORY = "the repository of localw2 (see its page on PyPI, under Links)"
_TEST_INPUTS = [-0.4, -0.2, 0.2, 0.4]


def tell_version(asked: bool) -> None:
    """Print the version and end, before anything else is looked at."""
    if asked:
        from localw2 import __version__

        typer.echo(__version__)
        raise typer.Exit


def show_version(
    version: Annotated[
        bool,
        typer.Option("--version", callback=tell_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """The whole distribution of y at every x, learned from a table."""


@told
def reproduce(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))],
    quick: Annotated[bool, typer.Option("--quick", help="Tiny settings, for a look.")] = False,
    repeats: Annotated[int | None, typer.Option(min=1, help="Training sets of each cell.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells at a time.")] = None,
    out: Annotated[str | None, typer.Option(metavar="FOLDER", help="For results/ and figures/.")] = None,
    as_json: Json = False,
) -> None:
    """Run an experiment of the paper, from a checkout of the repository."""
    if experiment not in EXPERIMENTS:
        near = difflib.get_close_matches(experiment, EXPERIMENTS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(EXPERIMENTS)}."
        raise typer.BadParameter(f"{experiment!r} is no experiment. {hint}")
    script = found_script(f"{experiment}.py")
    options = {"--repeats": repeats, "--jobs": jobs, "--out": out}
    flags = [word for flag, value in options.items() if value is not None for word in (flag, str(value))]
    command = [sys.executable, str(script), *(["--quick"] if quick else []), *flags]
    folder = Path(out) if out is not None else script.parent / ("quick" if quick else "")
    before = written_in(folder)
    # Where a machine reads standard output, the words of the script are for people.
    code = subprocess.run(command, check=False, stdout=sys.stderr.fileno() if as_json else None).returncode
    if code in (-2, INTERRUPTED):
        raise KeyboardInterrupt
    if code:
        fail(f"{script.name} ended with exit code {code}.", as_json)
    files = sorted(str(path) for path, when in written_in(folder).items() if before.get(path) != when)
    said = f"{folder}: {len(files)} files written"
    give({"experiment": experiment, "folder": str(folder), "files": files}, said, as_json)


def written_in(folder: Path) -> dict[Path, int]:
    """The results and figures in a folder, and when each was written."""
    files = (path for name in ("results", "figures") for path in (folder / name).rglob("*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in files}


def found_script(name: str) -> Path:
    """The script in ``paper/`` of the working directory, or of the checkout that the package is run from."""
    for folder in (Path.cwd(), *Path(__file__).resolve().parents):
        script = folder / "paper" / name
        if script.is_file() and (folder / "paper" / "records.py").is_file():
            return script
    raise ValueError(
        f"paper/{name} is not here: the experiments come with {REPOSITORY}, not with the installed package. "
        "Clone it, install it with `pip install -e '.[paper]'`, and run this command in its folder."
    )


@told
def demo(
    context: typer.Context,
    out: Annotated[
        str, typer.Option(metavar="FOLDER", help="Where to write the demo's files.")
    ] = "localw2-demo",
    rows: Annotated[int, typer.Option(min=50, help="Rows to learn from.")] = 1000,
    max_epochs: MaxEpochs = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Make a table of the paper's nonlinear example, fit it, and compare with the truth."""
    import numpy as np

    from localw2 import LocalW2Regressor
    from localw2.apps.cli.model_files import save_model
    from localw2.apps.tables.tables import write_table
    from localw2.datasets import Nonlinear

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    truth = Nonlinear()
    x, y = truth.sample(rows + 200, random_state=seed)
    x, y = np.asarray(x).reshape(len(y), -1)[:, 0], np.asarray(y).reshape(-1)
    for name, part in (("data.csv", slice(rows)), ("new.csv", slice(rows, None))):
        write_table(folder / name, {"x": x[part], "y": y[part]})
    note(f"{rows} rows of y = w1 (1 - exp(-w2 x)) + 5, where w1 and w2 are random and nobody observed them.")
    model = LocalW2Regressor(random_state=seed, verbose=True)
    model.set_params(**({} if max_epochs is None else {"max_epochs": max_epochs}))
    model.fit(x[:rows, None], y[:rows])
    model.set_params(verbose=False)
    path = folder / "model.localw2"
    save_model(model, str(path), features=["x"], targets=["y"])
    settings = keep_settings(context, str(path), {"rows": rows, "loss": model.fit_.losses[-1]})
    test = np.array(_TEST_INPUTS)[:, None]
    mean, std = model.predict(test, return_std=True)
    true_mean, true_std = (np.asarray(v).reshape(-1) for v in (truth.mean(test), truth.std(test)))
    table = [["x", "mean", "true mean", "SD", "true SD"]]
    for values in zip(test[:, 0], mean, true_mean, std, true_std, strict=True):
        table.append([f"{value:.3g}" for value in values])
    found = {
        "folder": out,
        "settings": settings,
        "x": test[:, 0],
        "mean": mean,
        "true_mean": true_mean,
        "std": std,
        "true_std": true_std,
    }
    steps = [f"localw2 evaluate {path} {folder / 'new.csv'}", f"localw2 report {path} {folder / 'new.csv'}"]
    steps.append(f"localw2 explore {path} --data {folder / 'new.csv'}")
    give(found, "\n".join([aligned(table), "", "Next:", *(f"  {step}" for step in steps)]), as_json)
