"""What a runner needs before it starts, what it costs while it lives, and for how long it is kept without a call."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gpulayer.protocol.calls import CallsSpec
from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import Outcome, State
from gpulayer_worker.environ import bound_cpus, for_devices
from gpulayer_worker.keeper.client import ExitRecord
from gpulayer_worker.run.devicememory import DeviceMemory, measuring
from gpulayer_worker.run.fetching import fetched
from gpulayer_worker.run.services import Services
from gpulayer_worker.runners import Start


def calls_of(assign: Assign) -> CallsSpec:
    """The calls of an attempt. Raises `ValueError` for one that is for none."""
    if assign.spec.calls is None:
        raise ValueError(f"attempt {assign.attempt} is for no calls")
    return assign.spec.calls


def workspace_of(folder: Path) -> Path:
    """Where calls begin, in the attempt's folder."""
    return folder / "workspace"


async def prepare(
    services: Services, calls: CallsSpec, folder: Path, *, tell: Callable[[str], None], check_wish: Callable[[], None]
) -> None:
    """The files of the bundle, and what an object is made of. Raises `Over`, `SourceError`, `OSError`."""

    def make(tell: Callable[[str], None]) -> None:
        services.workspaces.fresh(calls.function.bundle, workspace_of(folder), tell)
        (folder / "results").mkdir(mode=0o700, exist_ok=True)
        for digest in calls.init_blobs:
            services.workspaces.blob(digest, tell, "arguments")

    await fetched(make, tell=tell, check_wish=check_wish, pause=asyncio.sleep)


def start_of(services: Services, assign: Assign, folder: Path) -> Start:
    """How the runner of an attempt is started."""
    calls = calls_of(assign)
    env = {**calls.env, "GPULAYER_JOB": assign.job, "GPULAYER_ATTEMPT": assign.attempt}
    for name, value in for_devices(assign.devices, services.devices).items():
        if value is not None:
            env[name] = value
    return Start(
        folder=folder,
        cwd=workspace_of(folder),
        config=_config(services, assign.attempt, calls, folder),
        env=env,
        cpus=bound_cpus(assign),
    )


def _config(services: Services, attempt: str, calls: CallsSpec, folder: Path) -> dict[str, Any]:
    """For `runner/main.py`."""
    spans = [(digest, services.workspaces.at_hand(digest)) for digest in calls.init_blobs]
    return {
        "function": msgspec.to_builtins(calls.function),  # its data as Base64
        "bundle": str(workspace_of(folder)) if calls.function.bundle else "",
        "spool": str(services.layout.spool(attempt)),
        "reserve_bytes": services.reserve_bytes,
        "results": str(folder / "results"),
        "isolate": calls.isolate,
        "memory_limit_bytes": calls.memory_limit_bytes,
        "stateful": calls.stateful,
        "init": base64.b64encode(calls.init).decode(),
        "init_blobs": [(digest, *span) for digest, span in spans if span is not None],
    }


class Spending:
    """What an attempt's runners use, all together."""

    def __init__(self, services: Services, assign: Assign):
        self._services = services
        self._assign = assign
        self._memory: DeviceMemory | None = None
        self._so_far = Outcome(state=State.SUCCEEDED)

    def begin(self, group: str) -> None:
        """A runner lives, whose processes are a group's."""
        self._memory = measuring(self._services, self._assign, group)
        if self._memory is not None:
            self._memory.start()

    def stop(self) -> None:
        """Measure no more. Harmless when repeated."""
        if self._memory is not None:
            self._memory.stop()

    def end(self, record: ExitRecord) -> None:
        """It ended."""
        self.stop()
        before = self._so_far
        device_bytes = self._memory.peak_bytes if self._memory is not None else None
        self._so_far = replace(
            before,
            peak_rss_bytes=_most(before.peak_rss_bytes, record.peak_rss_bytes),
            peak_device_bytes=_most(before.peak_device_bytes, device_bytes),
            cpu_s=(before.cpu_s or 0.0) + (record.cpu_s or 0.0),
        )

    def added(self, outcome: Outcome) -> Outcome:
        """An outcome with it."""
        spent = self._so_far
        peaks = {"peak_rss_bytes": spent.peak_rss_bytes, "peak_device_bytes": spent.peak_device_bytes}
        return replace(outcome, cpu_s=spent.cpu_s, **peaks)


class Idle:
    """Calls back after some time without a call. Between two calls that follow each other it does nothing."""

    def __init__(self, after_s: float, over: Callable[[], None]):
        """`after_s` seconds; `over` is called on the loop."""
        self._after_s = after_s
        self._over = over
        self._since: float | None = None  # of the loop's time
        self._timer: asyncio.TimerHandle | None = None

    def ends(self) -> None:
        """There is a call."""
        self._since = None

    def begins(self) -> None:
        """There is none; told again, nothing changes."""
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
            if self._timer is None:
                self._look()

    def stop(self) -> None:
        """It is not wanted any more."""
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        if self._since is None:
            return  # `begins` begins anew
        left_s = self._since + self._after_s - loop.time()
        if left_s > 0:
            self._timer = loop.call_later(left_s, self._look)
        else:
            self._over()


def _most(one: int | None, other: int | None) -> int | None:
    known = [each for each in (one, other) if each is not None]
    return max(known) if known else None
