"""Every token of a control plane: made, exchanged and revoked, each once that is committed."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from gpulayer.protocol.types import JobView, Problem
from gpulayer_server.auth import WORKER, State, Token, ended, limits_of, long_ended, sha256
from gpulayer_server.core.state import Limits
from gpulayer_server.store.rows import Op, put_token


class Connection(Protocol):
    """A connection that somebody's token opened, as the tokens need it."""

    def cut_off(self, problem: Problem) -> None: ...


class Writer(Protocol):
    """Commits rows: the shell."""

    def write(self, ops: list[Op], reply: Callable[[JobView | Problem | None], None]) -> None: ...


def _conflict(code: str, title: str, detail: str) -> Problem:
    return Problem(status=409, code=code, title=title, detail=detail)


class AuthError(Exception):
    """What was asked can't be; nothing of it was done."""

    def __init__(self, problem: Problem):
        super().__init__(problem.line())
        self.problem = problem


class Tokens:
    """Every token that is kept. Only this object changes them, on the loop's thread, each once it is committed.

    What is decided on them is decided one after the other (`_turn`): of two that bring the same single-use token at
    once, the second finds it used.
    """

    def __init__(
        self,
        writer: Writer,
        tokens: Iterable[Token],
        clock: Callable[[], float],
        limited: Callable[[dict[str, Limits]], None] = lambda limits: None,
    ):
        """`limited` is told of everybody's limits, now and whenever they change."""
        self._writer = writer
        self._clock = clock
        self._limited = limited
        self._limits: dict[str, Limits] = {}
        self._by_id: dict[str, Token] = {}
        self._by_hash: dict[bytes, str] = {}
        self._turn = asyncio.Lock()
        self._connections: dict[str, set[Connection]] = {}  # by the ids of the tokens
        for token in tokens:
            self._keep(token)
        self._look_at_limits()

    # ---------------------------------------------------------------- looking

    def find(self, given: str) -> Token | None:
        """The token that this is. How long that takes tells of hashes, never of tokens."""
        digest = sha256(given)
        name = self._by_hash.get(digest)
        token = self._by_id.get(name) if name is not None else None
        return token if token is not None and hmac.compare_digest(token.sha256, digest) else None

    def problem(self, token: Token) -> Problem | None:
        """Why a token that was found, perhaps a while ago, lets nobody in now; None where it may."""
        current = self._by_id.get(token.id)
        return ended(token, "expired") if current is None else current.problem(self._clock())

    def all(self) -> list[tuple[Token, State]]:
        """Every token and what it is good for, oldest first."""
        now = self._clock()
        return [(token, token.state(now)) for token in self._by_id.values()]

    # ---------------------------------------------------------------- making and revoking

    async def make(
        self, *, role: str, name: str, expires_s: float | None, single_use: bool, limits: Limits | None = None
    ) -> tuple[Token, str]:
        """A new token, and its text: the only time that anybody sees it.

        Its name is that of no other token that lives: 409 else. `limits` are of whoever it names, from now on: those
        of an earlier token of this name end. Raises `AuthError`.
        """
        async with self._turn:
            now = self._clock()
            if name and any(each.role != WORKER for each in self._named(name, live=True)):
                detail = "choose another name, or end that one first: `gpulayer token revoke NAME`"
                raise AuthError(_conflict("name_taken", f"a token named {name} is there already", detail))
            expires_at = now + expires_s if expires_s is not None else None
            token, text = self._new(role, name, now, expires_at=expires_at, single_use=single_use)
            if limits is not None:
                token = replace(token, max_running=limits.max_running, max_devices=limits.max_devices)
            old = [each.id for each in self._by_id.values() if long_ended(each, now)]
            ops: list[Op] = [("drop_token", (each,)) for each in old]
            await self._commit(
                [*ops, put_token(token)], lambda: (self._drop(old), self._keep(token), self._look_at_limits())
            )
        return token, text

    async def revoke(self, name: str, *, workers: bool = False) -> bool:
        """End a token by its id or name, now; whether there is one. Who came in by it is cut off at once.

        A name is looked for among the tokens that live, workers' credentials too: of several none is ended (409).
        Workers that joined by a join token have credentials of their own, and stay: only with `workers` these end
        too, as when the token came into wrong hands. Raises `AuthError`.
        """
        async with self._turn:
            token = self._by_id.get(name) or self._one_named(name)
            if token is None:
                return False
            now = self._clock()
            issued = [each for each in self._by_id.values() if each.issued_by == token.id] if workers else []
            ending = [each.id for each in [token, *issued] if each.revoked_at is None]
            ops: list[Op] = [("revoke_token", (now, each)) for each in ending]
            if ops:
                await self._commit(ops, lambda: self._revoked(ending, now))
        return True

    def _named(self, name: str, *, live: bool) -> list[Token]:
        now = self._clock()
        found = [each for each in self._by_id.values() if each.name == name]
        return [each for each in found if not live or each.state(now) == "live"]

    def _one_named(self, name: str) -> Token | None:
        """The token that a name means; one that has ended where none lives. Raises `AuthError` where several do."""
        live = self._named(name, live=True)
        if len(live) > 1:
            which = ", ".join(f"{each.id} ({each.role})" for each in live)
            title = f"{len(live)} tokens are named {name}"
            raise AuthError(_conflict("several_tokens", title, f"name one by its id: {which}"))
        return next(iter(live or self._named(name, live=False)), None)

    # ---------------------------------------------------------------- joining

    async def exchange(self, token: Token, worker_id: str, name: str) -> str:
        """A credential of the worker's own, for a join token. Raises `AuthError`.

        A single-use token is used up in the same commit that makes the credential. Where the answer to that was lost,
        the same worker asks again, and gets a fresh one in the place of the one that nobody has: as long as the token
        lives, and only until the first one said hello. From then on it is known to have arrived, and whoever finds
        the token somewhere later gets nothing for it, not even by giving itself this worker's id.
        """
        async with self._turn:
            token = self._by_id.get(token.id, token)
            now = self._clock()
            problem = self.problem(token) or self._used_up(token, worker_id)
            if problem is not None:
                raise AuthError(problem)
            credential, text = self._new(WORKER, name, now, worker_id=worker_id, issued_by=token.id)
            # A worker has one credential: an earlier one, of an earlier life of it, ends.
            ending = [each.id for each in self._of_worker(worker_id)]
            use = (now, name, worker_id, token.id)
            ops: list[Op] = [("revoke_token", (now, each)) for each in ending]

            def apply() -> None:
                self._revoked(ending, now)
                self._keep(credential)
                self._keep(replace(self._by_id[token.id], used_at=now, used_by=name, worker_id=worker_id))

            await self._commit([*ops, put_token(credential), ("use_token", use)], apply)
        return text

    def _used_up(self, token: Token, worker_id: str) -> Problem | None:
        if not token.single_use or token.used_at is None:
            return None
        own = [each for each in self._of_worker(worker_id) if each.issued_by == token.id and each.used_at is None]
        return None if own else ended(token, "used")

    def _of_worker(self, worker_id: str) -> list[Token]:
        """The worker's credentials that live."""
        mine = [each for each in self._by_id.values() if each.role == WORKER and each.worker_id == worker_id]
        return [each for each in mine if each.revoked_at is None]

    # ---------------------------------------------------------------- connections

    def opened(self, token: Token, connection: Connection) -> None:
        """Somebody is connected by this token."""
        self._connections.setdefault(token.id, set()).add(connection)

    def closed(self, token: Token, connection: Connection) -> None:
        """It is no more."""
        there = self._connections.get(token.id, set())
        there.discard(connection)
        if not there:
            self._connections.pop(token.id, None)

    def greeted(self, token: Token, failed: Callable[[Problem], None]) -> None:
        """A worker said hello by this credential: it has arrived. A lost note is made by the next hello."""
        if self._by_id[token.id].used_at is not None:
            return
        now = self._clock()

        def noted(result: JobView | Problem | None) -> None:
            if isinstance(result, Problem):
                failed(result)
            elif token.id in self._by_id:
                self._keep(replace(self._by_id[token.id], used_at=now))

        self._writer.write([("use_token", (now, token.used_by, token.worker_id, token.id))], noted)

    # ---------------------------------------------------------------- keeping

    def _new(
        self,
        role: str,
        name: str,
        now: float,
        *,
        expires_at: float | None = None,
        single_use: bool = False,
        worker_id: str | None = None,
        issued_by: str | None = None,
    ) -> tuple[Token, str]:
        text = f"gl-{role}-{secrets.token_urlsafe(32)}"
        id = f"t-{secrets.token_hex(4)}"
        token = Token(
            id=id,
            name=name or f"{role} {id}",
            role=role,
            sha256=sha256(text),
            created_at=now,
            expires_at=expires_at,
            single_use=single_use,
            used_by=name if role == WORKER else None,
            worker_id=worker_id,
            issued_by=issued_by,
        )
        return token, text

    async def _commit(self, ops: Sequence[Op], apply: Callable[[], object]) -> None:
        """Write, then apply in the same turn of the loop that tells of the commit. Raises `AuthError`."""
        done: asyncio.Future[Problem | None] = asyncio.get_running_loop().create_future()

        def committed(result: JobView | Problem | None) -> None:
            problem = result if isinstance(result, Problem) else None
            if problem is None:
                apply()
            if not done.done():  # whoever asked may be gone: what is committed counts all the same
                done.set_result(problem)

        self._writer.write(list(ops), committed)
        problem = await done
        if problem is not None:
            raise AuthError(problem)

    def _keep(self, token: Token) -> None:
        self._by_id[token.id] = token
        self._by_hash[token.sha256] = token.id

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            token = self._by_id.pop(name, None)
            if token is not None:
                del self._by_hash[token.sha256]

    def _look_at_limits(self) -> None:
        """Tell of everybody's limits if they are others now."""
        limits = limits_of(self._by_id.values())
        if limits != self._limits:
            self._limits = limits
            self._limited(limits)

    def _revoked(self, names: Iterable[str], now: float) -> None:
        for name in names:
            token = replace(self._by_id[name], revoked_at=now)
            self._keep(token)
            for connection in list(self._connections.get(name, ())):
                connection.cut_off(ended(token, "revoked"))
