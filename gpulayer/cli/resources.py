"""`gpulayer resources`: the machines."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gpulayer.cli import common
from gpulayer.cli.common import Json, print_json, print_lines
from gpulayer.cli.terminal import Terminal
from gpulayer.client import asks
from gpulayer.client.client import Client
from gpulayer.client.explanation import settled
from gpulayer.protocol.types import Requirements, WorkerView

app = common.group("The machines that jobs can run on.")

_NONE = "no machines yet: gpulayer up prints the line that adds one"

_LIST = """\b
Examples:
  gpulayer resources list
  gpulayer resources list --watch                  as they fare, until Ctrl-C
  gpulayer resources list --json | jq '.[].inventory.devices'"""

_DETECT = """\b
Examples:
  gpulayer resources detect
  gpulayer resources detect --json | jq '.inventory.devices[].uuid'"""


@app.callback()
def _group() -> None:
    """Its commands are named, also while there are few."""


@app.command("list", epilog=_LIST)
def list_resources(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, once a second, until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Every machine: its devices and who holds them, frameworks that work there, how it fares."""
    with common.open_client() as client:
        if watch:
            from gpulayer.cli.live import watch_machines

            watch_machines(client, json=json)
            return
        workers = client.workers() or _arriving(client)
    if json:
        print_json(workers)
        return
    from gpulayer.machines import machine_lines

    print_lines(machine_lines(workers, time.time(), common.width()) or [_NONE])


def _arriving(client: Client) -> list[WorkerView]:
    """The machines once this one has arrived, where its worker is being started; else none."""
    settled(lambda: client.ask(asks.explain(Requirements())))
    return client.workers()


@app.command(epilog=_DETECT)
def detect(json: Json = False) -> None:
    """This machine: its devices and their links, the frameworks that work, and what does not and why."""
    from gpulayer.cli.elsewhere import brought

    with Terminal() as terminal:
        terminal.hint("◐ looking at this machine, and trying out its frameworks")
        inventory, sample = brought("detect", "resources detect")()
    if json:
        print_json({"inventory": inventory, "sample": sample})
        return
    from gpulayer.detected import detected_lines

    print_lines(detected_lines(inventory, sample, common.width()))
