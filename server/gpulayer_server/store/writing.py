"""Writes units of rows with few statements: many rows in each, and of a row that changes twice only the last."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from gpulayer_server.store.rows import Op

_SIZES = (64, 16, 4)  # rows of one statement; with 14 columns the first is within SQLite's oldest limit of 999 values
_KEYS = {"put_task": 2, "put_attempt": 3}  # how many of the values name the row: what is put again replaces it
_TOGETHER = frozenset({"put_job", "put_label", "put_task", "put_attempt", "put_end"})  # tables of their own


class Writer:
    """Carries statements out on one connection. One thread uses it."""

    def __init__(self, connection: sqlite3.Connection, statements: Mapping[str, str]):
        self._connection = connection
        self._statements = statements
        self._many = {
            (name, size): _of_many_rows(statements[name], size) for name in sorted(_TOGETHER) for size in _SIZES
        }

    def write(self, units: Iterable[Iterable[Op]]) -> None:
        """Write all of it, within a transaction of the caller's. Raises `sqlite3.Error`."""
        rows: dict[str, dict[Any, tuple[Any, ...]]] = {}
        for unit in units:
            for name, values in unit:
                if name in _TOGETHER:
                    group = rows.setdefault(name, {})
                    group[values[: _KEYS[name]] if name in _KEYS else len(group)] = values
                else:
                    self._flush(rows)
                    self._connection.execute(self._statements[name], values)
        self._flush(rows)

    def _flush(self, rows: dict[str, dict[Any, tuple[Any, ...]]]) -> None:
        execute = self._connection.execute
        for name, group in rows.items():
            values, at = list(group.values()), 0
            for size in _SIZES:
                while len(values) - at >= size:
                    execute(self._many[name, size], tuple(chain.from_iterable(values[at : at + size])))
                    at += size
            for one in values[at:]:
                execute(self._statements[name], one)
        rows.clear()


def _of_many_rows(statement: str, count: int) -> str:
    head, _, row = statement.rpartition("VALUES ")
    return f"{head}VALUES {', '.join([row] * count)}"
