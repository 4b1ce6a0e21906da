"""``{command-line}``: every command and every flag, taken from the command line itself."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class CommandLine(SphinxDirective):
    """A section for each command: usage, what it does, and a list of its arguments and flags."""

    def run(self) -> list[nodes.Node]:
        """Walk the commands."""
        import typer

        from localw2.apps.cli import app

        lines: list[str] = []
        for name, command in _list_commands(typer.main.get_command(app), "localw2"):
            lines += _describe(name, command, typer.Context(command, info_name=name))
        holder = nodes.section()
        holder.document = self.state.document
        text = StringList(lines, "command-line")
        self.state.nested_parse(text, self.content_offset, holder, match_titles=True)
        return holder.children


def _list_commands(group: Any, name: str) -> list[tuple[str, Any]]:
    found = []
    for word, command in group.commands.items():
        path = f"{name} {word}"
        found += _list_commands(command, path) if hasattr(command, "commands") else [(path, command)]
    return found


def _describe(name: str, command: Any, context: Any) -> list[str]:
    usage = " ".join([name, *(piece for piece in command.collect_usage_pieces(context) if piece)])
    described = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None:
            words = " ".join(record[1].split()) or "See above."
            described += [f"`{record[0]}`", f": {words.replace('[', chr(92) + '[')}", ""]
    text = (command.help or "").split("\f")[0].strip()
    return [f"## {name}", "", text, "", "```text", usage, "```", "", *described]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
