"""The base of every type that travels."""

from __future__ import annotations

import msgspec


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base of every type that travels: a map on the wire; unknown fields are ignored."""
