"""Writes units of rows with few statements: many rows in each, and of a row that changes twice only the last."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from gpulayer_server.store.rows import Op

_SIZES = (64, 16, 4)  # rows of one statement, within SQLite's oldest limit
_MOST_VALUES = 999
_KEYS = {"put_task": 2, "put_attempt": 3, "put_map": 2}  # how many values name the row: what is put again replaces it
_TOGETHER = frozenset(  # tables of their own
    {"put_job", "put_label", "put_task", "put_attempt", "put_end", "put_map", "put_args", "put_results"}
)


class Writer:
    """Carries statements out on one connection. One thread uses it."""

    def __init__(self, connection: sqlite3.Connection, statements: Mapping[str, str]):
        self._connection = connection
        self._statements = statements
        self._sizes = {
            name: [size for size in _SIZES if size * statements[name].count("?") <= _MOST_VALUES] for name in _TOGETHER
        }
        self._many = {
            (name, size): _of_many_rows(statements[name], size) for name in _TOGETHER for size in self._sizes[name]
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
            for size in self._sizes[name]:
                while len(values) - at >= size:
                    execute(self._many[name, size], tuple(chain.from_iterable(values[at : at + size])))
                    at += size
            for one in values[at:]:
                execute(self._statements[name], one)
        rows.clear()


def _of_many_rows(statement: str, count: int) -> str:
    head, _, rest = statement.partition("VALUES ")
    row, paren, tail = rest.partition(")")
    return f"{head}VALUES {', '.join([row + paren] * count)}{tail}"
