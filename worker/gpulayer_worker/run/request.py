"""What a kernel is asked for with a cell's code."""

from __future__ import annotations

from pathlib import Path

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import CellSpec
from gpulayer.source.blobs import Span
from gpulayer_worker.environ import bound_cpus, for_devices
from gpulayer_worker.run.services import Services


def cell_of(assign: Assign) -> CellSpec:
    """The cell of an attempt. Raises `ValueError` for one that has none."""
    if assign.spec.cell is None:
        raise ValueError(f"attempt {assign.attempt} is no cell")
    return assign.spec.cell


def metadata(services: Services, assign: Assign, workspace: Path, inputs: Span | None) -> dict[str, object]:
    """The `gpulayer` object of an execute request: see `kernel/request.py`.

    Args:
        services: the agent.
        assign: the attempt.
        workspace: the folder that the cell runs in.
        inputs: where the values are that it begins with.
    """
    layout, cell = services.layout, cell_of(assign)
    asked: dict[str, object] = {
        "attempt": assign.attempt,
        "spool": str(layout.spool(assign.attempt)),
        "cwd": str(workspace),
        "env": {**for_devices(assign.devices, services.devices), "GPULAYER_JOB": assign.job},
        "execution_count": cell.execution_count,
        "reserve_bytes": services.reserve_bytes,
        "workspace_first_on_path": True,
        "cpus": bound_cpus(assign),
    }
    if inputs is not None:
        asked["inputs"] = inputs._asdict()
    if cell.outputs:
        asked["outputs"] = {"names": cell.outputs, "path": str(layout.values(assign.attempt))}
    return asked
