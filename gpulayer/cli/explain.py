"""`gpulayer explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gpulayer.cli import common
from gpulayer.cli.common import Json, print_json, print_lines
from gpulayer.cli.errors import UsageError
from gpulayer.cli.placing import takes_placement
from gpulayer.cli.terminal import Terminal
from gpulayer.client import asks
from gpulayer.client.ending import REJECTED
from gpulayer.client.explanation import settled
from gpulayer.placement import requirements
from gpulayer.protocol.types import Explanation, Placement, Requirements

_HELP = "Where a job would run now, or machine by machine why it would not. Nothing is submitted."

_EPILOG = """\b
Examples:
  gpulayer explain                                    what is there at all
  gpulayer explain --accelerator cuda --devices 2 --min-vram 40GB
  gpulayer explain --accelerator cuda --framework 'torch>=2.4' --framework jax
  gpulayer explain --accelerator cuda --json | jq '.reasons[].remedy'
  gpulayer explain --accelerator cuda --fleet fleet.json      on record: gpulayer resources list --json > fleet.json

\b
Exit code: 0 if it would run, or wait for a machine that is busy; 69 if no machine could run it."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@app.command(help=_HELP, epilog=_EPILOG, context_settings=_SETTINGS)
@takes_placement
def explain(
    placement: Mapping[str, Any],
    fleet: Annotated[
        list[str] | None,
        typer.Option("--fleet", metavar="FILE", help="Ask machines on record, a file or a folder of them."),
    ] = None,
    json: Json = False,
) -> int:
    """Ask, and draw the answer."""
    explanation = _ask(requirements(placement), placement.get("wait_for_worker", False), fleet or [])
    if json:
        print_json(explanation)
    else:
        from gpulayer.explaining import explanation_lines

        print_lines(explanation_lines(explanation, common.width()))
    return REJECTED if explanation.placement is Placement.REJECTED else 0


def _ask(wanted: Requirements, wait: bool, files: list[str]) -> Explanation:
    """The answer of the control plane, or of those who read records of machines as it does."""
    if not files:
        ask = asks.explain(wanted, wait_for_worker=wait)
        with Terminal() as terminal, common.open_client() as client:
            terminal.hint("◐ asking the control plane, and the machines that are on their way")
            return settled(lambda: client.ask(ask))
    from gpulayer.cli.elsewhere import brought

    try:
        return brought("explain-recorded", "explain --fleet")(files, wanted, wait_for_worker=wait)
    except ValueError as error:
        raise UsageError(f"--fleet: {error}") from error
