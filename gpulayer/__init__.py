"""GPUlayer: one layer over all the GPUs you can reach, Jupyter first."""

from __future__ import annotations

from typing import Any

from gpulayer._version import __version__

__all__ = ["__version__", "load_ipython_extension", "unload_ipython_extension"]

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
