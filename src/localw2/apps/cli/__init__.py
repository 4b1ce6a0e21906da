"""The command line: ``localw2 fit DATA --target COL --out MODEL``, and what can be done with a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from localw2.apps.cli.demo import demo
from localw2.apps.cli.explore import explore
from localw2.apps.cli.fit import fit
from localw2.apps.cli.judge import compare, evaluate
from localw2.apps.cli.ode import ode
from localw2.apps.cli.predict import info, predict, sample
from localw2.apps.cli.report import report
from localw2.apps.cli.reproduce import reproduce

_ABOUT = "Learn the conditional distribution of y at every x from a table."

app = typer.Typer(
    name="localw2",
    help=_ABOUT,
    epilog="localw2 COMMAND --help shows the flags of a command. Start with: localw2 demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "fit": fit,
    "predict": predict,
    "sample": sample,
    "evaluate": evaluate,
    "test": compare,
    "report": report,
    "explore": explore,
    "info": info,
    "reproduce": reproduce,
    "demo": demo,
}


def print_version(asked: bool) -> None:
    """Print the version and exit, before anything else is looked at."""
    if asked:
        from localw2 import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback(help=_ABOUT)
def accept_version(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Accept ``--version`` before any command."""


for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(ode, name="ode")


def main() -> None:
    """Run the command line; the exit code is 0, 1 (a reported error), 2 (wrong usage) or 130 (Ctrl-C)."""
    app(prog_name="localw2")
