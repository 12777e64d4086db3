"""The child that asks NVML: it may fail, hang or crash, and the next question starts a fresh one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpulayer_worker.inventory.nvmlguard import NvmlGuard, NvmlTrouble
from tests.support import fakenvml
from tests.support.fakenvml import card, change, fake_pynvml

PATIENCE_S = 60.0


def asked(
    folder: Path,
    machine: fakenvml.Machine,
    monkeypatch: pytest.MonkeyPatch,
    questions: Callable[[NvmlGuard], Awaitable[Any]],
) -> Any:
    """With the child in an environment where this machine is the one."""
    for name, value in fake_pynvml(folder, machine).items():
        monkeypatch.setenv(name, value)

    async def go() -> Any:
        guard = NvmlGuard()
        try:
            return await questions(guard)
        finally:
            await guard.close()

    return asyncio.run(go())


async def trouble(guard: NvmlGuard, deadline_s: float = PATIENCE_S) -> str:
    with pytest.raises(NvmlTrouble) as caught:
        await guard.ask({"ask": "machine"}, deadline_s)
    return str(caught.value)


def test_it_answers_and_goes_on_answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def questions(guard: NvmlGuard) -> None:
        said = await guard.ask({"ask": "machine"}, PATIENCE_S)
        assert [each["name"] for each in said["cards"]] == ["Tesla T4"]
        assert guard.present
        change(tmp_path, fakenvml.t4(used=5))
        assert (await guard.ask({"ask": "use", "uuid": card(0)["uuid"]}, PATIENCE_S))["used_bytes"] == 5

    asked(tmp_path, fakenvml.t4(), monkeypatch, questions)


def test_a_driver_that_fails_says_why_and_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def questions(guard: NvmlGuard) -> None:
        assert await trouble(guard) == "Driver/library version mismatch"
        assert guard.present
        change(tmp_path, fakenvml.t4())
        assert (await guard.ask({"ask": "machine"}, PATIENCE_S))["driver"] == "535.104.05"

    asked(tmp_path, fakenvml.broken(), monkeypatch, questions)


def test_what_the_loader_says_of_the_library_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = asked(tmp_path, fakenvml.broken("NVML Shared Library Not Found"), monkeypatch, trouble)
    assert words.startswith("NVML Shared Library Not Found (libnvidia-ml.so.1: cannot open")


def test_a_call_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def questions(guard: NvmlGuard) -> None:
        await guard.ask({"ask": "machine"}, PATIENCE_S)
        change(tmp_path, fakenvml.hanging("nvmlDeviceGetMemoryInfo"))
        assert await trouble(guard, 0.5) == "no answer within 0.5 s"
        change(tmp_path, fakenvml.t4())
        assert (await guard.ask({"ask": "machine"}, PATIENCE_S))["cards"]

    asked(tmp_path, fakenvml.t4(), monkeypatch, questions)


def test_a_driver_that_crashes_takes_only_the_child_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = asked(tmp_path, fakenvml.crashing(), monkeypatch, trouble)
    assert words == "the process that asked it ended: signal 11 (SIGSEGV)"


def test_a_device_that_is_not_there_is_no_end_of_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def questions(guard: NvmlGuard) -> None:
        await guard.ask({"ask": "machine"}, PATIENCE_S)
        with pytest.raises(NvmlTrouble, match="GPU-none"):
            await guard.ask({"ask": "use", "uuid": "GPU-none"}, PATIENCE_S)
        assert (await guard.ask({"ask": "machine"}, PATIENCE_S))["cards"]

    asked(tmp_path, fakenvml.t4(), monkeypatch, questions)


@pytest.mark.parametrize("code", ["print('what is this')", "import sys; sys.exit(3)", "print('{}')"])
def test_a_child_that_says_nonsense_is_trouble(code: str) -> None:
    async def go() -> str:
        guard = NvmlGuard((sys.executable, "-c", code))
        try:
            return await trouble(guard)
        finally:
            await guard.close()

    assert asyncio.run(go())
