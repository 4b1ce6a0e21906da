"""Equations from the command line: functions of a file of the user's own, laws of parameters, doses."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import typer

from localw2._wording import suggest


def load_function(text: str, option: str) -> Callable[..., Any]:
    """Run a Python file that the user names, ``FILE.py:function``, and take a function from it."""
    path, mark, name = text.rpartition(":")
    if not mark or not name.isidentifier() or not path.endswith(".py"):
        raise typer.BadParameter(f"{option} {text!r} is not FILE.py:function, such as model.py:absorption.")
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(2, "no such file", str(file))
    spec = importlib.util.spec_from_file_location(f"localw2_{option.strip('-')}_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file can raise anything
        raise ValueError(f"{path} could not be run: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(f"{path} has no function {name!r}. {suggest(name, known, 'It has')}")
    function: Callable[..., Any] = found
    return function


@final
class States:
    """The states with these numbers, as ``observe`` of an estimator."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = list(numbers)

    def __call__(self, y: Any) -> Any:
        """The observed part (..., p) of states (..., d)."""
        if max(self.numbers) >= y.shape[-1]:
            raise ValueError(
                f"--observe {max(self.numbers)} does not exist: the {y.shape[-1]} states are numbered from 0."
            )
        return y[..., self.numbers]


def parse_observe(text: str | None) -> Any:
    """Parse ``--observe``: numbers of states, or ``FILE.py:function``.

    >>> parse_observe("1").numbers, parse_observe(None)
    ([1], None)
    """
    if text is None:
        return None
    if ".py" in text:
        return load_function(text, "--observe")
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0:
        raise typer.BadParameter(
            f"--observe {text!r} is neither FILE.py:function nor numbers of states, 0,1."
        )
    return States(numbers)


def parse_parameters(text: str | None) -> dict[str, Any] | None:
    """Parse ``--parameters``: NAME=LAW[:MEAN[:SD[:positive]]][@COVARIATE+COVARIATE[:network]], with commas.

    >>> parse_parameters("ka=lognormal:1.5:0.5,ke=lognormal:0.1@weight:network,V=shared:30,r=2")
    {'ka': LogNormal(mean=1.5, std=0.5, ...), 'ke': LogNormal(..., depends_on=('weight',), effect='network'),
     'V': Shared(mean=30.0, ...), 'r': 2.0}
    """
    if text is None:
        return None
    from localw2.models.laws import LAWS, PushForward

    found: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, described = part.partition("=")
        name, described = name.strip(), described.strip()
        body, _, covariates = described.partition("@")
        word, *numbers = body.split(":")
        if not name.isidentifier() or name in found:
            raise typer.BadParameter(f"--parameters: {part!r} does not begin with a new name, as in ka=1.5.")
        try:
            if word.lower() not in LAWS:
                found[name] = float(word) if described else "normal"
                if numbers or covariates:
                    raise ValueError(f"{word!r} is not a law")
                continue
            kind = LAWS[word.lower()]
            settings: dict[str, Any] = {}
            if kind is PushForward and numbers[-1:] == ["positive"]:
                settings["positive"] = bool(numbers.pop())
            if len(numbers) > 2:
                raise ValueError(f"{numbers[2]!r} is one number too many")
            settings |= dict(zip(("mean", "std"), map(float, numbers), strict=False))
            covariates, _, effect = covariates.partition(":")
            settings["depends_on"] = tuple(filter(None, covariates.split("+")))
            settings["effect"] = effect or "linear"
            found[name] = kind(**settings)
        except ValueError as error:
            raise typer.BadParameter(
                f"--parameters: {part!r} is not NAME=LAW:MEAN:SD, such as ka=lognormal:1.5:0.5, with one of "
                f"the laws {', '.join(LAWS)} ({error})."
            ) from None
    return found


def parse_doses(text: str, decimal: str) -> dict[str, Any]:
    """Parse ``--doses``: a table with columns time, amount, .., or TIME:AMOUNT[:STATE[:DURATION]],..

    >>> parse_doses("0:100,12:50:0:0.5", "auto")
    {'time': [0.0, 12.0], 'amount': [100.0, 50.0], 'state': [0.0, 0.0], 'duration': [0.0, 0.5]}
    """
    names = ("time", "amount", "state", "duration")
    try:
        rows = [[float(cell) for cell in part.split(":")] for part in text.split(",")]
    except ValueError:
        rows = []
    if rows and all(2 <= len(row) <= 4 for row in rows):
        filled = [row + [0.0] * (4 - len(row)) for row in rows]
        return dict(zip(names, map(list, zip(*filled, strict=True)), strict=True))
    if rows or not Path(text).is_file():
        raise typer.BadParameter(
            f"--doses {text!r} is neither a file nor TIME:AMOUNT[:STATE[:DURATION]] with commas between, "
            "such as 0:100,12:100."
        )
    from localw2.apps.tables.tables import read_table

    table = read_table(text, decimal)
    known = [name for name in ("subject", *names) if name in table.frame]
    if unknown := [name for name in table.frame if name not in known]:
        hint = suggest(unknown[0], ("subject", *names), "Known are")
        raise ValueError(f"{table.source} has a column {unknown[0]!r}, which doses do not have. {hint}")
    return {name: table.numbers([name])[:, 0] for name in known}


def parse_covariates(text: str | None) -> dict[str, Any] | None:
    """Parse ``--covariates``: NAME=VALUE, with commas between.

    >>> parse_covariates("weight=70,age=30")
    {'weight': [70.0], 'age': [30.0]}
    """
    if text is None:
        return None
    try:
        return {name.strip(): [float(value)] for name, value in (p.split("=") for p in text.split(","))}
    except ValueError:
        raise typer.BadParameter(f"--covariates {text!r} is not a list such as weight=70,age=30.") from None


def parse_noise(text: str | None) -> Any:
    """Parse ``--noise``: a kind of error, or a known standard deviation.

    >>> parse_noise("additive"), parse_noise("0.3"), parse_noise(None)
    ('additive', 0.3, None)
    """
    from localw2.models.measurement import KINDS

    if text is None or text in KINDS:
        return text
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"--noise {text!r} is neither {', '.join(KINDS)} nor a number.") from None


def parse_number_or_name(text: str | None) -> Any:
    """A number if it is one, and otherwise the name of a column.

    >>> parse_number_or_name("0.5"), parse_number_or_name("rate")
    (0.5, 'rate')
    """
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def parse_columns(text: str | None, known: Sequence[str]) -> Any:
    """Columns by name, or NAME=COLUMN where the equation calls them otherwise.

    >>> parse_columns("weight=Wt,age", ["Wt", "age"])
    {'weight': 'Wt', 'age': 'age'}
    """
    from localw2.apps.cli.running import split_names

    names = split_names(text, known)
    pairs = [(name, name) if name in known else name.partition("=")[::2] for name in names]
    return {name: column or name for name, column in pairs} or None
