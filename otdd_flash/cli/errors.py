"""From exceptions to one line on stderr and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import click

from otdd_flash.errors import OTDDError

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
DEBUG = "otdd_flash.debug"

Command = TypeVar("Command", bound=Callable[..., Any])


def _set_debug(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        # meta is shared by the group's context and the command's
        context.meta[DEBUG] = True


def debug_option(command: Command) -> Command:
    """Add ``--debug``, before or after the name of the command."""
    return click.option(
        "--debug",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_set_debug,
        help="Show the traceback of an error.",
    )(command)


def describe(error: BaseException) -> str | None:
    """Return one line for an error that the user can act on, None for a fault of the package."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        text = error.format_message()
        return f"{text} (see `{error.ctx.command_path} --help`)"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OTDDError):
        return str(error)
    # torch's own class is not imported for this: the help must not wait for torch
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return f"out of memory ({error}); lower --memory-budget or --max-samples"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return None


class Commands(click.Group):
    """A group whose commands end in one ``Error:`` line instead of a traceback or a usage text.

    Bad input and files that cannot be read or written exit with 2, Ctrl-C with 130. With
    ``--debug`` the traceback comes before the line. A fault of the package keeps its traceback.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help, with exit code 0, where nothing at all is asked for."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; show the traceback of its error when ``--debug`` is given."""
        try:
            # Python has no stdout at all where the process was started with it closed
            if sys.stdout is None:
                raise click.ClickException("stdout is closed, there is no place for the result")
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise click.Abort from interrupt
        except Exception as error:
            if ctx.meta.get(DEBUG) and describe(error) is not None and not _is_exit(error):
                traceback.print_exc()
            raise

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Parse and run, then turn what was raised into a line and an exit code."""
        # in this mode click returns the code of an exit and raises everything else
        run = partial(super().main, args, prog_name or "otdd", complete_var, False, **extra)
        if not standalone_mode:
            return run()
        try:
            code: Any = run()
        except click.Abort:
            click.echo("Interrupted", err=True)
            sys.exit(EXIT_INTERRUPTED)
        except Exception as error:
            line = describe(error)
            if line is None:
                raise
            click.echo(f"Error: {' '.join(line.split())}", err=True)
            sys.exit(EXIT_BAD_INPUT)
        sys.exit(code if isinstance(code, int) else 0)


def _is_exit(error: Exception) -> bool:
    return isinstance(error, (click.exceptions.Exit, click.Abort))
