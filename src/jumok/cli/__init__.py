"""The command ``jumok``: one command a room.

What goes wrong is said in one line on stderr, with exit code 2; Ctrl-C ends with 130, quietly.
Everything heavy is imported when a command needs it, so that ``jumok --help`` is quick.
"""

import sys
import warnings
from collections.abc import Iterable
from typing import Annotated

import typer

from jumok import __version__
from jumok.cli import chat, ending, generate, lesson, look, models, report, train, view

__all__ = ["main"]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    help="Self-attention you can build, run and open.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"jumok {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


for command in (
    look.look,
    chat.chat,
    generate.generate,
    report.report,
    train.train,
    view.view,
    lesson.lesson,
    models.models,
):
    app.command()(command)


def main(arguments: Iterable[str] | None = None) -> None:
    """Run the command line; ends the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without Korean shows ?
    with warnings.catch_warnings():
        warnings.showwarning = ending.short_warning
        given = None if arguments is None else list(arguments)
        sys.exit(ending.exit_code(lambda: app(given, prog_name="jumok", standalone_mode=False)))
