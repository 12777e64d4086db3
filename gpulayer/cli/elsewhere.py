"""Commands that the server's and the worker's packages bring in."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import typer

from gpulayer.cli.errors import UsageError

GROUP = "gpulayer.commands"
"""The group of entry points by which they come: NAME = a function of the words behind it, which returns a code."""


def run_elsewhere(name: str, words: list[str]) -> int:
    """Run one. Raises `UsageError` where nothing installed brings it."""
    found = list(importlib.metadata.entry_points(group=GROUP, name=name))
    if not found:
        raise UsageError(f"gpulayer {name} is not installed here; install GPUlayer again: pip install gpulayer")
    main: Any = found[0].load()
    code = main(words)
    return code if isinstance(code, int) else 0


def placeholder(name: str) -> typer.Typer:
    """For the completion of its name: the command itself is run before the line is read."""
    app = typer.Typer(rich_markup_mode=None)

    @app.command(name=name, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def _elsewhere(context: typer.Context) -> int:
        return run_elsewhere(name, context.args)

    return app
