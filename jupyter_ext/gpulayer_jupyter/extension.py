"""The application that Jupyter's server loads: its settings, its start and its end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from traitlets import Bool, Unicode, default

from gpulayer.protocol.endpoint import REMOTE, data_folder
from gpulayer_jupyter.host import Host
from gpulayer_jupyter.place import Remote
from gpulayer_jupyter.proxy import Bridge, handlers
from gpulayer_jupyter.thread import LoopThread, ThreadEnded
from gpulayer_jupyter.tunnel import Tunnels

_END_S = 25.0  # Jupyter's server ends after that, whatever still runs here
_WORD_S = 0.1


class GpulayerApp(ExtensionApp):
    """GPUlayer in a Jupyter server: it holds this user's control plane, or attaches to the one that there is."""

    name = "gpulayer"
    app_name = "GPUlayer"
    description = __doc__ or ""
    load_other_extensions = True

    data = Unicode(
        help="The data folder of the control plane, on a local disk. Default: GPULAYER_DATA, else this user's own."
    ).tag(config=True)
    url = Unicode(
        help="The address of a control plane elsewhere. With it none is held here; the panel shows that one. "
        "Default: GPULAYER_URL."
    ).tag(config=True)
    token_file = Unicode(
        help="The file (mode 0600) that holds the token for `url`. Without it GPULAYER_TOKEN counts."
    ).tag(config=True)
    fingerprint = Unicode(
        help="The fingerprint of the certificate of `url`, as `gpulayer up` shows it there. Default: "
        "GPULAYER_FINGERPRINT, and where that is not set, what this system trusts."
    ).tag(config=True)
    listen = Unicode(
        help="HOST:PORT at which other machines join the control plane that is held here, by TLS. "
        "Default: where they did before, and nowhere if nobody ever said."
    ).tag(config=True)
    local_worker = Bool(help="Whether to start a worker on this machine. Default: yes, but on Windows.").tag(
        config=True
    )
    local_worker_arguments = Unicode(
        help="Further arguments of that worker, such as '--slots 2 --python /path/to/python'. "
        "Default: GPULAYER_LOCAL_WORKER."
    ).tag(config=True)

    @default("local_worker")
    def _default_local_worker(self) -> bool:
        return sys.platform != "win32"

    @default("local_worker_arguments")
    def _default_local_worker_arguments(self) -> str:
        return os.environ.get("GPULAYER_LOCAL_WORKER", "")

    @default("url")
    def _default_url(self) -> str:
        return os.environ.get("GPULAYER_URL", "")

    @default("fingerprint")
    def _default_fingerprint(self) -> str:
        return os.environ.get("GPULAYER_FINGERPRINT", "")

    # ---------------------------------------------------------------- its life

    def initialize_handlers(self) -> None:
        """The routes stand from the start; until the control plane does, they say so."""
        self.thread = LoopThread("gpulayer-jupyter")
        self.tunnels = Tunnels()
        self.host: Host | None = None
        self.remote: Remote | None = None
        folder = self._folder()
        if self.url:
            token_file = Path(self.token_file).expanduser().absolute() if self.token_file else None
            token = os.environ.get("GPULAYER_TOKEN", "").strip()
            self.place = self.remote = Remote(self.url, token_file, folder, token=token, fingerprint=self.fingerprint)
        else:
            arguments = tuple(shlex.split(self.local_worker_arguments))
            self.place = self.host = Host(
                folder, local_worker=self.local_worker, worker_arguments=arguments, listen=self.listen
            )
        for name in REMOTE:  # kernels find what they need in their endpoint.json, and no token in their environment
            os.environ.pop(name, None)
        bridge = Bridge(place=self.place, thread=self.thread, tunnels=self.tunnels)
        self.handlers.extend(handlers(bridge))  # pyright: ignore[reportArgumentType]

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        """Once Jupyter's loop runs, and its port is its own."""
        self._log_here(serverapp)
        self.thread.start()
        if self.remote is not None:
            self._lead_kernels(self.remote.share(Path(serverapp.runtime_dir)))
            os.environ["GPULAYER_EMBEDDED"] = "0"
        if self.host is not None:
            self.thread.submit(self.host.run())

    async def stop_extension(self) -> None:
        """End what runs here; jobs go on. Bounded in time."""
        try:
            await asyncio.wait_for(self._stop(), _END_S)
        except asyncio.TimeoutError:
            self.log.error("gpulayer: still ending after %g s; the server ends without waiting for it", _END_S)
        if self.remote is not None:
            self.remote.unshare()
        for handler in self._forwarded:
            logging.getLogger("gpulayer").removeHandler(handler)

    async def _stop(self) -> None:
        try:
            if self.host is not None and self.host.status().state == "holds" and self.serverapp is not None:
                # A kernel that lives on would start a control plane in this one's place. Jupyter ends them next anyway.
                await self.serverapp.cleanup_kernels()
        finally:
            await self._stop_own()

    async def _stop_own(self) -> None:
        try:
            if self.host is not None:
                await self.thread.run(self.host.stop())
            await self.thread.run(self.tunnels.close())
        except ThreadEnded:
            return  # it never began
        await self.thread.stop()

    def current_activity(self) -> bool | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Whether jobs or sessions live here: a server with `shutdown_no_activity_timeout` stays for them."""
        if self.host is None:
            return None
        try:
            return self.thread.submit(self.host.busy()).result(_WORD_S) or None
        except (ThreadEnded, concurrent.futures.TimeoutError):
            return None

    # ---------------------------------------------------------------- its settings

    def _folder(self) -> Path:
        """The data folder."""
        if not self.data:
            return data_folder()
        folder = Path(self.data).expanduser().absolute()
        self._lead_kernels(folder)
        return folder

    def _lead_kernels(self, folder: Path) -> None:
        """Kernels inherit this server's environment: so they find the same control plane."""
        os.environ["GPULAYER_DATA"] = str(folder)

    _forwarded: tuple[logging.Handler, ...] = ()

    def _log_here(self, serverapp: Any) -> None:
        """What the control plane logs goes where Jupyter's server logs."""
        logger = logging.getLogger("gpulayer")
        if logger.handlers:
            return
        self._forwarded = tuple(serverapp.log.handlers) or tuple(serverapp.log.parent.handlers)
        for handler in self._forwarded:
            logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
