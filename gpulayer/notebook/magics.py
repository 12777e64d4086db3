"""`%%gpulayer` and `%gpulayer`."""

from __future__ import annotations

import sys
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class

from gpulayer.client.api import Api
from gpulayer.client.client import Client
from gpulayer.client.connection import Connection
from gpulayer.client.embedded import find_or_start
from gpulayer.client.errors import ControlPlaneError
from gpulayer.notebook.cellrun import CellRunner
from gpulayer.notebook.commands import line_help, run_line
from gpulayer.notebook.completion import Names, make_matcher
from gpulayer.notebook.ending import Ending
from gpulayer.notebook.folder import Source
from gpulayer.notebook.options import HelpWanted, NotebookSession, parse_cell_line
from gpulayer.notebook.status import StatusLine
from gpulayer.notebook.stop import Stop
from gpulayer.protocol.endpoint import Endpoint, data_folder, read_endpoint

_READY_S = 60.0


@magics_class
class GpulayerMagics(Magics):
    """The magics of one IPython shell, over one connection."""

    shell: Any

    def __init__(self, shell: Any):
        super().__init__(shell)
        self._runner: CellRunner | None = None
        self._client: Client | None = None  # of the handles to detached jobs
        self.session: NotebookSession | None = None  # of all cells that name no other
        self._matcher: Any = None
        self._ending = Ending(getattr(shell, "kernel", None))

    @line_cell_magic
    def gpulayer(self, line: str, cell: str | None = None) -> object:  # its help is set below
        try:
            return run_line(self, line) if cell is None else self._cell(line, cell)
        except HelpWanted as wanted:
            sys.stdout.write(str(wanted))
            return None

    def offer_completions(self) -> None:
        """Have the shell's completer ask us too; `close` ends that."""
        self._matcher = make_matcher(Names(self.endpoint, self._variables))
        if self._matcher is not None:
            self.shell.Completer.custom_matchers.append(self._matcher)

    def _variables(self) -> list[str]:
        """Names in the notebook that are a person's own."""
        shell = self.shell
        return sorted(name for name in shell.user_ns if name[:1] != "_" and name not in shell.user_ns_hidden)

    def close(self) -> None:
        """Leave the control plane; jobs go on."""
        self._ending.close()
        if self._matcher is not None:
            self.shell.Completer.custom_matchers.remove(self._matcher)
            self._matcher = None
        if self._runner is not None:
            self._runner.connection.close()
        if self._client is not None:
            self._client.close()

    def _cell(self, line: str, cell: str) -> object:
        options = parse_cell_line(line, self.session)
        runner = self.runner()
        status = StatusLine(self.shell, quiet=options.quiet)
        with Stop(self._ending.told) as stop:
            subscription = runner.submit(self.shell, line, cell, options, status, stop)
            if not options.detach or stop.wanted:
                runner.follow(self.shell, subscription, status, options.max_output_bytes, stop, cancels=True)
                return None
        runner.connection.unfollow(subscription)
        self._client = self._client or Client()
        return self._client.job(subscription.job)

    def runner(self) -> CellRunner:
        """What runs cells here, made when it is first needed."""
        if self._runner is None:
            self._runner = CellRunner(Connection(find_or_start), Source(names=self.shell.user_ns))
        return self._runner

    def api(self) -> Api:
        """Requests to the control plane; one is started where none answers. Raises `ControlPlaneError`."""
        connection = self.runner().connection
        if not connection.wait_ready(_READY_S) or connection.endpoint is None:
            raise ControlPlaneError(f"the control plane does not answer: {connection.away or 'no word from it'}")
        return Api(connection.endpoint)

    def endpoint(self) -> Endpoint | None:
        """Where a control plane was or may be; nothing is started."""
        known = self._runner.connection.endpoint if self._runner is not None else None
        return known or read_endpoint(data_folder())


GpulayerMagics.gpulayer.__doc__ = line_help()  # what `%gpulayer?` and `%%gpulayer?` show
