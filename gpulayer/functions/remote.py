"""`gl.remote`: a function that runs where it fits."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from gpulayer.functions.frames import shortly
from gpulayer.functions.handles import Call, Items, Map
from gpulayer.functions.hub import hub
from gpulayer.functions.options import CallRefused, Options
from gpulayer.functions.places import where_called
from gpulayer.functions.running import Arguments, Run
from gpulayer.functions.signatures import Signature
from gpulayer.functions.versions import Versions
from gpulayer.protocol.calls import MapSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gpulayer.functions.aio import AsyncFunction
    from gpulayer.functions.classes import RemoteClass
    from gpulayer.functions.options import Wishes
    from gpulayer.placement import Placing

    class All(Placing, Wishes, total=False):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Every keyword argument of `gl.remote`."""


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Callee:
    """What functions and methods of remote objects share: how their maps are opened."""

    def open(
        self,
        arguments: Iterator[Arguments],
        *,
        total: int | None,
        single: bool = False,
        return_exceptions: bool = False,
        **more: Any,
    ) -> Run:
        """A map of these calls. Raises `CallRefused`, `SourceRefused`."""
        raise NotImplementedError

    signature: Signature  # of what is called

    def one(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        """One call. Raises as `open`, and `CallRefused` for arguments that it does not take."""
        self.signature.check(args, kwargs)
        return self.open(iter(((args, kwargs),)), total=1, single=True)

    def many(
        self,
        arguments: Iterator[Arguments],
        total: int | None,
        *,
        ordered: bool,
        return_exceptions: bool,
        chunk: int | None,
        progress: bool | None,
    ) -> Run | None:
        """A map; None for one of nothing."""
        if chunk is not None and (not isinstance(chunk, int) or chunk < 1):
            raise CallRefused(f"chunk={chunk!r} is no number of calls")
        if total == 0:
            return None
        return self.open(
            arguments,
            total=total,
            return_exceptions=return_exceptions,
            ordered=ordered,
            chunk=chunk,
            progress=progress,
        )


def map_spec(
    options: Options,
    name: str,
    total: int | None,
    single: bool,
    return_exceptions: bool,
    *,
    stream: bool = False,
    method: str = "",
) -> MapSpec:
    """How the calls of a map are run."""
    notebook, cell_id = where_called()
    return MapSpec(
        total=total,
        single=single,
        method=method,
        timeout_s=options.timeout_s,
        retries=int(options.retries),
        backoff_s=options.backoff_s,
        return_exceptions=return_exceptions,
        stream=stream,
        name=name,
        notebook=notebook,
        cell_id=cell_id,
    )


def value_of(run: Run) -> Any:
    """Wait for the only call of a map, and for nothing after it; cancelled where the wait ends otherwise."""
    __tracebackhide__ = True
    try:
        run.wait(lambda: run.has_runs)
        return run.only_value()
    finally:
        run.leave()


def zipped(
    signature: Signature, iterable: Iterable[Any], more: tuple[Iterable[Any], ...]
) -> tuple[Iterator[Arguments], int | None]:
    """The arguments of the calls of a map, and how many there are if that is known. Raises as `Signature.check`."""
    every = (iterable, *more)
    signature.check(every, {})  # each call has so many
    totals = [total for each in every if (total := _length(each)) != _ENDLESS]
    known = [total for total in totals if total is not None]
    calls = ((args, {}) for args in zip(*every, strict=False))
    return calls, min(known) if known and len(known) == len(totals) else None


def starred(signature: Signature, iterable: Iterable[Iterable[Any]]) -> tuple[Iterator[Arguments], int | None]:
    """The same of tuples of arguments."""
    return _starred(signature, iterable), _length(iterable)


def _starred(signature: Signature, iterable: Iterable[Iterable[Any]]) -> Iterator[Arguments]:
    for number, each in enumerate(iterable):
        try:
            args = tuple(each)
        except TypeError:
            raise CallRefused(
                f"starmap takes a tuple of arguments for each call; of call {number} it is {type(each).__name__}: "
                f"{each!r:.60}"
            ) from None
        signature.check(args, {}, number)
        yield args, {}


_ENDLESS = -1


def _length(iterable: Iterable[Any]) -> int | None:
    if type(iterable) is itertools.repeat:  # the same in every call
        return operator.length_hint(iterable, _ENDLESS)
    try:
        return len(iterable)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


class Face(Generic[P, R]):
    """How a remote function, or method, is called."""

    if TYPE_CHECKING:  # of `Callee`, which each of them is too
        signature: Signature

        def one(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run: ...

        def many(self, arguments: Iterator[Arguments], total: int | None, **options: Any) -> Run | None: ...

    @shortly
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it, and wait for what it returns; of a generator an iterator of what it yields, as it comes.

        Raises:
            RemoteError: what it raised, as an exception of the same name, with the remote traceback.
            JobRejected: no machine could run it: why, machine by machine. CallRefused: it, or an argument, can't
            travel. JobCancelled, JobFailed, ControlPlaneError: see there.
        """
        run = self.one(args, kwargs)
        return Items(run) if run.spec.stream else value_of(run)  # pyright: ignore[reportReturnType]

    @shortly
    def spawn(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Call it, and go on: a handle to the call, which `gl.call(id)` finds again from any process."""
        return Call(self.one(args, kwargs))

    @shortly
    def map(
        self,
        iterable: Iterable[Any],
        /,
        *more: Iterable[Any],
        ordered: bool = True,
        return_exceptions: bool = False,
        chunk: int | None = None,
        progress: bool | None = None,
    ) -> Map[R]:
        """Call it with each of the arguments, on every slot that is free.

        Args:
            iterable: its first argument in each call; `more`: the others. The shortest ends it. They are taken as they
                are needed: of a generator not all at once.
            ordered: results come in the order of the arguments; else as they are there.
            return_exceptions: a call that fails gives its exception in the place of a result, and the others go on.
            chunk: so many calls at most are sent by one message; None: as many as are quick to gather.
            progress: whether it is shown how far it is; None: where somebody sits there.

        Returns:
            The results, as an iterator; `list(f.map(...))` waits for all of them. It raises what the first failed call
            raised.
        """
        arguments, total = zipped(self.signature, iterable, more)
        run = self.many(
            arguments,
            total,
            ordered=ordered,
            return_exceptions=return_exceptions,
            chunk=chunk,
            progress=progress,
        )
        return Map(run, return_exceptions=return_exceptions)

    @shortly
    def starmap(
        self,
        iterable: Iterable[Iterable[Any]],
        /,
        *,
        ordered: bool = True,
        return_exceptions: bool = False,
        chunk: int | None = None,
        progress: bool | None = None,
    ) -> Map[R]:
        """The same where each call has a tuple of arguments: `f.starmap([(1, 2), (3, 4)])`."""
        arguments, total = starred(self.signature, iterable)
        run = self.many(
            arguments,
            total,
            ordered=ordered,
            return_exceptions=return_exceptions,
            chunk=chunk,
            progress=progress,
        )
        return Map(run, return_exceptions=return_exceptions)

    @property
    def aio(self) -> AsyncFunction[P, R]:
        """The same, to be awaited: `await f.aio(x)`, `async for r in f.aio.map(...)`."""
        from gpulayer.functions.aio import AsyncFunction  # not at import: asyncio takes its time

        return AsyncFunction(self)  # pyright: ignore[reportArgumentType]


class RemoteFunction(Callee, Face[P, R]):
    """A function that runs on the machine that fits it. It is called as the function is; `local` calls it here.

    What it is, it is when it is called: one that was defined again, or a helper of it, takes effect with the next call.
    """

    def __init__(self, function: Callable[P, Any], options: Options):
        functools.update_wrapper(self, function, updated=())
        self.__gpulayer_function__ = function
        self._options = options
        self._versions = Versions(function, options)
        called = getattr(function, "__qualname__", "function").replace("<locals>.", "")
        self.name = options.name or called
        self.signature = Signature(called, function)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself, in this process."""
        __tracebackhide__ = True
        return self.__gpulayer_function__(*args, **kwargs)

    def with_options(self, **options: Unpack[All]) -> RemoteFunction[P, R]:
        """The same function with other options: see `gl.remote`."""
        return RemoteFunction(self.__gpulayer_function__, self._options.merged(options, "with_options"))

    # ---------------------------------------------------------------- what it stands on

    def open(
        self,
        arguments: Iterator[Arguments],
        *,
        total: int | None,
        single: bool = False,
        return_exceptions: bool = False,
        **more: Any,
    ) -> Run:
        version = self._versions.now()
        streams = version.function.kind == "generator"
        spec = map_spec(self._options, self.name, total, single, return_exceptions, stream=streams)
        return Run(
            hub(),
            spec,
            name=self.name,
            requirements=self._options.requirements,
            version=version,
            job=version.job,
            arguments=arguments,
            **more,
        )

    def __get__(self, instance: object, owner: type | None = None) -> RemoteFunction[P, R]:
        if instance is None:
            return self
        raise CallRefused(
            f"{self.name} is a method, whose object would have to travel: decorate the class with gl.remote, "
            "or make it a function outside of the class"
        )

    def __repr__(self) -> str:
        return f"<gpulayer function {self.name}>"


# ---------------------------------------------------------------- the decorator


class _Decorator:
    """What `gl.remote(...)` returns."""

    __gpulayer_decorator__ = True

    def __init__(self, options: Options):
        self._options = options

    @overload
    def __call__(self, target: type[T], /) -> RemoteClass[T]: ...
    @overload
    def __call__(self, target: Callable[P, Coroutine[Any, Any, R]], /) -> RemoteFunction[P, R]: ...
    @overload
    def __call__(self, target: Callable[P, R], /) -> RemoteFunction[P, R]: ...
    def __call__(self, target: Any, /) -> Any:
        return _made(target, self._options)


def _made(target: Any, options: Options) -> Any:
    if isinstance(target, type):
        from gpulayer.functions.classes import RemoteClass

        return RemoteClass(target, options)
    if isinstance(target, RemoteFunction):
        raise CallRefused(f"{target.name} is a remote function already: use .with_options(...)")
    if not callable(target):
        raise CallRefused(f"gl.remote needs a function or a class, this is {type(target).__name__}: {target!r:.60}")
    return RemoteFunction(target, options)


@overload
def remote(target: type[T], /) -> RemoteClass[T]: ...
@overload
def remote(target: Callable[P, Coroutine[Any, Any, R]], /) -> RemoteFunction[P, R]: ...
@overload
def remote(target: Callable[P, R], /) -> RemoteFunction[P, R]: ...
@overload
def remote(**options: Unpack[All]) -> _Decorator: ...
def remote(target: Any = None, /, **options: Any) -> Any:
    """Make a function run on the machine that fits it, or objects of a class live there.

        @gl.remote(accelerator="cuda", frameworks={"torch": ">=2.4"})
        def train(lr: float) -> dict: ...

        train(0.1); list(train.map([0.1, 0.01])); call = train.spawn(0.1); await train.aio(0.1)

    Args:
        target: the function or class, where it is used without options.
        options: what it needs of its machine, as of `gl.explain`. Besides: `retries` (of a call that raised, ran too
            long or whose process died), `backoff_s` (before the first of them; twice as long before each further one),
            `timeout_s` (of each call), `isolate` (a fresh process for each call), `idle_timeout_s` (so long without a
            call its processes are kept), `memory_limit` ('8GB': a process that has more is replaced after its call),
            `max_runners` (processes at once), `env` (variables), `source` (the folder that travels, in place of the
            one that is found; False: none), `include` and `exclude` (globs of files in it), `name`.

    Raises:
        CallRefused: an option can't be. TypeError: there is none of this name.
    """
    made = Options().merged(options)
    return _Decorator(made) if target is None else _made(target, made)


remote.__gpulayer_decorator__ = True  # pyright: ignore[reportFunctionMemberAccess]
