"""Modules that are imported when they are first used: what a process may never need does not delay its start."""

from __future__ import annotations

import importlib
from typing import Any


class Lazily:
    """Stands for a module, at no cost until one of its names is looked up. For any number of threads.

    if TYPE_CHECKING:
        import httpx
    else:
        httpx = Lazily("httpx")
    """

    def __init__(self, name: str):
        """`name`: the module's, in full."""
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        """Of the module. Raises ImportError, and AttributeError as the module itself does."""
        return getattr(importlib.import_module(self.__name__), name)
