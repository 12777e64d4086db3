"""Whose clients are there: by connection, and only of maps of which calls are yet to come."""

from __future__ import annotations

from gpulayer_server.senders import Senders


def test_a_map_is_attended_as_long_as_one_of_its_clients_is_connected() -> None:
    senders, old, new = Senders(), object(), object()
    senders.came(old, "k3f9.1")
    senders.came(new, "k3f9.1")  # it came back before the old connection was found to be dead
    senders.came(new, "k3f9.2")
    incomplete = {"k3f9.1", "k3f9.2"}
    assert senders.attended(incomplete) == incomplete
    senders.left(old)
    assert senders.attended(incomplete) == incomplete
    senders.left(new)
    senders.left(new)
    assert senders.attended(incomplete) == set()


def test_what_is_complete_is_not_remembered() -> None:
    senders, client = Senders(), object()
    senders.came(client, "k3f9.1")
    assert senders.attended({"k3f9.2"}) == set()
    assert senders.attended({"k3f9.1"}) == set()
