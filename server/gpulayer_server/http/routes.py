"""The table of routes: every path, who handles it, what it takes and gives. `openapi` makes the document from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from gpulayer.protocol.calls import MapView
from gpulayer.protocol.types import AttemptView, Explanation, JobView, SessionView, State, TaskView, WorkerView
from gpulayer_server.http import jobs, listen, loop, maps, rest, source, tokens, uploads
from gpulayer_server.http.base import MAY, Handler
from gpulayer_server.http.client_socket import ClientSocket
from gpulayer_server.http.events import EventsSocket
from gpulayer_server.http.openapi import BYTES, TEXT, Operation, Parameter, Route, document
from gpulayer_server.http.watch import WatchSocket
from gpulayer_server.http.worker_socket import WorkerSocket


class OpenApiHandler(Handler):
    """GET /v1/openapi.json"""

    _made: bytes = b""

    def get(self) -> None:
        """The document of this API."""
        if not OpenApiHandler._made:
            OpenApiHandler._made = msgspec.json.encode(document(ROUTES, roles))
        self.set_header("Content-Type", "application/json")
        self.finish(OpenApiHandler._made)


def roles(method: str, path: str) -> list[str]:
    """The roles that may use a method and a path."""
    return [role for role, pattern in MAY.items() if pattern.fullmatch(f"{method} {path}")]


def _query(name: str, kind: Any, text: str) -> Parameter:
    return Parameter(name=name, kind=kind, text=text)


def _must(name: str, kind: Any, text: str) -> Parameter:
    return Parameter(name=name, kind=kind, text=text, required=True)


def _at(path: str, handler: type[Handler], *operations: Operation) -> Route:
    return Route(path=path, handler=handler, operations=operations)


def _does(method: str) -> Callable[..., Operation]:
    """Makes operations of a method, of their name, a line about them, and more."""

    def make(name: str, text: str, **more: Any) -> Operation:
        return Operation(method=method, name=name, text=text, **more)

    return make


_get, _head, _post, _patch, _delete = map(_does, ("GET", "HEAD", "POST", "PATCH", "DELETE"))


def _socket(name: str, text: str, *query: Parameter) -> Operation:
    return Operation(method="GET", name=name, text=text, status=101, query=query)


_INDEX = _query("index", int, "of one task; without it the only one, or all of them")
_SIZE = _must("size", int, "the whole blob's length in bytes")
_OFFSET = _must("Upload-Offset", int, "how many bytes of the blob are here")
_HERE = (Parameter(name="Upload-Offset", kind=int, text="how many bytes of the blob are here"),)
_RANGE = Parameter(name="Range", kind=str, text="`bytes=FIRST-` or `bytes=FIRST-LAST`: a part of it")

_JOBS = (
    _at(
        "/v1/jobs",
        jobs.JobsHandler,
        _get(
            "listJobs",
            "Jobs, newest first",
            answer=list[JobView],
            query=(
                _query("limit", int, "so many at most; 50 unless told, 1,000 at most"),
                _query("state", State, "only those in this state"),
                _query("label", str, "KEY=VALUE: only those that have this label"),
                _query("name", str, "only those of this name"),
                _query("owner", str, "only those of this person; everybody's unless told"),
                _query("before", str, "the id of a job: only older ones"),
                _query("notebook", str, "the path of a notebook: only its cells"),
            ),
        ),
        _post(
            "submitJob",
            "A new job; the same key with the same spec gives the job that it made before",
            body=jobs.SubmitBody,
            answer=JobView,
            status=201,
        ),
    ),
    _at(
        "/v1/jobs/batch",
        jobs.BatchHandler,
        _post(
            "submitJobs",
            "Many jobs, all or none; at most 10,000",
            body=jobs.BatchBody,
            answer=jobs.BatchAnswer,
            status=201,
        ),
    ),
    _at(
        "/v1/jobs/states",
        jobs.StatesHandler,
        _post(
            "getStates",
            "The states of many jobs, by their ids; those that are not there are left out",
            body=jobs.StatesBody,
            answer=dict[str, State],
        ),
    ),
    _at(
        "/v1/jobs/{job}",
        jobs.JobHandler,
        _get(
            "getJob",
            "One job",
            answer=JobView,
            query=(_query("wait", float, "seconds, at most 60: answer when the job is over, or after them"),),
        ),
    ),
    _at(
        "/v1/jobs/{job}/cancel",
        jobs.CancelHandler,
        _post("cancelJob", "A wish to cancel, kept until the worker confirms", body=jobs.CancelBody, answer=JobView),
    ),
    _at("/v1/jobs/{job}/tasks", jobs.TasksHandler, _get("listTasks", "Its tasks, by index", answer=list[TaskView])),
    _at(
        "/v1/jobs/{job}/attempts",
        jobs.AttemptsHandler,
        _get("listAttempts", "Every try of its tasks, with its record", answer=list[AttemptView], query=(_INDEX,)),
    ),
    _at(
        "/v1/jobs/{job}/outputs",
        jobs.OutputsHandler,
        _get(
            "listOutputs",
            "The files that came back; each one's bytes are a blob",
            answer=list[jobs.OutputView],
            query=(_INDEX,),
        ),
    ),
    _at(
        "/v1/jobs/{job}/logs",
        jobs.LogsHandler,
        _get(
            "getLogs",
            "What its program wrote until now, as it wrote it",
            answer=TEXT,
            query=(
                _INDEX,
                _query("stream", Literal["stdout", "stderr"], "only this; without it both, in order"),
                _query("tail", int, "only the last so many bytes"),
            ),
        ),
    ),
    _at(
        "/v1/jobs/{job}/stream",
        rest.StreamSocket,
        _socket(
            "followStream",
            "A websocket: each record of the stream as one binary message (kind, then body), until the job is over",
            _query("after", int, "the number of a record: only later ones"),
        ),
    ),
    _at(
        "/v1/jobs/{job}/events",
        EventsSocket,
        _socket(
            "followEvents",
            "A websocket of JSON: the job at each change, and its output as events, until it is over",
            _query("attempt", str, "the attempt that `after` is about"),
            _query("after", int, "the number of an event: only later ones"),
        ),
    ),
)

_MAPS = (
    _at(
        "/v1/maps",
        maps.MapsHandler,
        _get(
            "listMaps",
            "The maps of a job of calls, newest first",
            answer=list[MapView],
            query=(
                _must("job", str, "the job's id"),
                _query("limit", int, "so many at most; 50 unless told, 1,000 at most"),
                _query("before", int, "the number of a map in its job: only older ones"),
            ),
        ),
    ),
    _at("/v1/maps/{map}", maps.MapHandler, _get("getMap", "One map", answer=MapView)),
    _at(
        "/v1/maps/{map}/cancel",
        maps.CancelMapHandler,
        _post("cancelMap", "End a map: what waits is dropped, what runs is interrupted", answer=MapView),
    ),
    _at(
        "/v1/maps/{map}/results",
        maps.ResultsHandler,
        _get(
            "getResults",
            "Results without a gap, as msgpack: a list of runs, each with the index of its first call, a byte for each "
            "call that says how it ended (0: well), and each one's value as the function's client and runner pack it",
            answer=BYTES,
            query=(
                _query("after", int, "the index of the first call; 0 unless told"),
                _query("limit", int, "so many results at most"),
            ),
        ),
    ),
)

_FLEET = (
    _at(
        "/v1/explain",
        jobs.ExplainHandler,
        _post(
            "explain",
            "What would become of a job with such requirements now, worker by worker; nothing is submitted",
            body=jobs.ExplainBody,
            answer=Explanation,
        ),
    ),
    _at("/v1/health", rest.HealthHandler, _get("getHealth", "Who answers here", answer=rest.Health)),
    _at("/v1/openapi.json", OpenApiHandler, _get("getOpenApi", "This document", answer=dict[str, Any])),
    _at("/v1/workers", rest.WorkersHandler, _get("listWorkers", "Every worker that is known", answer=list[WorkerView])),
    _at("/v1/sessions", rest.SessionsHandler, _get("listSessions", "Your open sessions", answer=list[SessionView])),
    _at(
        "/v1/sessions/{session}",
        rest.SessionHandler,
        _delete("releaseSession", "Let a session of yours go", status=204),
    ),
    _at(
        "/v1/watch",
        WatchSocket,
        _socket("watchFleet", "A websocket of JSON: workers, sessions and jobs, then what changes"),
    ),
    _at("/v1/client", ClientSocket, _socket("connectClient", "A websocket of msgpack frames: submit, follow, cancel")),
    _at("/v1/worker", WorkerSocket, _socket("connectWorker", "A websocket of msgpack frames: a worker's connection")),
    _at(
        "/v1/listen",
        listen.ListenHandler,
        _get("getListening", "Where it listens for other machines", answer=listen.Listening),
        _post("listen", "Listen for other machines there, by TLS", body=listen.ListenBody, answer=listen.Listening),
    ),
    _at(
        "/v1/loop",
        loop.LoopHandler,
        _post("beginLoopProbe", "Begin to measure how late the loop is", status=204),
        _delete("endLoopProbe", "How late the loop was", answer=loop.LoopLag),
    ),
)

_TOKENS = (
    _at(
        "/v1/tokens",
        tokens.TokensHandler,
        _get("listTokens", "Every token that is kept; never what it is", answer=list[tokens.TokenView]),
        _post("createToken", "A new token, shown this once", body=tokens.TokenBody, answer=tokens.NewToken, status=201),
    ),
    _at(
        "/v1/tokens/{token}",
        tokens.TokenHandler,
        _delete(
            "revokeToken",
            "End a token, by its id or name; whoever uses it is cut off",
            status=204,
            query=(_query("workers", bool, "also the credentials that were given for it"),),
        ),
    ),
    _at(
        "/v1/join",
        tokens.JoinHandler,
        _post(
            "join", "A worker's own credential for a join token", body=tokens.JoinBody, answer=tokens.Joined, status=201
        ),
    ),
)

_FILES = (
    _at(
        "/v1/bundles",
        source.BundlesHandler,
        _post(
            "announceBundle",
            "A manifest of files; the answer names the blobs that lack",
            body=BYTES,
            answer=source.BundleAnswer,
        ),
    ),
    _at(
        "/v1/blobs",
        source.BlobsHandler,
        _post(
            "sendBlobs",
            "A pack of small blobs, with the manifest of a bundle if that is named",
            body=BYTES,
            answer=source.BlobsAnswer,
            query=(
                _query("bundle", str, "the digest of a manifest in the pack"),
                _query("near", str, "the digest of a manifest that it resembles"),
            ),
        ),
    ),
    _at(
        "/v1/blobs/fetch",
        source.FetchHandler,
        _post(
            "fetchBlobs",
            "Blobs by their digests, as a pack",
            body=list[str],
            answer=BYTES,
            query=(_query("coding", Literal["zstd"], "compressed"),),
        ),
    ),
    _at(
        "/v1/blobs/{sha256}",
        source.BlobHandler,
        _get("getBlob", "A blob's bytes", answer=BYTES, headers=(_RANGE,), also={206: "The part that was asked for"}),
        _head("findBlob", "Whether a blob is here, and its length"),
    ),
    _at(
        "/v1/uploads/{sha256}",
        uploads.UploadHandler,
        _head(
            "findUpload",
            "How many bytes of a blob are here: as many as its size says when it is whole",
            query=(_SIZE,),
            gives=_HERE,
        ),
        _patch(
            "sendChunk",
            "The next bytes of a blob, at most 8 MiB; 409 with the true offset where that is another",
            body=BYTES,
            answer=uploads.UploadAnswer,
            query=(_SIZE,),
            headers=(_OFFSET, _must("Upload-Checksum", str, "SHA-256 of these bytes, hexadecimal")),
            gives=_HERE,
        ),
    ),
)

ROUTES: tuple[Route, ...] = (*_FLEET, *_JOBS, *_MAPS, *_TOKENS, *_FILES)
"""Every route, in the order in which they are tried."""
