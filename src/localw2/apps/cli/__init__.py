"""The command line: ``localw2 fit DATA --target COL --out MODEL``, and what can be done with a model."""

from __future__ import annotations

from collections.abc import Callable

import typer

from localw2.apps.cli.fit import fit
from localw2.apps.cli.judge import compare, evaluate, explore, report
from localw2.apps.cli.ode import ode
from localw2.apps.cli.predict import info, predict, sample
from localw2.apps.cli.showing import demo, reproduce, show_version

app = typer.Typer(
    name="localw2",
    help="The whole distribution of y at every x, learned from a table.",
    epilog="localw2 COMMAND --help tells more. Start with: localw2 demo",
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
app.callback()(show_version)
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(ode, name="ode")


def main() -> None:
    """Run the command line: exit code 0, 1 (an error that we tell of), 2 (usage) or 130 (Ctrl-C)."""
    app(prog_name="localw2")
