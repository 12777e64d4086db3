"""Which clients send the calls of which maps: as long as one is connected, its map waits for the rest."""

from __future__ import annotations

from collections.abc import Collection


class Senders:
    """Maps by the connections of those who send their calls. Used on the loop's thread."""

    def __init__(self) -> None:
        self._maps: dict[object, set[str]] = {}

    def came(self, client: object, name: str) -> None:
        """A client has more calls of a map to send."""
        self._maps.setdefault(client, set()).add(name)

    def left(self, client: object) -> None:
        """A client's connection is closed."""
        self._maps.pop(client, None)

    def attended(self, incomplete: Collection[str]) -> frozenset[str]:
        """Of the maps of which calls are yet to come, those whose clients are here; no others are remembered."""
        attended: set[str] = set()
        for names in self._maps.values():
            names.intersection_update(incomplete)
            attended |= names
        return frozenset(attended)
