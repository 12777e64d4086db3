"""Trouble with one maker's devices is no step towards another's."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

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


def test_a_machine_whose_devices_are_not_known_yet_keeps_a_job_waiting() -> None:
    [known] = candidates("t4-box")
    text = "NVIDIA devices present, NVML has not answered yet"
    early = replace(known.inventory, devices=(), frameworks=(), looking=("cuda",), problems=(text,))
    [late] = candidates("t4-box")
    late.inventory = early
    asked = Requirements(accelerator="cuda", frameworks=("torch",))
    assert match.fits(asked, late)
    assert not match.has_room(asked, late)
    [reason] = match.explain(asked, [late])
    assert (reason.code, reason.temporary) == ("probing", True)
    assert reason.text == f"its cuda devices are not known yet: {text}"
    assert [each.temporary for each in match.unmet(Requirements(accelerator="rocm"), late)] == [False]
    assert match.shape(late) != match.shape(known)
