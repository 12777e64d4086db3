"""The second port over HTTP: `gpulayer up` asks whoever holds the control plane to open it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gpulayer.protocol.types import Problem, Struct
from gpulayer_server.datafolder import DataFolderError, Listen
from gpulayer_server.http.base import Handler, ProblemError, parse
from gpulayer_server.listening import Listener, ListenError

SETTING = "listener"
"""Where the application's settings have the `Listener`."""


class ListenBody(Struct, frozen=True, kw_only=True):
    """Where to listen for other machines."""

    host: Annotated[str, Meta(min_length=1, max_length=255)]
    port: Annotated[int, Meta(ge=0, le=65_535)]


class Listening(Struct, frozen=True, kw_only=True):
    """Where it listens for other machines, and what they know it by; all '' and 0 where it doesn't."""

    host: str
    port: int
    fingerprint: str


class ListenHandler(Handler):
    """GET and POST /v1/listen"""

    @property
    def listener(self) -> Listener:
        """That of this control plane."""
        return self.settings[SETTING]

    def get(self) -> None:
        """Where it listens."""
        where, certificate = self.listener.where, self.listener.certificate
        if where is None or certificate is None:
            self.answer(Listening(host="", port=0, fingerprint=""))
        else:
            self.answer(Listening(host=where.host, port=where.port, fingerprint=certificate.fingerprint))

    async def post(self) -> None:
        """Listen there from now on."""
        body: ListenBody = parse(self.request.body, ListenBody)
        try:
            await self.listener.open(Listen(host=body.host, port=body.port))
        except ListenError as error:
            raise ProblemError(Problem(status=409, code="cannot_listen", title=str(error))) from error
        except DataFolderError as error:
            raise ProblemError(Problem(status=507, code="data_folder", title=str(error))) from error
        self.get()
