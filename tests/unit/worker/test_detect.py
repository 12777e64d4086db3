"""What `gpulayer resources detect` finds on a machine that is made up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpulayer_worker.detect import detect
from tests.support import fakenvml
from tests.support.fakenvml import fake_pynvml


def test_an_interpreter_that_is_not_there_is_a_problem_and_its_devices_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", fake_pynvml(tmp_path, fakenvml.t4())["PYTHONPATH"])
    inventory, sample = detect(str(tmp_path / "python"))
    assert [device.name for device in inventory.devices] == ["Tesla T4"]
    assert [device.utilisation for device in sample.devices] == [0.0]
    assert inventory.frameworks == ()
    assert inventory.problems == (
        f"the interpreter for jobs, {tmp_path}/python, does not say what it has: No such file or directory",
    )


def test_a_driver_that_fails_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", fake_pynvml(tmp_path, fakenvml.broken())["PYTHONPATH"])
    inventory, sample = detect(sys.executable)
    assert (inventory.devices, sample.devices) == ((), ())
    assert inventory.problems == ("NVIDIA devices present, NVML failed: Driver/library version mismatch",)
