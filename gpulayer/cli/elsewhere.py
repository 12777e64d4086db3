"""Commands that the server's and the worker's packages bring in."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import typer

from gpulayer.cli.errors import UsageError

GROUP = "gpulayer.commands"
"""The group of entry points by which they come: NAME = a function of the words behind it, which returns a code.
`detect` is a function of nothing, which returns the inventory of this machine and a sample of how it fares."""


def run_elsewhere(name: str, words: list[str]) -> int:
    """Run one. Raises `UsageError` where nothing installed brings it."""
    code = brought(name, name)(words)
    return code if isinstance(code, int) else 0


def brought(name: str, command: str) -> Any:
    """What is brought in by this name, for `gpulayer COMMAND`. Raises `UsageError` where nothing installed does."""
    found = list(importlib.metadata.entry_points(group=GROUP, name=name))
    if not found:
        raise UsageError(f"gpulayer {command} is not installed here; install GPUlayer again: pip install gpulayer")
    return found[0].load()


def placeholder(name: str) -> typer.Typer:
    """For the completion of its name: the command itself is run before the line is read."""
    app = typer.Typer(rich_markup_mode=None)

    @app.command(name=name, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def _elsewhere(context: typer.Context) -> int:
        return run_elsewhere(name, context.args)

    return app
