"""The root of the commands. It imports none of them: `gpulayer --help` is to come at once."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "submit": ("gpulayer.cli.submit", "run a command on a machine where it fits, with its files"),
    "explain": ("gpulayer.cli.explain", "where a job would run now, or why it would not"),
    "job": ("gpulayer.cli.jobs", "list, show, logs, wait, cancel, download"),
    "resources": ("gpulayer.cli.resources", "machines, their devices, and what of them is free"),
    "token": ("gpulayer.cli.tokens", "create, list, revoke: who may do what from elsewhere"),
    "up": ("gpulayer.cli.elsewhere", "a control plane that other machines can join, here"),
    "join": ("gpulayer.cli.elsewhere", "give this machine to a control plane elsewhere"),
}
"""Each command's module, and what it does."""

ELSEWHERE = ("up", "join")
"""Commands of the server and of the worker: they bring their own options."""

_HELP = "Run commands on all the machines that you can reach, and bring their output and files back."

_EPILOG = """\b
Examples:
  gpulayer submit --source . -- python train.py          this folder travels, its output comes back here
  gpulayer submit --accelerator cuda --output 'ckpt/**' --source . --detach -- python train.py
  gpulayer explain --accelerator cuda --min-vram 40GB    where that would run, or why not
  gpulayer job list                                      what runs, waits and has ended
  gpulayer job logs -f k3f9                              follow one
  gpulayer up --host 192.168.1.50                        let other machines join: it prints the line to paste there

\b
Exit codes: the program's own, or 128 and its signal; else
    1  something around it failed, or the request was refused
    2  the command line can't be understood
   69  no machine could run it
   75  no control plane answers; try again later
   77  the token may not do this
  130, 143  interrupted by Ctrl-C or SIGTERM: the job was cancelled

Without a server one is started on this machine, and ends by itself. GPULAYER_URL, GPULAYER_TOKEN and
GPULAYER_FINGERPRINT name one elsewhere. 'gpulayer COMMAND --help' shows examples of each."""


class _Lazy(dict[str, Any]):
    """Commands by name, each imported when it is asked for."""

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        if self[name] is None:
            module = importlib.import_module(COMMANDS[name][0])
            app = module.placeholder(name) if name in ELSEWHERE else module.app
            made: Any = typer.main.get_command(app)
            made.name = name
            self[name] = made
        return self[name]


class Root(TyperGroup):
    """The commands, by their table."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.commands = _Lazy.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command, imported now."""
        return self.commands.get(cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """What `--help` says of them, with none imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _version(wanted: bool) -> None:
    if wanted:
        from gpulayer._version import __version__

        typer.echo(f"gpulayer {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
    debug: bool = typer.Option(False, "--debug", help="Show where an error comes from: gpulayer --debug COMMAND …"),
) -> None:
    """Nothing by itself: `--debug` is taken before the line is read."""


def command() -> Any:
    """The whole command line."""
    app = typer.Typer(
        cls=Root,
        help=_HELP,
        epilog=_EPILOG,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(_root)
    return typer.main.get_command(app)
