"""A function as it travels: captured when it is called, anew once it, a helper or a file of it is another."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpulayer.functions.hub import Folder, hub, prepare
from gpulayer.functions.options import CallRefused, Options
from gpulayer.functions.watching import Watch
from gpulayer.protocol.calls import CallsSpec, FunctionSpec, Piece
from gpulayer.protocol.types import JobSpec
from gpulayer.protocol.values.calls import pack
from gpulayer.source.capture import Captured, CaptureError, capture

if TYPE_CHECKING:
    from gpulayer.client.submission import Source
    from gpulayer.functions.hub import Hub
    from gpulayer.source import Bundle

DATA_LIMIT_BYTES = 1_000_000
"""Of the plain data that a function of a session uses: it travels with each call."""

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A function as it was at one moment. `job` is the packed `JobSpec` of its calls."""

    hub: Hub
    function: FunctionSpec
    job: bytes
    folder: Folder | None
    bundle: Bundle | None
    watch: Watch
    cells: Mapping[str, str]  # what a remote traceback calls a cell, and what that is here

    def is_now(self) -> bool:
        """Whether nothing of it has changed."""
        return self.hub is hub() and self.watch.unchanged() and not self._moved()

    def _moved(self) -> bool:
        if self.folder is None or self.bundle is None:
            return False
        now = self.folder.bundle()
        return now is not self.bundle and now.manifest.digest != self.bundle.manifest.digest


class Versions:
    """The versions of one function with its options. Any thread may ask."""

    def __init__(self, target: Any, options: Options):
        """`target`: the function or class as it was decorated."""
        self.target = target
        self.options = options
        self._last: Version | None = None

    def now(self) -> Version:
        """As it is now. Raises `CallRefused`, `SourceRefused`."""
        last = self._last
        if last is None or not last.is_now():
            last = self._last = self._made()
        return last

    def job(self, function: FunctionSpec, **calls: Any) -> bytes:
        """The packed job of its calls; `calls` are further fields of `CallsSpec`."""
        options = self.options
        spec = JobSpec(
            calls=CallsSpec(
                function=function,
                isolate=options.isolate,
                max_runners=options.max_runners,
                idle_timeout_s=options.idle_timeout_s,
                memory_limit_bytes=options.memory_limit_bytes,
                env=dict(sorted(options.env.items())),
                **calls,
            ),
            requirements=options.requirements,
            name=options.name or function.name,
            wait_for_worker=options.needs.wait_for_worker,
        )
        return _encode(spec)

    def _made(self) -> Version:
        try:
            captured = capture(self.target, data_limit_bytes=DATA_LIMIT_BYTES)
        except CaptureError as error:
            raise CallRefused(str(error)) from None
        watch = Watch(self.target, captured.data, pack)
        ways, file, folder = self._places(captured)
        bundle = folder.bundle() if folder is not None else None
        digest = bundle.manifest.digest if bundle is not None and bundle.manifest.files else ""
        prepare()
        function = FunctionSpec(
            name=captured.name,
            qualname=captured.qualname,
            kind=captured.kind,
            is_async=captured.is_async,
            module=captured.module,
            bundle=digest,
            sys_path=ways,
            pieces=tuple(_piece(each) for each in captured.pieces),
            data=pack(captured.data) if captured.data else b"",
            file=file,
            digest=captured.digest,
        )
        return Version(
            hub=hub(),
            function=function,
            job=self.job(function),
            folder=folder,
            bundle=bundle,
            watch=watch,
            cells=captured.cells,
        )

    def _places(self, captured: Captured) -> tuple[tuple[str, ...], str, Folder | None]:
        """Where modules and the script lie in the folder that travels, and that one. Raises `CallRefused`."""
        options, root, ways, file = self.options, captured.root, captured.sys_path, captured.file
        given = options.source
        if given is False:
            if captured.sys_path and root is not None:
                raise CallRefused(f"source=False: {captured.name} is imported from {root}, which has to travel then")
            return (), "", None
        source = _source(given) if given is not None else None
        if source is not None:
            folder = str(Path(source.folder).expanduser().absolute())
            ways, file = _below(folder, root, ways, captured.name), _moved_file(folder, root, file)
            root = folder
        if root is None:
            return ways, file, None
        found = hub().folder(
            root,
            include=(*(source.include if source else ()), *options.include),
            exclude=(*(source.exclude if source else ()), *options.exclude),
            explicit=source is not None,
            **({"limits": source.limits} if source is not None else {}),
        )
        return ways, file, found


def _source(given: Source | str | os.PathLike[str]) -> Source:
    from gpulayer.client.submission import Source  # it brings what talks to a control plane

    return given if isinstance(given, Source) else Source(folder=str(given))


def _below(folder: str, root: str | None, ways: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The ways down from a folder that a person named, to where modules are imported from."""
    if root is None:
        return ("",)
    down = os.path.relpath(root, folder)
    if down.split(os.sep)[0] == "..":
        raise CallRefused(
            f"source={folder!r} does not hold {root}, which {name} is imported from; name a folder above both"
        )
    return tuple(_joined(down, way) for way in ways)


def _moved_file(folder: str, root: str | None, file: str) -> str:
    return _joined(os.path.relpath(root, folder), file) if root is not None and file else file


def _joined(down: str, way: str) -> str:
    joined = os.path.normpath(os.path.join(down, way)).replace(os.sep, "/")
    return "" if joined == "." else joined


def _piece(piece: Any) -> Piece:
    return Piece(
        filename=piece.filename,
        first_line=piece.first_line,
        text=piece.text,
        slot=piece.slot,
        defines=piece.defines,
        names=piece.names,
        closure=piece.closure,
        given=piece.given,
        attributes=piece.attributes,
        future=piece.future,
    )
