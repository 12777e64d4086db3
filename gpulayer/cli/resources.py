"""`gpulayer resources`: the machines."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gpulayer.cli import common
from gpulayer.cli.common import print_json, print_lines
from gpulayer.tables import fleet_table

app = typer.Typer(
    help="The machines that jobs can run on.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback()
def _group() -> None:
    """It has one command, which is named all the same."""


@app.command(
    "list",
    epilog="\b\nExamples:\n  gpulayer resources list\n  gpulayer resources list --json | jq '.[].inventory.devices'",
)
def list_resources(json: Annotated[bool, typer.Option("--json", help="For a program to read.")] = False) -> None:
    """Every machine with its devices, and what of them is free."""
    with common.open_client() as client:
        workers = client.workers()
    if json:
        print_json(workers)
    elif workers:
        print_lines(fleet_table(workers, time.time(), common.width()))
    else:
        print_lines(["no machines yet: gpulayer up prints the line that adds one"])
