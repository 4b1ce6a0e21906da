"""The command line: ``localw2 fit DATA --target COL --out MODEL``, and what can be done with a model."""

from __future__ import annotations

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
from localw2.apps.cli.sde import sde

app = typer.Typer(
    name="localw2",
    epilog="localw2 COMMAND --help shows the flags of a command. Start with: localw2 demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(asked: bool) -> None:
    """Print the version and exit, before anything else is looked at."""
    if asked:
        from localw2 import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def accept_version(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Learn the conditional distribution of y at every x from a table."""


for _command in (fit, predict, sample, evaluate, compare, report, explore, info, reproduce, demo):
    app.command("test" if _command is compare else None)(_command)
app.add_typer(ode, name="ode")
app.add_typer(sde, name="sde")


def main() -> None:
    """Run the command line; the exit code is 0, 1 (a reported error), 2 (wrong usage) or 130 (Ctrl-C)."""
    app(prog_name="localw2")
