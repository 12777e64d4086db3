"""What a client says about maps: new ones, more calls, following, an end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from gpulayer.protocol.calls import (
    MESSAGE_CALLS,
    CancelMap,
    EndCalls,
    FollowMap,
    MapArgs,
    MapTaken,
    MapUpdate,
    MapView,
    OpenMap,
)
from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.messages import Refused, Update
from gpulayer.protocol.types import JobView, Problem
from gpulayer_server.core.events import ArgsCame, CallsEndWanted, MapCancelWanted, MapOpened
from gpulayer_server.http.mapfollow import MapFollower, MapPump
from gpulayer_server.http.mapresults import AsTheyCome, Ordered
from gpulayer_server.maptexts import MapTexts
from gpulayer_server.shell import Shell
from gpulayer_server.specs import Known
from gpulayer_server.submitting import lacking, lacking_blobs

if TYPE_CHECKING:
    from gpulayer_server.http.client_socket import ClientSocket

MapMessage: TypeAlias = OpenMap | MapArgs | FollowMap | CancelMap | EndCalls


class MapClient:
    """One client's maps. Owned by its socket."""

    def __init__(self, socket: ClientSocket):
        self._socket = socket
        self._shell: Shell = socket.shell
        self._pump = MapPump(socket)
        self.following: dict[int, MapFollower] = {}
        self._closed = False

    def take(self, message: MapMessage) -> None:
        """What the client says."""
        match message:
            case OpenMap():
                self._open(message)
            case MapArgs():
                self._args(message)
            case FollowMap():
                self._shell.after_commits(partial(self._follow_stored, message))
            case CancelMap():
                self._cancel(message)
            case EndCalls():
                self._end(message)

    def unfollow(self, n: int) -> None:
        """Send no more about it."""
        follower = self.following.pop(n, None)
        if follower is not None:
            self._pump.drop(follower)
            self._shell.maps.unfollow(follower.map, follower)

    def close(self) -> None:
        """The client is gone; the maps go on."""
        self._closed = True
        self._pump.close()
        self._shell.senders.left(self)
        for n in list(self.following):
            self.unfollow(n)

    # ---------------------------------------------------------------- new maps and calls

    def _open(self, message: OpenMap) -> None:
        shell, owner = self._shell, self._socket.owner
        problem = _of_message(message)
        if problem is not None:
            self._refuse(message.n, problem)
            return
        known = shell.specs.of(message.job)
        problem = known if isinstance(known, Problem) else self._lacking(known, message)
        if isinstance(known, Problem) or problem is not None:
            self._refuse(message.n, problem)
            return
        is_new = (owner, message.key) not in shell.plane.calls.keys
        past = shell.map_by_key(owner, message.key) if is_new else None
        if past is not None:
            self._follow(message.n, past, ordered=message.ordered)
            return
        calls = known.spec.calls
        is_object = calls is not None and calls.stateful and (owner, known.payload_hash) not in shell.plane.calls.pools
        event = partial(
            MapOpened,
            owner=owner,
            gone=shell.why_gone(owner, known.payload_hash) if is_object else "",
            key=message.key,
            payload_hash=known.payload_hash,
            spec=known.spec,
            map=message.map,
            args=message.args,
            blobs=message.blobs,
            last=message.last,
        )
        reach("server.map-asked")
        shell.request(lambda request: event(request=request), partial(self._opened, message, is_new))

    def _lacking(self, known: Known, message: OpenMap) -> Problem | None:
        problem = self._shell.specs.lacks(known, lambda spec: lacking(self._shell, [spec]))
        return problem or lacking_blobs(self._shell, message.blobs)

    def _opened(self, message: OpenMap, is_new: bool, result: MapView | Problem) -> None:
        if isinstance(result, Problem):
            self._refuse(message.n, result)
            return
        if not message.last:
            self._sends(result.id)
            self._socket.send([MapTaken(n=message.n, upto=result.taken)])
        self._follow(message.n, result, ordered=message.ordered, is_new=is_new)

    def _args(self, message: MapArgs) -> None:
        problem = self._not_theirs(message.map, "bring calls to") or _of_message(message)
        problem = problem or lacking_blobs(self._shell, message.blobs)
        if problem is not None:
            self._refuse(message.n, problem)
            return

        def reply(result: MapView | Problem) -> None:
            result = self._past(message.map, result)
            if isinstance(result, Problem):
                self._refuse(message.n, result)
            else:
                self._socket.send([MapTaken(n=message.n, upto=result.taken)])

        if not message.last:
            self._sends(message.map)
        event = partial(
            ArgsCame,
            map=message.map,
            first=message.first,
            args=message.args,
            blobs=message.blobs,
            last=message.last,
        )
        self._shell.request(lambda request: event(request=request), reply)

    def _sends(self, name: str) -> None:
        """More calls of a map are to come from here: it waits for them as long as this client is connected."""
        if not self._closed:
            self._shell.senders.came(self, name)

    # ---------------------------------------------------------------- following

    def _follow_stored(self, message: FollowMap) -> None:
        view = self._shell.told_map_view(message.map)
        if view is None:
            self._refuse(message.n, no_such_map(message.map))
            return
        self._follow(message.n, view, ordered=message.ordered, after=message.after, texts=message.texts)

    def _follow(
        self,
        n: int,
        view: MapView,
        *,
        ordered: bool,
        after: int = 0,
        texts: dict[str, int] | None = None,
        is_new: bool = False,
    ) -> None:
        """Follow a map from where the client is. Of one that is new nothing was written yet."""
        self.unfollow(n)
        shell = self._shell
        offsets: dict[str, int] = {}
        if not is_new:
            offsets = dict.fromkeys(shell.attempts_of_map(view), 0) | (texts or {})
        read = shell.reader_of(view.id, ordered=ordered)
        results = Ordered(read, after, view.done) if ordered else AsTheyCome(read, after, view.done)
        map_texts = MapTexts(shell.streams, view.id, offsets)
        follower = MapFollower(self._pump, n, view, results, map_texts, self._over)
        self.following[n] = follower
        shell.maps.follow(view.id, follower)
        if is_new and view.single:
            self._pump.later()
        else:
            self._pump.soon()  # after what goes to runners now

    def _over(self, follower: MapFollower) -> None:
        if self.following.get(follower.n) is follower:
            self.unfollow(follower.n)

    # ---------------------------------------------------------------- ends

    def _cancel(self, message: CancelMap) -> None:
        problem = self._not_theirs(message.map, "cancel")
        if problem is not None:
            self._refuse(message.n, problem)
            return
        self._shell.request(
            lambda request: MapCancelWanted(request=request, map=message.map), self._answer(message.n, message.map)
        )

    def _answer(self, n: int, name: str) -> Callable[[MapView | Problem], None]:
        def reply(result: MapView | Problem) -> None:
            result = self._past(name, result)  # of one that ended long ago nothing is left to cancel
            if isinstance(result, Problem):
                self._refuse(n, result)
            elif n not in self.following:  # who follows it is told anyway, once all of it was sent
                self._socket.send([MapUpdate(n=n, map=result)])

        return reply

    def _past(self, name: str, result: MapView | Problem) -> MapView | Problem:
        """An answer about a map; of one that ended long ago, how it did."""
        past = self._shell.map_view(name) if isinstance(result, Problem) and result.status == 404 else None
        return result if past is None else past

    def _end(self, message: EndCalls) -> None:
        problem = self._socket.not_theirs(message.job, self._shell.owner_of(message.job))
        if problem is not None:
            self._refuse(message.n, problem)
            return

        def reply(result: JobView | Problem) -> None:
            past = self._shell.view(message.job) if isinstance(result, Problem) and result.status == 404 else None
            if past is not None and past.kind == "calls":
                result = past  # it ended already
            if isinstance(result, Problem):
                self._refuse(message.n, result)
            else:
                self._socket.send([Update(n=message.n, job=result)])

        self._shell.request(lambda request: CallsEndWanted(request=request, job=message.job), reply)

    # ---------------------------------------------------------------- refusing

    def _not_theirs(self, name: str, what: str) -> Problem | None:
        owner = self._shell.owner_of_map(name)
        if owner is None:
            return no_such_map(name)
        return self._socket.not_their_map(name, owner, what)

    def _refuse(self, n: int, problem: Problem | None) -> None:
        if problem is not None:
            self._socket.send([Refused(n=n, problem=problem)])


def _of_message(message: OpenMap | MapArgs) -> Problem | None:
    if isinstance(message, OpenMap) and not message.key:
        title, detail = "a map needs an idempotency key", "any text that names it alone"
        return Problem(status=400, code="bad_request", title=title, detail=detail)
    if len(message.args) > MESSAGE_CALLS:
        title = f"{len(message.args):,} calls came in one message, and at most {MESSAGE_CALLS} may"
        return Problem(status=400, code="bad_request", title=title)
    return None


def no_such_map(name: str) -> Problem:
    """The problem of a map that is not there."""
    return Problem(status=404, code="no_such_map", title=f"no map {name[:80]}")
