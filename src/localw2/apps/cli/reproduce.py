"""``localw2 reproduce``: the experiments of the paper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from localw2._wording import suggest
from localw2.apps.cli.options import Json
from localw2.apps.cli.running import INTERRUPTED, fail, print_result, report_errors

EXPERIMENTS = ("linear", "nonlinear", "harder", "architecture", "concrete", "dynamics")
REPOSITORY = "the repository of localw2 (linked from its page on PyPI)"


@report_errors
def reproduce(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))],
    quick: Annotated[bool, typer.Option("--quick", help="Use tiny settings, for a first look.")] = False,
    repeats: Annotated[int | None, typer.Option(min=1, help="Training sets per cell.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells computed at the same time.")] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder for results/ and figures/.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run an experiment of the paper, from a checkout of the repository."""
    if experiment not in EXPERIMENTS:
        hint = suggest(experiment, EXPERIMENTS, "Known are")
        raise typer.BadParameter(f"{experiment!r} is not an experiment. {hint}")
    script = find_script(f"{experiment}.py")
    options = {"--repeats": repeats, "--jobs": jobs, "--out": out}
    flags = [word for flag, value in options.items() if value is not None for word in (flag, str(value))]
    command = [sys.executable, str(script), *(["--quick"] if quick else []), *flags]
    folder = Path(out) if out is not None else script.parent / ("quick" if quick else "")
    before = list_results(folder)
    # With --json, standard output is for one object; what the script prints goes to standard error.
    code = subprocess.run(command, check=False, stdout=sys.stderr.fileno() if as_json else None).returncode
    if code in (-2, INTERRUPTED):
        raise KeyboardInterrupt
    if code:
        fail(f"{script.name} ended with exit code {code}.", as_json)
    files = sorted(str(path) for path, when in list_results(folder).items() if before.get(path) != when)
    found = {"experiment": experiment, "folder": str(folder), "files": files}
    print_result(found, f"{folder}: {len(files)} files written", as_json)


def list_results(folder: Path) -> dict[Path, int]:
    """List the results and figures in a folder, with the time at which each was written."""
    files = (path for name in ("results", "figures") for path in (folder / name).rglob("*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in files}


def find_script(name: str) -> Path:
    """Find a script in ``paper/``, of the working directory or of the checkout that the package runs from."""
    for folder in (Path.cwd(), *Path(__file__).resolve().parents):
        script = folder / "paper" / name
        if script.is_file() and (folder / "paper" / "records.py").is_file():
            return script
    raise ValueError(
        f"paper/{name} was not found: the experiments come with {REPOSITORY}, not with the installed "
        "package. Clone it, install it with `pip install -e '.[paper]'`, and run this command in its folder."
    )
