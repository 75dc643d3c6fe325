"""Groups of commands: their help lists each command with its whole first sentence."""

from __future__ import annotations

import click


class CommandGroup(click.Group):
    """A group whose help wraps the summaries of its commands. click cuts them at the width of the terminal."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(command)) for name, command in commands if command is not None])


def _summary(command: click.Command) -> str:
    first = " ".join((command.help or "").partition("\n\n")[0].split())
    return first.partition(". ")[0].removesuffix(".")
