"""What the shell does with what the plane says of calls: arguments are added to them, and clients are told."""

from __future__ import annotations

from collections.abc import Sequence

from gpulayer.protocol.calls import CallBatch, CallRange, Calls, MapView
from gpulayer.protocol.messages import ServerMessage
from gpulayer_server.core.calls.views import map_view
from gpulayer_server.core.events import Dispatch, Effects
from gpulayer_server.core.plane import Plane
from gpulayer_server.store.database import Store
from tests.simulation.callstruth import CallsTruth
from tests.simulation.simulator import Violation


def maps_of(plane: Plane, effects: Effects) -> list[MapView]:
    """The maps that an event changed, as they are now."""
    views = [map_view(plane, name) for name in sorted(effects.maps)]
    return [view for view in views if view is not None]


def tell_maps(truth: CallsTruth, effects: Effects, views: Sequence[MapView]) -> None:
    """What leaves for those who follow maps: results first, then how the maps stand."""
    for name, run in effects.results:
        truth.told_results(name, run)
    for view in views:
        truth.told(view)


def with_arguments(store: Store, message: ServerMessage | Dispatch) -> ServerMessage:
    """A message as it leaves: calls that are given out are committed by now, with their arguments."""
    if not isinstance(message, Dispatch):
        return message
    return Calls(attempt=message.attempt, batches=tuple([_batch(store, each) for each in message.ranges]))


def _batch(store: Store, wanted: CallRange) -> CallBatch:
    state = store.maps.map(wanted.map)
    if state is None:
        raise Violation(f"calls of {wanted.map} are given out, and it is not in the store")
    end = wanted.first + wanted.count
    args: dict[int, bytes] = {}
    for row in store.maps.args((state.n, state.k), wanted.first, wanted.count):
        args.update({row.first + n: arg for n, arg in enumerate(row.args)})
    missing = [index for index in range(wanted.first, end) if index not in args]
    if missing:
        raise Violation(f"calls {missing} of {wanted.map} are given out, and their arguments are not in the store")
    return CallBatch(
        map=wanted.map,
        first=wanted.first,
        args=tuple([args[index] for index in range(wanted.first, end)]),
        method=state.spec.method,
        timeout_s=state.spec.timeout_s,
        stream=state.spec.stream,
    )
