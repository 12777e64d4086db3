"""GPUlayer: one layer over all the GPUs you can reach, Jupyter first."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpulayer._version import __version__

if TYPE_CHECKING:
    from gpulayer.client.aio import AsyncClient
    from gpulayer.client.client import Client
    from gpulayer.client.command import Command
    from gpulayer.client.errors import (
        ControlPlaneError,
        GpulayerError,
        JobCancelled,
        JobError,
        JobFailed,
        JobRejected,
        RemoteError,
        RequestRefused,
    )
    from gpulayer.client.explanation import Explanation, explain
    from gpulayer.client.job import Job
    from gpulayer.client.submission import Source
    from gpulayer.functions.handles import Call, Map, call
    from gpulayer.functions.remote import RemoteFunction, remote
    from gpulayer.functions.sharing import put

__all__ = [
    "AsyncClient",
    "Call",
    "Client",
    "Command",
    "ControlPlaneError",
    "Explanation",
    "GpulayerError",
    "Job",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobRejected",
    "Map",
    "RemoteError",
    "RemoteFunction",
    "RequestRefused",
    "Source",
    "__version__",
    "call",
    "explain",
    "load_ipython_extension",
    "put",
    "remote",
    "unload_ipython_extension",
]

_HOMES = {  # of the names that are imported when they are first used
    "AsyncClient": "gpulayer.client.aio",
    "Call": "gpulayer.functions.handles",
    "Client": "gpulayer.client.client",
    "Command": "gpulayer.client.command",
    "Explanation": "gpulayer.client.explanation",
    "Job": "gpulayer.client.job",
    "Map": "gpulayer.functions.handles",
    "RemoteFunction": "gpulayer.functions.remote",
    "Source": "gpulayer.client.submission",
    "call": "gpulayer.functions.handles",
    "explain": "gpulayer.client.explanation",
    "put": "gpulayer.functions.sharing",
    "remote": "gpulayer.functions.remote",
} | dict.fromkeys(
    (
        "ControlPlaneError",
        "GpulayerError",
        "JobCancelled",
        "JobError",
        "JobFailed",
        "JobRejected",
        "RemoteError",
        "RequestRefused",
    ),
    "gpulayer.client.errors",
)

_loaded: dict[int, Any] = {}  # the magics of each shell that loaded the extension


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext gpulayer`: the magics. Nothing is started before the first one is used."""
    from gpulayer.notebook.magics import GpulayerMagics
    from gpulayer.notebook.replay import hush

    if id(shell) not in _loaded:
        magics = _loaded[id(shell)] = GpulayerMagics(shell)
        shell.register_magics(magics)
        magics.offer_completions()
        hush(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext gpulayer`: leave the control plane; jobs go on."""
    magics = _loaded.pop(id(shell), None)
    if magics is not None:
        magics.close()
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("gpulayer", None)
        shell.__dict__.pop("_showtraceback", None)


def __getattr__(name: str) -> Any:
    """What a user's program needs is imported when it is first named: `import gpulayer` stays light."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
