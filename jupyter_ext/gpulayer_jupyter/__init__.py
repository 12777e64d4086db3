"""The Jupyter server extension: it hosts the control plane, or attaches to one, and proxies Jupyter's routes to it."""

from __future__ import annotations

from typing import Any

from gpulayer._version import __version__

__all__ = ["__version__"]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """What Jupyter's server loads."""
    from gpulayer_jupyter.extension import GpulayerApp  # only a server needs it

    return [{"module": "gpulayer_jupyter", "app": GpulayerApp}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where the panel's files lie."""
    return [{"src": "labextension", "dest": "gpulayer"}]
