"""The R code of docs/how-to/r.md, run by R with the Python of the tests; skipped where R is missing."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from localw2 import LocalW2Regressor, load

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "r.md").read_text(encoding="utf-8")
NEEDED = os.environ.get("LOCALW2_REQUIRE_R") == "1"

# What the test compares, written with the page's own names.
WRITE = """
write.csv(data.frame(X, Ozone = rows$Ozone), "rows.csv", row.names = FALSE)
write.csv(new, "new.csv", row.names = FALSE)
write.csv(data.frame(average, above, t(quantiles), t(draws)), "answers.csv", row.names = FALSE)
stopifnot(identical(again$predict(new), average))
"""


def why_not():
    """Why the page cannot be run here, or nothing."""
    if not (rscript := shutil.which("Rscript")):
        return "there is no Rscript"
    probe = [rscript, "-e", 'cat(as.character(packageVersion("reticulate")))']
    found = subprocess.run(probe, capture_output=True, text=True)
    if found.returncode:
        return "R has no package reticulate"
    version = tuple(int(part) for part in found.stdout.split(".")[:2])
    numpy = tuple(int(part) for part in np.__version__.split(".")[:2])
    if (numpy >= (2, 0) and version < (1, 38)) or (numpy >= (2, 1) and version < (1, 39)):
        return f"reticulate {found.stdout} is too old for numpy {np.__version__}"
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where R has run the page."""
    if reason := why_not():
        pytest.fail(reason) if NEEDED else pytest.skip(reason)
    folder = tmp_path_factory.mktemp("r")
    blocks = re.findall(r"^```r\n(.*?)^```", PAGE, re.M | re.S)[1:]  # the first one installs
    assert len(blocks) == 4
    (folder / "page.R").write_text("\n".join([*blocks, WRITE]), encoding="utf-8")
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "RETICULATE_PYTHON": sys.executable, "PYTHONPATH": paths}
    done = subprocess.run(
        ["Rscript", "page.R"], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_answers_are_those_of_python(folder):
    """The same table fitted in Python, with its missing values and R's factor as a categorical column."""
    rows, new = (
        pd.read_csv(folder / f"{name}.csv", dtype={"Month": str}).astype({"Month": "category"})
        for name in ("rows", "new")
    )
    assert rows.isna().sum().to_dict() == {"Solar.R": 5, "Wind": 0, "Temp": 0, "Month": 0, "Ozone": 0}
    model = LocalW2Regressor(random_state=0).fit(rows.drop(columns="Ozone"), rows["Ozone"])
    expected = [
        model.predict(new),
        model.predict_distribution(new).sf(60),
        *model.predict_quantiles(new, [0.05, 0.5, 0.95]),
        *model.sample(new, n_samples=1000, random_state=0),
    ]
    answers = pd.read_csv(folder / "answers.csv")
    assert answers.shape == (36, 1005)
    np.testing.assert_allclose(answers.to_numpy().T, expected, rtol=1e-12, atol=1e-12)


def test_it_draws_and_stores(folder):
    picture = (folder / "Rplots.pdf").read_bytes()
    assert picture.startswith(b"%PDF")
    assert re.findall(rb"/Type /Pages.*?/Count (\d+)", picture, re.S) == [b"2"]
    assert load(folder / "ozone.localw2").feature_names_in_.tolist() == ["Solar.R", "Wind", "Temp", "Month"]
