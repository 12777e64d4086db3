"""Puts a kernel together: ipykernel's application with our streams, our tee and our kernel class."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.pop("JPY_PARENT_PID", None)  # read when the next line is: a kernel outlives whoever started it

from ipykernel.kernelapp import IPKernelApp
from traitlets.config import Config

from .capture import Capture
from .children import Children
from .exchange import Exchange
from .interrupts import Interrupts
from .kernel import SpoolKernel
from .outstream import Sink, SpoolStream, report
from .tee import Tee


class SpoolKernelApp(IPKernelApp):
    """ipykernel's application, whose iopub messages go to the disk."""

    records: Any  # the modules of these names, loaded by path
    spool: Any
    failpoints: Any
    exchange: Exchange
    iopub_thread: Any

    def init_poller(self) -> None:
        """Watches no parent."""

    def load_config_file(self, *args: Any, **kwargs: Any) -> None:
        """Loads no configuration: that of the worker's owner is not the notebook's."""

    def log_connection_info(self) -> None:
        """Keeps the ports without the advice to people at a terminal."""
        channels = ("shell", "iopub", "stdin", "hb", "control")
        self._ports = {channel: getattr(self, f"{channel}_port") for channel in channels}

    def init_iopub(self, context: Any) -> None:
        """Opens the iopub channel, to which nobody listens, and takes its messages."""
        super().init_iopub(context)
        self.interrupts = Interrupts()
        self.interrupts.keep()
        self.tee = Tee(self.session, self.records, self.spool, self.failpoints.reach, self.interrupts)
        self.tee.attach(self.iopub_thread)
        self.children = Children(self.tee, self.iopub_thread)
        self.capture = Capture(report)
        self.iopub_thread.gpulayer_sink = Sink(self.tee, self.interrupts)
        self.iopub_thread.gpulayer_capture = self.capture

    def init_io(self) -> None:
        """Replaces the streams; what crashes the interpreter is written to the kernel's own log."""
        super().init_io()
        self.capture.start()
        faulthandler.enable(getattr(sys.stderr, "_original_stdstream_copy", 2))


def run(connection_file: str, records: Any, spool: Any, failpoints: Any, codec: Callable[[], Any]) -> int:
    """Runs a kernel on `connection_file` until it ends.

    The others are the modules of these names, and what loads the codec's `named`.
    """
    config = Config()
    config.IPKernelApp.connection_file = connection_file
    # Of this kernel alone: profiles, start-up files and history of the worker's owner are not the notebook's.
    profiles = os.path.join(os.path.dirname(connection_file), "ipython")
    os.makedirs(profiles, mode=0o700, exist_ok=True)
    config.BaseIPythonApplication.ipython_dir = profiles
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    app = SpoolKernelApp.instance(config=config)
    app.records, app.spool, app.failpoints = records, spool, failpoints
    app.exchange = Exchange(codec, failpoints.reach)
    app.kernel_class = SpoolKernel
    app.outstream_class = f"{SpoolStream.__module__}.{SpoolStream.__qualname__}"
    app.initialize([])
    app.start()
    return 0
