"""`gl.remote` on a class: objects that live in one process on a worker, and are called from here."""

from __future__ import annotations

import functools
import inspect
import secrets
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpulayer.client.errors import GpulayerError
from gpulayer.functions.frames import shortly
from gpulayer.functions.hub import Hub, hub
from gpulayer.functions.options import CallRefused, Options
from gpulayer.functions.remote import Callee, Face, map_spec
from gpulayer.functions.running import Arguments, Run
from gpulayer.functions.signatures import Signature
from gpulayer.functions.versions import Versions
from gpulayer.protocol.values import ValueRefused
from gpulayer.protocol.values.calls import pack_call
from gpulayer.words import near_words

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gpulayer.client.maps import MapSubscription
    from gpulayer.functions.remote import All
    from gpulayer.functions.versions import Version

T = TypeVar("T")


class NoMethod(GpulayerError, AttributeError):
    """An object there has no such method, or it is none."""


class RemoteClass(Generic[T]):
    """A class whose objects live on a worker: `m = Model.remote("x")`, `m.predict(batch)`, `m.release()`."""

    def __init__(self, target: type[T], options: Options):
        functools.update_wrapper(self, target, updated=())
        self.__gpulayer_function__ = target
        self._options = options
        self._versions = Versions(target, options)
        called = target.__qualname__.replace("<locals>.", "")
        self.name = options.name or called
        self._signature = Signature.of_class(f"{called}.remote", target)

    @shortly
    def remote(self, *args: Any, **kwargs: Any) -> RemoteObject[T]:
        """An object made there with these arguments, once it is first called; it stays until it is released.

        Raises `CallRefused` where the class or an argument can't travel, or is none that it takes.
        """
        self._signature.check(args, kwargs)
        version, home = self._versions.now(), hub()
        try:
            init, blobs = pack_call(args, kwargs, blob=home.blobs.put)
        except ValueRefused as refused:
            raise CallRefused(f"{self.name}: {refused}") from None
        job = self._versions.job(
            version.function, stateful=True, init=init, init_blobs=blobs, instance=secrets.token_hex(8)
        )
        return RemoteObject(self.__gpulayer_function__, self.name, self._options, version, job, home)

    def local(self, *args: Any, **kwargs: Any) -> T:
        """An object of the class here, as without gl.remote."""
        __tracebackhide__ = True
        return self.__gpulayer_function__(*args, **kwargs)

    def with_options(self, **options: Unpack[All]) -> RemoteClass[T]:
        """The same class with other options: see `gl.remote`."""
        return RemoteClass(self.__gpulayer_function__, self._options.merged(options, "with_options"))

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        raise CallRefused(f"{self.name}(…): make it there by {self.name}.remote(…), or here by {self.name}.local(…)")

    def __repr__(self) -> str:
        return f"<gpulayer class {self.name}>"


class RemoteObject(Generic[T]):
    """An object on a worker. Its methods are called as they are, one at a time there; attributes stay there.

    It is released by `release`, at the end of a `with`, once nothing here refers to it, and when it was not called for
    long (`idle_timeout_s`). When its machine is lost, or its process dies, so is it: later calls say so.
    """

    def __init__(self, target: type[T], name: str, options: Options, version: Version, job: bytes, home: Hub):
        self._target = target
        self._name = name
        self._options = options
        self._version = version
        self._job = job
        self._hub = home
        self._subscription: MapSubscription | None = None  # of the last call
        self._released = False
        home.leaving.add(self)

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("__"):
            raise AttributeError(name)
        method = inspect.getattr_static(self._target, name, None)
        if method is None or not callable(getattr(self._target, name, None)):
            there = [each for each in dir(self._target) if not each.startswith("_") and each != name]
            what = f"has no method {name!r}{near_words(name, there)}"
            what = f"has {name!r} as a {type(method).__name__}, not as a method" if method is not None else what
            raise NoMethod(f"{self._name} {what}; what an object keeps stays there: a method that returns it brings it")
        streams = inspect.isgeneratorfunction(inspect.unwrap(getattr(self._target, name)))
        signature = Signature.of_method(f"{self._name}.{name}", self._target, name)
        return RemoteMethod(self, name, signature, streams=streams)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise NoMethod(
                f"{self._name}.{name} can't be set from here; what an object keeps stays there: a method sets it"
            )
        super().__setattr__(name, value)

    def open(
        self, method: str, arguments: Iterator[Arguments], total: int | None, single: bool, streams: bool, more: Any
    ) -> Run:
        """A map of calls of one method. Not for users."""
        if self._released:
            raise CallRefused(f"this {self._name} was released: make another one by {self._name}.remote(…)")
        name = f"{self._name}.{method}"
        raised = more.pop("return_exceptions", False)
        run = Run(
            self._hub,
            map_spec(self._options, name, total, single, raised, stream=streams, method=method),
            name=name,
            requirements=self._options.requirements,
            version=self._version,
            job=self._job,
            arguments=arguments,
            keeps=self,
            **more,
        )
        self._subscription = run.subscription
        return run

    def release(self) -> None:
        """Let it go: its process ends once the calls that were made are done. Returns at once."""
        if not self._released:
            self._released = True
            _end(self._hub, self._subscription)

    def at_exit(self) -> None:
        """This process ends: so does the object."""
        view = self._subscription.view if self._subscription is not None and not self._released else None
        if view is not None:
            self._released = True
            self._hub.connection.end_calls(view.job)

    def __enter__(self) -> RemoteObject[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if not getattr(self, "_released", True):
            self._released = True
            _end(self._hub, self._subscription)

    def __repr__(self) -> str:
        return f"<gpulayer object {self._name}>"


def _end(home: Hub, subscription: MapSubscription | None) -> None:
    """End the object's process once it is known by which job it is; where it never was called, there is none.

    The garbage collector may call this.
    """
    if subscription is not None:
        home.connection.later(lambda: subscription.named(lambda view: home.connection.end_calls(view.job)))


class RemoteMethod(Callee, Face[..., Any]):
    """A method of a remote object; it is called, spawned and mapped as a remote function is."""

    def __init__(self, owner: RemoteObject[Any], name: str, signature: Signature, *, streams: bool):
        self.signature = signature
        self._owner = owner
        self._method = name
        self._streams = streams

    def open(self, arguments: Iterator[Arguments], *, total: int | None, single: bool = False, **more: Any) -> Run:
        return self._owner.open(self._method, arguments, total, single, self._streams, more)

    def __repr__(self) -> str:
        return f"<gpulayer method {self._method} of {self._owner!r}>"
