"""Trouble with one maker's devices is no step towards another's."""

from __future__ import annotations

import pytest

from gpulayer.protocol.types import Requirements
from gpulayer_server.scheduling import advice, match
from tests.support.fleets import candidates


@pytest.mark.parametrize(
    ("kind", "mended"), [("cuda", "mend the driver on broken-box"), ("rocm", "add a machine"), ("mps", "add a machine")]
)
def test_a_broken_nvidia_driver_is_mended_for_cuda_alone(kind: str, mended: str) -> None:
    workers = candidates("broken-box", "cpu-server")
    asked = Requirements(accelerator=kind)
    reasons = match.explain(asked, workers)
    assert mended in advice.nearest(asked, workers, reasons)
    [text] = [reason.text for reason in reasons if reason.worker == "broken-box"]
    assert "NVML failed" in text  # it is never told as a machine without devices
