"""``localw2 demo``: a first look without data of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from localw2._wording import align
from localw2.apps.cli.config import keep_settings, settings_path
from localw2.apps.cli.options import Json, Seed
from localw2.apps.cli.outputs import is_settings_file
from localw2.apps.cli.running import note, print_result, report_errors

_FILES = ("data.csv", "new.csv", "model.localw2")
_TEST_INPUTS = [-0.4, -0.2, 0.2, 0.4]


@report_errors
def demo(
    context: typer.Context,
    out: Annotated[
        str, typer.Option(metavar="FOLDER", help="Folder to write the demo's files to.")
    ] = "localw2-demo",
    rows: Annotated[int, typer.Option(min=50, help="Number of training rows.")] = 1000,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Fit by the network alone, so many epochs.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Simulate the paper's nonlinear example, fit it, and compare the fit with the truth."""
    import numpy as np
    import pandas as pd

    from localw2 import LocalW2Regressor, Network
    from localw2.apps.cli.model_files import save_model
    from localw2.apps.tables.tables import write_table
    from localw2.datasets import Nonlinear

    folder = Path(out)
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    truth = Nonlinear()
    x, y = (np.asarray(v).reshape(-1) for v in truth.sample(rows + 200, random_state=seed))
    table = pd.DataFrame({"x": x, "y": y})
    write_table(folder / "data.csv", table[:rows])
    write_table(folder / "new.csv", table[rows:])
    note(f"{rows} rows of y = w1 (1 - exp(-w2 x)) + 5, where w1 and w2 are random and unobserved.")
    law = "auto" if epochs is None else Network(epochs=epochs)
    model = LocalW2Regressor(law, random_state=seed, verbose=True)
    model.fit(table[["x"]][:rows], table["y"][:rows])
    model.set_params(verbose=False)
    path = folder / "model.localw2"
    save_model(model, str(path), features=["x"], targets=["y"])
    settings = keep_settings(context, str(path), {"rows": rows, "law": model.weights_})
    test = pd.DataFrame({"x": _TEST_INPUTS})
    mean, std = model.predict(test, return_std=True)
    inputs = test.to_numpy()
    found = {
        "x": inputs[:, 0],
        "mean": mean,
        "true_mean": np.asarray(truth.mean(inputs)).reshape(-1),
        "std": std,
        "true_std": np.asarray(truth.std(inputs)).reshape(-1),
    }
    lines = [["x", "mean", "true mean", "SD", "true SD"]]
    lines += [[f"{value:.3g}" for value in values] for values in zip(*found.values(), strict=True)]
    steps = [f"localw2 evaluate {path} {folder / 'new.csv'}", f"localw2 report {path} {folder / 'new.csv'}"]
    steps.append(f"localw2 explore {path} --data {folder / 'new.csv'}")
    text = "\n".join([align(lines), "", "Next:", *(f"  {step}" for step in steps)])
    print_result({"folder": out, "settings": settings} | found, text, as_json)


def check_folder(folder: Path) -> None:
    """Raise if the files of the demo would replace those of somebody else."""
    there = [name for name in _FILES if (folder / name).exists()]
    if there and not is_settings_file(settings_path(folder / _FILES[-1])):
        raise typer.BadParameter(
            f"{folder} has a file {there[0]}, which the demo would replace. Name another folder by --out."
        )
