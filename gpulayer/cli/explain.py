"""`gpulayer explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from gpulayer.cli import common
from gpulayer.cli.common import Json, print_json, print_lines
from gpulayer.cli.placing import takes_placement
from gpulayer.client import asks
from gpulayer.client.ending import REJECTED
from gpulayer.placement import requirements
from gpulayer.protocol.types import Placement

_HELP = "Where a job would run now, or machine by machine why it would not. Nothing is submitted."

_EPILOG = """\b
Examples:
  gpulayer explain                                    what is there at all
  gpulayer explain --accelerator cuda --devices 2 --min-vram 40GB
  gpulayer explain --accelerator cuda --framework 'torch>=2.4' --framework jax
  gpulayer explain --accelerator cuda --json | jq '.reasons[].remedy'

\b
Exit code: 0 if it would run, or wait for a machine that is busy; 69 if no machine could run it."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@app.command(help=_HELP, epilog=_EPILOG, context_settings=_SETTINGS)
@takes_placement
def explain(placement: Mapping[str, Any], json: Json = False) -> int:
    """Ask, and draw the answer."""
    ask = asks.explain(requirements(placement), wait_for_worker=placement.get("wait_for_worker", False))
    with common.open_client() as client:
        explanation = client.ask(ask)
    if json:
        print_json(explanation)
    else:
        from gpulayer.explaining import explanation_lines

        print_lines(explanation_lines(explanation, common.width()))
    return REJECTED if explanation.placement is Placement.REJECTED else 0
