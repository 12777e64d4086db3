"""The values and files of a cell or command that has ended, on their way back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gpulayer.protocol.types import Outcome, State
from gpulayer.source import SourceChanged, SourceError
from gpulayer.source.collect import Globs, Stamp, collect, stamps
from gpulayer_worker.delivery import DeliveryError, NobodyThere, Parcel, Undeliverable, deliver, whole
from gpulayer_worker.run.services import Services

log = logging.getLogger("gpulayer.worker")

_AGAIN_S = 1.0
_AGAIN_AT_MOST_S = 15.0
_TRIES = 60  # while somebody answers, and does not take it
_CHANGES = 5  # of files, while they are sent


class Results:
    """What goes back of one attempt. Owned by its run; `stop` may come at any time."""

    def __init__(self, services: Services, globs: tuple[str, ...], folder: Path, tell: Callable[[str], None]):
        """`globs` name the files, `folder` is the attempt's; `tell` takes lines about how far it is."""
        self._services = services
        self._folder = folder
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._globs = Globs(globs)
        self._parcel: Parcel | None = None  # once it is made up: reading all files takes its time
        self._ended: Outcome | None = None  # how the program did
        self._wish = ""  # why nobody wants them any more
        self._problem = ""
        self._over = threading.Event()
        self._stopped = asyncio.Event()

    def stop(self, wish: str, problem: str) -> None:
        """Send no more: nobody wants it.

        `wish` is 'cancel', or another word with its `problem`. A program that was cancelled may have left something
        that is worth having: what it left is sent, however often the wish is told.
        """
        if wish == "cancel" and self._ended is not None and self._ended.state is State.CANCELLED:
            return
        self._wish, self._problem = wish, problem
        self._over.set()
        self._stopped.set()

    # ---------------------------------------------------------------- before the cell

    async def remember(self, workspace: Path) -> None:
        """Note how the files are that the globs match now."""
        if self._globs.globs:
            found = await asyncio.to_thread(stamps, str(workspace), self._globs)
            self._services.layout.note(self._folder, "before", {path: list(stamp) for path, stamp in found.items()})

    # ---------------------------------------------------------------- after it

    def settled(self, outcome: Outcome) -> Outcome:
        """How the program ended, as an agent before us saw it; `outcome` where none did. It is kept from here on.

        A wish to end it is known to the agent that had it only.
        """
        if self._wish != "kill":  # any other one the program has had
            self._over.clear()
            self._stopped.clear()
        noted = self._services.layout.noted(self._folder, "ended")
        self._ended = msgspec.convert(noted, Outcome) if noted is not None else outcome
        if noted is not None:
            return self._ended
        try:
            self._services.layout.note(self._folder, "ended", msgspec.to_builtins(outcome))
        except OSError as error:  # as if this agent died just before
            log.error("the end of %s can't be noted: %s", self._folder.name, error)
        return outcome

    async def deliver(self, outcome: Outcome, reply: dict[str, Any], workspace: Path) -> Outcome:
        """Send values and files; the outcome with their digests, or with what went wrong.

        Until the control plane answers it is tried again. `reply` is the kernel's, {} where it died.
        """
        if self._stopped.is_set():
            return outcome
        self._tell("sending results back")
        wait_s, refused, changed = _AGAIN_S, 0, 0
        while True:
            try:
                sent = await self._unless_stopped(lambda: self._send(outcome, reply, workspace))
                return self._given_up(outcome) if sent is None else sent
            except NobodyThere as error:
                problem = str(error)
            except Undeliverable as error:
                return failed(outcome, str(error))
            except DeliveryError as error:
                problem, refused = str(error), refused + 1
                if refused == _TRIES:
                    return failed(outcome, problem)
            except SourceChanged as error:
                problem, changed, self._parcel = str(error), changed + 1, None
                if changed == _CHANGES:
                    return failed(outcome, problem)
            except (SourceError, OSError) as error:
                text = self._services.layout.trouble(error) if isinstance(error, OSError) else str(error)
                return failed(outcome, text)
            log.warning("results of %s could not be sent: %s", self._folder.name, problem)
            self._tell(f"sending results back: {problem}; trying again")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), wait_s)
                return self._given_up(outcome)
            wait_s = min(_AGAIN_AT_MOST_S, wait_s * 1.5)

    async def _unless_stopped(self, work: Callable[[], Outcome]) -> Outcome | None:
        """What `work` returns, done in a thread; None as soon as nobody wants it."""
        thread = asyncio.ensure_future(asyncio.to_thread(work))
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({thread, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not thread.done():
                self._over.set()  # it ends by itself, soon
            thread.add_done_callback(lambda done: done.cancelled() or done.exception())  # also where nobody asks
        return None if self._stopped.is_set() else thread.result()

    def _given_up(self, outcome: Outcome) -> Outcome:
        if self._wish == "cancel":
            state = State.CANCELLED if outcome.state is State.SUCCEEDED else outcome.state
            return replace(outcome, state=state, problem="cancelled while its results were sent back")
        return replace(outcome, state=State.FAILED, problem=self._problem)

    def _send(self, outcome: Outcome, reply: dict[str, Any], workspace: Path) -> Outcome:
        """Blocking: runs in a thread."""
        parcel = self._parcel = self._parcel or self._made_up(reply, workspace)
        if parcel.sizes or parcel.manifest is not None:
            deliver(parcel, self._services.endpoint, self._tell_from_thread, self._over)
        files = parcel.manifest.digest if parcel.manifest is not None else ""
        values_bytes = parcel.sizes.get(parcel.values, 0)
        return replace(
            outcome, values=parcel.values, values_bytes=values_bytes, files=files, unmatched=self._unmatched(parcel)
        )

    def _unmatched(self, parcel: Parcel) -> tuple[str, ...]:
        files = parcel.manifest.files if parcel.manifest is not None else ()
        return tuple(self._globs.without_match(entry.path for entry in files)) if self._globs.globs else ()

    def _made_up(self, reply: dict[str, Any], workspace: Path) -> Parcel:
        paths: dict[str, str] = {}
        sizes: dict[str, int] = {}
        manifest = None
        made = reply.get("values") or {}
        if made:
            sizes[made["sha256"]] = made["size"]
            paths[made["sha256"]] = whole(str(self._folder / "values"), made["size"])
        if self._globs.globs:
            manifest = collect(str(workspace), self._globs, self._before())
            sizes |= {entry.sha256: entry.size for entry in manifest.files}
            paths |= {entry.sha256: str(workspace / entry.path) for entry in manifest.files}
        return Parcel(paths=paths, sizes=sizes, values=made.get("sha256", ""), manifest=manifest or None)

    def _before(self) -> dict[str, Stamp]:
        noted = self._services.layout.noted(self._folder, "before") or {}
        return {path: msgspec.convert(stamp, Stamp) for path, stamp in noted.items()}

    def _tell_from_thread(self, text: str) -> None:
        with contextlib.suppress(RuntimeError):  # the agent has ended meanwhile
            self._loop.call_soon_threadsafe(self._tell, text)


def failed(outcome: Outcome, why: str) -> Outcome:
    """The outcome of a program whose results could not be sent: its own end is kept."""
    problem = f"upload failed: {why}"
    if outcome.problem:
        problem = f"{outcome.problem}; {problem}"
    state = State.FAILED if outcome.state is State.SUCCEEDED else outcome.state
    return replace(outcome, state=state, problem=problem)
