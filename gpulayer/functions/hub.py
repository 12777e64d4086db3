"""What all functions of this process share: one connection, the folders that travel, what was sent of them.

A child that this process forks has one of its own: two processes can't read one socket.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from gpulayer.client.embedded import begin
from gpulayer.client.errors import ControlPlaneError, GpulayerError
from gpulayer.protocol.endpoint import Endpoint

if TYPE_CHECKING:  # what talks is imported while the control plane comes up
    from gpulayer.client.client import Client
    from gpulayer.client.connection import Connection
    from gpulayer.client.sending import Sender
    from gpulayer.source import Bundle, Limits

_READY_S = 60.0
_SCAN_AGAIN_S = 0.5  # a storm of calls looks at the files that often
_SCAN_SHARE = 5  # and this process looks at them at most a fifth of its time


class Folder:
    """A folder that travels with functions, looked through again when some time has passed."""

    def __init__(self, root: str, include: tuple[str, ...], exclude: tuple[str, ...], limits: Limits, explicit: bool):
        self._arguments: Any = {"include": include, "exclude": exclude, "limits": limits, "explicit": explicit}
        self._root = root
        self._lock = threading.Lock()
        self._sender: Sender | None = None
        self._bundle: Bundle | None = None
        self._again_s = 0.0

    def bundle(self) -> Bundle:
        """The folder as it is, or was half a second ago. Raises `SourceRefused`."""
        if self._bundle is not None and time.monotonic() < self._again_s:
            return self._bundle
        with self._lock:
            began_s = time.monotonic()
            self._bundle = self._scanner().scan(self._root, **self._arguments)
            ended_s = time.monotonic()
            self._again_s = ended_s + max(_SCAN_AGAIN_S, _SCAN_SHARE * (ended_s - began_s))
            return self._bundle

    def send(self, bundle: Bundle, endpoint: Endpoint, tell: Callable[[str], None]) -> str:
        """Send what the control plane lacks: 'sent 3 of 214 files, 41 kB'. See `Sender.send` for errors."""
        with self._lock:
            sent = self._scanner().send(bundle, endpoint, tell)
            bundle.contents.clear()
            return str(sent)

    def _scanner(self) -> Sender:
        if self._sender is None:
            from gpulayer.client.sending import Sender

            self._sender = Sender(again="call it again")
        return self._sender


class Leaves(Protocol):
    """What does not stay without this process."""

    def at_exit(self) -> None: ...


class Hub:
    """The control plane as the functions of this process know it: the same as `gl.Client()`'s."""

    def __init__(self, client: Client | None = None) -> None:
        """`client`: of another control plane."""
        from gpulayer.client.client import Client
        from gpulayer.functions.blobs import BlobStore

        self.client = client or Client()
        self.connection: Connection = self.client.connection
        self.blobs = BlobStore(self.endpoint)
        self.leaving: weakref.WeakSet[Leaves] = weakref.WeakSet()  # what is told when this process ends
        self._folders: dict[object, Folder] = {}
        self._lock = threading.Lock()

    def endpoint(self) -> Endpoint:
        """Where the control plane is; one is started where none runs. Raises `ControlPlaneError`."""
        connection = self.connection
        if not connection.wait_ready(_READY_S) or connection.endpoint is None:
            raise ControlPlaneError(f"the control plane does not answer: {connection.away or 'no word from it'}")
        return connection.endpoint

    def folder(
        self,
        root: str,
        *,
        include: tuple[str, ...] = (),
        exclude: tuple[str, ...] = (),
        limits: Limits | None = None,
        explicit: bool = False,
    ) -> Folder:
        """The one that is looked through so; by default within the limits of all folders."""
        from gpulayer.client.sending import LIMITS

        limits = limits or LIMITS
        key = (root, include, exclude, limits, explicit)
        with self._lock:
            found = self._folders.get(key)
            if found is None:
                found = self._folders[key] = Folder(root, include, exclude, limits, explicit)
            return found

    def close(self) -> None:
        """Leave the control plane: maps that this process alone reads are cancelled, its objects released."""
        for each in list(self.leaving):
            with contextlib.suppress(GpulayerError):  # nobody is there to be told
                each.at_exit()
        self.blobs.close()
        self.client.close()


_hub: Hub | None = None
_making = threading.Lock()


def prepare() -> None:
    """The control plane is wanted now: where none runs, it comes up while this process imports what talks to it."""
    if _hub is None:
        begin()


def hub() -> Hub:
    """This process' own."""
    global _hub
    if _hub is None:
        with _making:
            if _hub is None:
                _hub = Hub()
    return _hub


def forget() -> None:
    """Leave the control plane; the next call looks for one again."""
    global _hub
    with _making:
        left, _hub = _hub, None
    if left is not None:
        left.close()


def _forked() -> None:
    """In a child: the parent's connection is not its own, and none of its threads is here."""
    global _hub, _making
    _hub, _making = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
atexit.register(forget)
