"""Calls of functions: what runners load, what a map is, and the messages that carry calls and results.

A *calls job* is a function with its requirements; its tasks are *leases*, each of one *runner*: a warm process that
has loaded the function. A *map* is a number of calls that belong together (one call is a map of one); a call is known
by its map and its index. The first accepted result of an index wins, and a fenced runner's results are refused.

Arguments and results are bytes that only client and runner understand (`gpulayer.protocol.values.calls`). What is
large in them travels as blobs.
"""

from __future__ import annotations

from gpulayer.protocol.base import Struct
from gpulayer.protocol.outcomes import Reason, State

#: How a call ended: one byte for each, in `codes`.
OK, RAISED, VALUE_REFUSED, TIMED_OUT, RUNNER_DIED, NOT_RUN = range(6)

#: Bytes of arguments, or of results, that one message carries at most, unless a single call has more.
MESSAGE_BYTES = 256 * 1024
#: Calls in one message at most.
MESSAGE_CALLS = 512


class Piece(Struct, frozen=True, kw_only=True):
    """A part of a notebook's or script's source, where it stood: tracebacks point there.

    `gpulayer.source.capture.Piece` says what each field means.
    """

    filename: str
    first_line: int
    text: str
    slot: str = ""
    defines: str = ""
    names: tuple[str, ...] = ()
    closure: tuple[tuple[str, str], ...] | None = None
    given: tuple[tuple[str, str], ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    future: tuple[str, ...] = ()


class FunctionSpec(Struct, frozen=True, kw_only=True):
    """What a runner loads: a function or class of a module of the bundle, or of generated source."""

    name: str  # as people know it
    qualname: str
    kind: str = "function"  # 'generator', 'class'
    is_async: bool = False
    module: str = ""  # imported by name; '': `pieces` hold all of it
    bundle: str = ""  # digest of the manifest of the files that travel with it; '' for none
    sys_path: tuple[str, ...] = ()  # folders below the bundle's, '' for that itself
    pieces: tuple[Piece, ...] = ()
    data: bytes = b""  # captured values by name, as `values.calls.pack` made them of a dict
    file: str = ""  # of a script: its path below the bundle's folder, for `__file__`
    digest: str = ""  # of what was captured


class CallsSpec(Struct, frozen=True, kw_only=True):
    """A job of calls: its function, and how its runners are kept."""

    function: FunctionSpec
    isolate: bool = False  # a fresh process for each call
    stateful: bool = False  # one runner that keeps an object; its calls run there, in order, or not at all
    init: bytes = b""  # of a stateful one: the packed arguments of its constructor
    init_blobs: tuple[str, ...] = ()
    instance: str = ""  # of a stateful one: a name of its own
    max_runners: int | None = None
    idle_timeout_s: float = 300.0  # after so long without a call a runner ends by itself
    memory_limit_bytes: int | None = None  # a runner that has more is replaced after its call
    env: dict[str, str] = {}


class MapSpec(Struct, frozen=True, kw_only=True):
    """How the calls of a map are run."""

    total: int | None = None  # None: not known yet; the last `MapArgs` says it
    single: bool = False  # a person made a call, not a map
    method: str = ""  # of a stateful class
    timeout_s: float | None = None  # of each call
    retries: int = 0  # of a call that raised, timed out, or whose runner died
    backoff_s: float = 1.0  # before the first of them; twice as much before each further one
    return_exceptions: bool = False  # a failed call does not stop the map
    stream: bool = False  # of a generator: its items come one by one
    name: str = ""
    notebook: str = ""
    cell_id: str = ""


class CallRange(Struct, frozen=True, kw_only=True):
    """The calls of a map from index `first` on."""

    map: str
    first: int
    count: int = 1


class MapView(Struct, frozen=True, kw_only=True):
    """A map as clients see it. `state` is queued before anything of it ran; running; or how it ended."""

    id: str  # 'k3f9.17': the job's id, and its number in it
    job: str
    state: State
    total: int | None = None
    taken: int = 0  # calls whose arguments are here
    done: int = 0  # calls with a result, good or bad
    failed: int = 0  # of them
    running: int = 0  # calls that runners have
    runners: int = 0
    workers: tuple[str, ...] = ()  # names of those on which they are
    name: str = ""
    single: bool = False
    streams: bool = False  # its calls are generators': their results are the items that came before
    returns_exceptions: bool = False  # of a failed call, in the place of its result
    cancelling: bool = False
    reasons: tuple[Reason, ...] = ()  # why nothing runs
    nearest: str = ""
    progress: str = ""  # of a runner that is being started
    left_at: float | None = None  # Unix time: since then its client is away, which has not sent all of its calls
    problem: str = ""  # why it ended, where no call says it
    failed_index: int | None = None  # the call that stopped it
    failed_code: int = OK
    failure: bytes = b""  # that call's result
    opened_at: float = 0.0  # Unix time, seconds
    started_at: float | None = None
    ended_at: float | None = None


class CallsCount(Struct, frozen=True, kw_only=True):
    """The calls of a job, over all of its maps that are kept in memory or ended."""

    maps: int = 0
    calls: int = 0  # that came in
    done: int = 0
    failed: int = 0
    dropped: int = 0  # whose map ended before they had a result
    running: int = 0
    runners: int = 0
    idle_since: float | None = None  # Unix time; None while there is a call


class CallFailure(Struct, frozen=True, kw_only=True):
    """Why a call failed; JSON in the place of its result."""

    kind: str  # 'raised', 'value', 'timeout', 'died', 'load'
    type: str = ""  # the exception's class: 'ValueError', 'mymodule.MyError'
    base: str = ""  # the builtin class that it is, or derives from
    text: str = ""  # its message, or one line that says what happened
    traceback: str = ""  # as Python prints it, without frames of ours
    worker: str = ""  # the machine's name


# ---------------------------------------------------------------- client to control plane


class OpenMap(Struct, frozen=True, kw_only=True, tag="open_map"):
    """A new map, in the job of the same function and requirements that lives, or in a new one.

    The same `key` gives the same map. Calls may come with it. It is followed from here on.
    """

    n: int
    key: str
    job: bytes  # a `JobSpec`, packed: the control plane knows by it whether it is the same
    map: MapSpec = MapSpec()
    args: tuple[bytes, ...] = ()  # of the first calls
    blobs: tuple[str, ...] = ()  # that these name
    last: bool = False  # there are no others
    ordered: bool = True  # results come in the order of their calls, else as they are there


class MapArgs(Struct, frozen=True, kw_only=True, tag="map_args"):
    """More calls, from index `first` on. Sent again, those that are here are passed over.

    Without calls it says that who sends it has more to send: a map whose client is away for long is ended.
    """

    n: int
    map: str
    first: int
    args: tuple[bytes, ...] = ()
    blobs: tuple[str, ...] = ()
    last: bool = False


class FollowMap(Struct, frozen=True, kw_only=True, tag="follow_map"):
    """Send the map's states, results and what its calls write, from where the client was."""

    n: int
    map: str
    ordered: bool = True
    after: int = 0  # ordered: the index of the next result; else the cursor that came with the last ones
    texts: dict[str, int] = {}  # by attempt: how far its stream was read


class CancelMap(Struct, frozen=True, kw_only=True, tag="cancel_map"):
    """End a map: what waits is dropped, what runs is interrupted."""

    n: int
    map: str


class EndCalls(Struct, frozen=True, kw_only=True, tag="end_calls"):
    """End the runners of a job, such as a stateful one's, once its calls are done."""

    n: int
    job: str


# ---------------------------------------------------------------- control plane to client


class ResultRun(Struct, frozen=True, kw_only=True):
    """Results of calls that stand one behind the other."""

    first: int
    codes: bytes  # one for each
    data: tuple[bytes, ...]


class MapTaken(Struct, frozen=True, kw_only=True, tag="map_taken"):
    """The arguments of the first `upto` calls are durable."""

    n: int
    upto: int


class MapUpdate(Struct, frozen=True, kw_only=True, tag="map_update"):
    """The map as it is now; also the answer to `OpenMap`, `FollowMap` and `CancelMap`. After a terminal one nothing
    follows.
    """

    n: int
    map: MapView


class MapResults(Struct, frozen=True, kw_only=True, tag="map_results"):
    """Results, and from where to go on."""

    n: int
    cursor: int
    runs: tuple[ResultRun, ...]


class MapRecord(Struct, frozen=True, kw_only=True, tag="map_record"):
    """What a call wrote, or an item of a generator. `at` is how far the attempt's stream was read with it."""

    n: int
    index: int
    kind: int  # records.Kind: CALL_STDOUT, CALL_STDERR, CALL_ITEM
    seq: int  # of an item, from 0
    data: bytes
    attempt: str
    at: int


# ---------------------------------------------------------------- control plane to worker


class CallBatch(Struct, frozen=True, kw_only=True):
    """Calls of one map that stand one behind the other."""

    map: str
    first: int
    args: tuple[bytes, ...]
    blobs: tuple[str, ...] = ()  # what these need on the worker
    method: str = ""
    timeout_s: float | None = None
    stream: bool = False


class Calls(Struct, frozen=True, kw_only=True, tag="calls"):
    """Run these, in order."""

    attempt: str
    batches: tuple[CallBatch, ...]


class CallsAccepted(Struct, frozen=True, kw_only=True, tag="calls_accepted"):
    """The results of these are committed, or not wanted: they may be let go of."""

    attempt: str
    ranges: tuple[CallRange, ...]


class RecallCalls(Struct, frozen=True, kw_only=True, tag="recall_calls"):
    """Give back `count` calls that no runner has, the last ones first: another runner is free."""

    attempt: str
    count: int


class DropCalls(Struct, frozen=True, kw_only=True, tag="drop_calls"):
    """The calls of a map are not wanted: those that wait go, the one that runs is interrupted."""

    attempt: str
    map: str


class EndRunner(Struct, frozen=True, kw_only=True, tag="end_runner"):
    """End once the calls that are running are done: those that wait come back with `CallsReturned`."""

    attempt: str


# ---------------------------------------------------------------- worker to control plane


class CallRun(Struct, frozen=True, kw_only=True):
    """Results of calls that stand one behind the other."""

    map: str
    first: int
    codes: bytes  # one for each
    data: tuple[bytes, ...]
    blobs: tuple[str, ...] = ()  # that these name: the control plane has them
    spent_us: int = 0  # that they ran, all together


class CallsDone(Struct, frozen=True, kw_only=True, tag="calls_done"):
    """Results; told again on each new connection until they are accepted."""

    attempt: str
    runs: tuple[CallRun, ...]


class CallsReturned(Struct, frozen=True, kw_only=True, tag="calls_returned"):
    """These did not run here, or (`began`) a runner died while it had them: they are to run elsewhere, or anew."""

    attempt: str
    ranges: tuple[CallRange, ...]
    began: bool = False
    reason: str = ""  # of one that began: 'signal 9', 'out of memory: …'
