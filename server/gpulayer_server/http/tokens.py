"""Tokens over HTTP: made, listed and revoked by the admin; a join token exchanged by a worker."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.types import Problem, Struct
from gpulayer_server.auth import ADMIN, JOIN, SUBMITTER, State, Token
from gpulayer_server.core.state import Limits
from gpulayer_server.http.base import Handler, ProblemError, parse
from gpulayer_server.shell import log
from gpulayer_server.tokens import AuthError, Tokens

JOIN_S = 600.0
"""How long a join token is good for unless told."""

_YEARS_S = 30 * 366 * 86_400.0

Name = Annotated[str, Meta(max_length=100, pattern=r"^[^\x00-\x1f\x7f]*\Z")]


class TokenBody(Struct, frozen=True, kw_only=True):
    """A new token. Of the role join it is for one use and ten minutes unless told; of others, for good."""

    role: Literal["admin", "submitter", "reader", "join", "metrics"]
    name: Name = ""  # of the role submitter: whose the jobs are
    expires_s: Annotated[float, Meta(gt=0, le=_YEARS_S)] | UnsetType | None = UNSET  # None: never
    single_use: bool | UnsetType = UNSET  # of the role join only
    max_running: Annotated[int, Meta(ge=1)] | None = None  # tasks of whoever it names, at once; None: no limit
    max_devices: Annotated[int, Meta(ge=0)] | None = None  # accelerators that these hold at once


class NewToken(Struct, frozen=True, kw_only=True):
    """A token that was made. `token` is seen this once."""

    id: str
    name: str
    role: str
    token: str
    expires_at: float | None  # Unix time, seconds
    single_use: bool
    max_running: int | None  # tasks of whoever it names, at once; None: no limit
    max_devices: int | None  # accelerators that these hold at once


class TokenView(Struct, frozen=True, kw_only=True):
    """A token in the list. Times are Unix seconds."""

    id: str
    name: str
    role: str
    state: State
    created_at: float
    expires_at: float | None
    single_use: bool
    used_at: float | None
    used_by: str | None  # the name of the worker that used it last
    worker_id: str | None
    issued_by: str | None  # of a worker's credential: the id of the join token that it was given for
    revoked_at: float | None
    max_running: int | None  # tasks of whoever it names, at once; None: no limit
    max_devices: int | None  # accelerators that these hold at once


class JoinBody(Struct, frozen=True, kw_only=True):
    """Who joins."""

    worker_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    name: Annotated[Name, Meta(min_length=1)]


class Joined(Struct, frozen=True, kw_only=True):
    """The worker's own credential. It is seen this once."""

    credential: str


class _TokensHandler(Handler):
    @property
    def tokens(self) -> Tokens:
        """Those of this control plane."""
        return self.access.tokens


class TokensHandler(_TokensHandler):
    """GET and POST /v1/tokens"""

    def get(self) -> None:
        """Every token that is kept, oldest first, the workers' credentials among them; never what they are."""
        workers = self.shell.plane.workers
        names = {id: worker.name for id, worker in workers.items()}
        self.answer([_view(token, state, names) for token, state in self.tokens.all()])

    async def post(self) -> None:
        """A new token."""
        body: TokenBody = parse(self.request.body, TokenBody)
        joins = body.role == JOIN
        single_use = joins if isinstance(body.single_use, UnsetType) else body.single_use
        usual_s = JOIN_S if joins else None
        expires_s = usual_s if isinstance(body.expires_s, UnsetType) else body.expires_s
        self._check(body, single_use)
        try:
            token, text = await self.tokens.make(
                role=body.role,
                name=body.name,
                expires_s=expires_s,
                single_use=single_use,
                limits=Limits(max_running=body.max_running, max_devices=body.max_devices),
            )
        except AuthError as error:
            raise ProblemError(error.problem) from error
        log.info("token %s (%s) was made, role %s", token.id, token.name, token.role)
        made = NewToken(
            id=token.id,
            name=token.name,
            role=token.role,
            token=text,
            expires_at=token.expires_at,
            single_use=token.single_use,
            max_running=token.max_running,
            max_devices=token.max_devices,
        )
        self.set_header("Cache-Control", "no-store")
        self.answer(made, 201)

    def _check(self, body: TokenBody, single_use: bool) -> None:
        if single_use and body.role != JOIN:
            title = f"a token of the role {body.role} can't be for a single use: only one of the role join is"
            raise ProblemError(Problem(status=400, code="bad_request", title=title))
        limited = body.max_running is not None or body.max_devices is not None
        if limited and (body.role not in (ADMIN, SUBMITTER) or not body.name):
            title = "max_running and max_devices limit whoever submits: a token of the role submitter, with a name"
            raise ProblemError(Problem(status=400, code="bad_request", title=title))
        if body.name == self.user and body.role in (ADMIN, SUBMITTER):
            title = f"{body.name} is the name of this control plane's own user, whose jobs are not another's"
            raise ProblemError(Problem(status=409, code="name_taken", title=title, detail="choose another name"))


class TokenHandler(_TokensHandler):
    """DELETE /v1/tokens/ID_OR_NAME[?workers=true]"""

    async def delete(self, name: str) -> None:
        """End a token; with `workers` also the credentials that were given for it. One that has ended stays so."""
        workers = self.get_query_argument("workers", "false")
        if workers not in ("true", "false"):
            title = f"workers must be true or false, not {workers[:40]!r}"
            raise ProblemError(Problem(status=400, code="bad_request", title=title))
        try:
            found = await self.tokens.revoke(name, workers=workers == "true")
        except AuthError as error:
            raise ProblemError(error.problem) from error
        if not found:
            raise ProblemError(Problem(status=404, code="no_such_token", title=f"no token {name}"))
        log.info("token %s was revoked", name)
        self.set_status(204)
        self.finish()


class JoinHandler(_TokensHandler):
    """POST /v1/join"""

    async def post(self) -> None:
        """A worker's own credential for the join token that this request brings."""
        body: JoinBody = parse(self.request.body, JoinBody)
        reach("server.join-asked")
        token = self.token
        if token is None:
            raise TypeError("the table of roles lets the admin's token in here")
        self._refuse_connected(body.worker_id)
        try:
            credential = await self.tokens.exchange(token, body.worker_id, body.name)
        except AuthError as error:
            raise ProblemError(error.problem) from error
        log.info("worker %s (%s) has joined by token %s", body.worker_id, body.name, token.id)
        reach("server.exchanged")
        self.set_header("Cache-Control", "no-store")
        self.answer(Joined(credential=credential), 201)

    def _refuse_connected(self, worker_id: str) -> None:
        """Nobody takes a worker's place while it is there, such as with a copy of its folder."""
        worker = self.shell.plane.workers.get(worker_id)
        if worker is not None and worker.conn is not None:
            title, detail = f"worker {worker.name} is connected already", f"its id is {worker_id}"
            raise ProblemError(Problem(status=409, code="worker_connected", title=title, detail=detail))


def _view(token: Token, state: State, names: dict[str, str]) -> TokenView:
    return TokenView(
        id=token.id,
        name=token.name,
        role=token.role,
        state=state,
        created_at=token.created_at,
        expires_at=token.expires_at,
        single_use=token.single_use,
        used_at=token.used_at,
        used_by=names.get(token.worker_id or "", token.used_by),
        worker_id=token.worker_id,
        issued_by=token.issued_by,
        revoked_at=token.revoked_at,
        max_running=token.max_running,
        max_devices=token.max_devices,
    )
