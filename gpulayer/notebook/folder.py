"""The notebook's folder, and its way to the control plane."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from gpulayer.client.sending import Sender, SourceRefused
from gpulayer.client.submission import Input, named_by_itself, with_inputs
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.source import Bundle, Limits

__all__ = ["Source", "SourceRefused", "notebook_path"]

_LIMITS = Limits()
_NO_NAMES: Mapping[str, object] = {}


def notebook_path(names: Mapping[str, object] = _NO_NAMES) -> Path | None:
    """The notebook's own path, where the front end told it: see `_notebook`."""
    path = _notebook(names)
    return Path(path) if path else None


def _notebook(names: Mapping[str, object]) -> str:
    """Jupyter tells the path in a kernel's environment; VS Code in a variable among the notebook's `names`."""
    for path in (os.environ.get("JPY_SESSION_NAME"), names.get("__vsc_ipynb_file__")):
        if isinstance(path, str) and path.endswith(".ipynb") and os.path.isabs(path) and os.path.exists(path):
            return path
    return ""


class Source:
    """Scans the folder for each cell, and sends what the control plane lacks."""

    def __init__(self, data: Path | None = None, names: Mapping[str, object] = _NO_NAMES) -> None:
        """`data` is where digests are remembered and the control plane's address is found; by default this user's.

        `names`: the notebook's, see `notebook_path`.
        """
        self._names = names
        self._sender = Sender(data, again="run the cell again")

    def root(self) -> str:
        """The notebook's folder."""
        return os.path.dirname(_notebook(self._names)) or os.getcwd()

    def scan(
        self,
        folder: str | None = None,
        *,
        include: tuple[str, ...] = (),
        exclude: tuple[str, ...] = (),
        limits: Limits = _LIMITS,
        inputs: tuple[Input, ...] = (),
    ) -> Bundle:
        """The notebook's folder as a bundle, or the one that a person named: see `scan`. Raises `SourceRefused`.

        `inputs` go with it; the folder's ignore rules and limits are not theirs.
        """
        root = os.path.expanduser(folder) if folder else self.root()
        exclude = (*exclude, *named_by_itself(root, inputs, limits))
        explicit = folder is not None
        bundle = self._sender.scan(root, include=include, exclude=exclude, limits=limits, explicit=explicit)
        return with_inputs(self._sender, bundle, inputs) if inputs else bundle

    def send(self, bundle: Bundle, endpoint: Endpoint, tell: Callable[[str], None]) -> str:
        """Send what lacks, and the manifest: 'sent 3 of 214 files, 41 kB'. See `Sender.send`."""
        return str(self._sender.send(bundle, endpoint, tell))
