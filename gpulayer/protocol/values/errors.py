"""What the codec raises: `ValueRefused` for values, `ValueDamaged` for parts."""

from __future__ import annotations

from typing import Any

_LONGEST_PATH = 200


class ValueRefused(TypeError):
    """A value that does not travel. Its text is one line: the path to the value, its type, what to do instead.

    `path` is a Python expression that reaches the value from the root's name: `args[1]['model']`, `list(x)[0]` for
    the first key of a dict or some element of a set.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self._path = ""
        self._steps: list[tuple[str, str]] = []  # from the value upwards

    @property
    def path(self) -> str:
        """Where the value stands; the middle of a very long path is left out."""
        if len(self._path) <= _LONGEST_PATH:
            return self._path
        half = _LONGEST_PATH // 2
        return f"{self._path[:half]}…{self._path[-half:]}"

    def below(self, before: str, after: str = "") -> ValueRefused:
        """Say that the path so far stands below another step; `before` and `after` go around what comes above it."""
        self._steps.append((before, after))
        return self

    def at(self, root: str) -> ValueRefused:
        """Close the path at the root's name."""
        path = root
        for before, after in reversed(self._steps):
            path = f"{before}{path}{after}"
        self._path = path
        return self

    def __str__(self) -> str:
        return f"{self.path} {self.problem}".strip()


class ValueDamaged(ValueError):
    """Parts of which `decode` cannot make a value; one line says why."""


class LibraryMissing(ValueDamaged):
    """The parts hold a value of a library that this interpreter lacks (or time zones that it does not know)."""


def type_name(kind: type[Any]) -> str:
    """A type's name as people write it: `int`, `collections.OrderedDict`."""
    module, name = str(kind.__module__), str(kind.__qualname__)
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def type_of(value: object) -> type[Any]:
    """The exact type of a value, as the type checker can follow it."""
    return type(value)


def one_line(error: BaseException) -> str:
    """An error's text on one line of bounded length."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:200]}" if words else type(error).__name__
