"""Steps of the paths that errors name."""

from __future__ import annotations


def short(label: object) -> str:
    """A key as it stands in a path: its repr on one line, bounded."""
    text = repr(label)
    text = text if text.isprintable() else ascii(label)
    return text if len(text) <= 60 else f"{text[:56]}…{text[-3:]}"
