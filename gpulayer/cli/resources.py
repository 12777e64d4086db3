"""`gpulayer resources`: the machines."""

from __future__ import annotations

import time

from gpulayer.cli import common
from gpulayer.cli.common import Json, print_json, print_lines
from gpulayer.tables import fleet_table

app = common.group("The machines that jobs can run on.")


@app.callback()
def _group() -> None:
    """It has one command, which is named all the same."""


@app.command(
    "list",
    epilog="\b\nExamples:\n  gpulayer resources list\n  gpulayer resources list --json | jq '.[].inventory.devices'",
)
def list_resources(json: Json = False) -> None:
    """Every machine with its devices, and what of them is free."""
    with common.open_client() as client:
        workers = client.workers()
    if json:
        print_json(workers)
    elif workers:
        print_lines(fleet_table(workers, time.time(), common.width()))
    else:
        print_lines(["no machines yet: gpulayer up prints the line that adds one"])
