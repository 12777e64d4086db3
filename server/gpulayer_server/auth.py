"""Tokens: who may come in, for how long, as what. Pure: nothing here looks at a clock or makes anything up."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpulayer.protocol.types import Problem
from gpulayer_server.core.state import Limits

ADMIN = "admin"
"""The role of the token in `endpoint.json`."""

SUBMITTER = "submitter"
"""The role of who submits work: its jobs and sessions are its token's name's, and it touches no others'."""

READER = "reader"
"""The role of who only looks."""

METRICS = "metrics"
"""The role of what reads the metrics, and nothing else."""

JOIN = "join"
"""The role of a token that a person pastes on another machine: good for a credential, and for nothing else."""

WORKER = "worker"
"""The role of a credential: of one worker, known by its id."""

KEPT_S = 7 * 86_400.0
"""How long a token that let nobody in any more is still listed. Revoked credentials stay: their workers are told."""

_PLAIN = re.compile(r"[A-Za-z0-9._@-]+")

State = Literal["live", "used", "expired", "revoked"]


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token, as the store has it. Times are Unix seconds."""

    id: str
    name: str
    role: str
    sha256: bytes  # of the token: 256 random bits, so that its hash needs no salt and no stretching
    created_at: float
    expires_at: float | None = None
    single_use: bool = False
    used_at: float | None = None  # join: the last exchange; worker: its first hello
    used_by: str | None = None  # the name with which that worker joined
    worker_id: str | None = None  # join: who used it last; worker: whose credential it is
    issued_by: str | None = None  # the join token that a credential was given for
    revoked_at: float | None = None
    max_running: int | None = None  # tasks that run at once of whoever it names; None: as many as there is room for
    max_devices: int | None = None  # likewise, accelerators that they hold at once

    def state(self, now: float) -> State:
        """What it is good for now."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and now >= self.expires_at:
            return "expired"
        if self.single_use and self.used_at is not None:
            return "used"
        return "live"

    def problem(self, now: float) -> Problem | None:
        """Why it lets nobody in, None where it may.

        One that is used up is the exchange's to refuse: its answer may have been lost.
        """
        state = self.state(now)
        if state not in ("revoked", "expired"):
            return None
        return ended(self, state)


def limits_of(tokens: Iterable[Token]) -> dict[str, Limits]:
    """How much of the fleet each person may hold at once, by names; who has no limit is left out.

    The newest token of a name says so, also once it has ended: what its owner submitted goes on.
    """
    newest: dict[str, Token] = {}
    for token in tokens:
        before = newest.get(token.name)
        if token.role in (ADMIN, SUBMITTER) and (before is None or token.created_at >= before.created_at):
            newest[token.name] = token
    return {
        name: Limits(max_running=token.max_running, max_devices=token.max_devices)
        for name, token in newest.items()
        if token.max_running is not None or token.max_devices is not None
    }


def ended(token: Token, state: State) -> Problem:
    """What is said to whoever brings a token that is good for nothing any more."""
    what = f"the credential of worker {token.name}" if token.role == WORKER else f"the token {token.name}"
    words = {"revoked": "was revoked", "expired": "has expired", "used": f"was used already, by {token.used_by}"}
    detail = f"ask whoever runs the control plane for a new join line, which {create(JOIN)} makes"
    if token.role not in (JOIN, WORKER):
        detail = f"ask whoever runs the control plane for another one, which {create(token.role, token.name)} makes"
    return Problem(status=401, code=f"token_{state}", title=f"{what} {words[state]}", detail=detail)


def create(role: str, name: str = "NAME") -> str:
    """The command that makes a token of a role."""
    if role == JOIN:
        return "`gpulayer token create --role join`"
    named = name if _PLAIN.fullmatch(name) else shlex.quote(name)
    return f"`gpulayer token create --role {role} --name {named}`"


def wrong_role(role: str, what: str, needed: Sequence[str]) -> Problem:
    """What is said to whoever brings a token that may not do this. `needed`: the roles that may, the least first."""
    names = f"{', '.join(needed[:-1])} or {needed[-1]}" if len(needed) > 1 else needed[0]
    detail = f"{what} needs a token of the role {names}, which {create(needed[0])} makes on the control plane's machine"
    return Problem(status=403, code="wrong_role", title=f"a token of the role {role} may not do this", detail=detail)


def sha256(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).digest()


def long_ended(token: Token, now: float) -> bool:
    """Whether a token that let nobody in any more since long may be forgotten."""
    if token.role == WORKER or token.state(now) == "live":
        return False
    ends = [at for at in (token.revoked_at, token.expires_at, token.used_at if token.single_use else None) if at]
    return now - min(ends) > KEPT_S
