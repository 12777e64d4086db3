"""The tokens of a control plane: one decision after the other, each counted once it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulayer.protocol.types import JobView, Problem
from gpulayer_server.auth import JOIN, KEPT_S, SUBMITTER, WORKER, State, Token, limits_of, sha256
from gpulayer_server.core.state import Limits
from gpulayer_server.store.database import Store
from gpulayer_server.store.rows import Op
from gpulayer_server.tokens import AuthError, Tokens

FULL = Problem(status=507, code="store_failed", title="the disk is full")
ONE_USE = {"role": JOIN, "name": "paste", "expires_s": 600.0, "single_use": True}


class Shell:
    """Writes to a real store; holds commits back or lets them fail when told to."""

    def __init__(self, path: Path):
        self.store = Store(path)
        self.now = 1000.0
        self.held: list[tuple[list[Op], Callable[[JobView | Problem | None], None]]] | None = None
        self.full = False
        self.writes = 0
        self.limited: list[dict[str, Limits]] = []  # what was told of limits
        self.asked = asyncio.Event()  # something is held back

    def write(self, ops: list[Op], reply: Callable[[JobView | Problem | None], None]) -> None:
        self.writes += 1
        if self.held is not None:
            self.held.append((ops, reply))
            self.asked.set()
        elif self.full:
            reply(FULL)
        else:
            self.store.commit([ops])
            reply(None)

    def let_go(self) -> None:
        held, self.held = self.held or [], None
        for ops, reply in held:
            self.write(ops, reply)

    def tokens(self) -> Tokens:
        """As a control plane finds them at its start."""
        return Tokens(self, self.store.tokens(), lambda: self.now, self.limited.append)


class Worker:
    """A connection that remembers why it was cut off."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def cut_off(self, problem: Problem) -> None:
        self.told.append(problem.title)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path / "store.db")
    yield shell
    shell.store.close()


@pytest.fixture
def tokens(shell: Shell) -> Tokens:
    return shell.tokens()


def made(tokens: Tokens, **more: object) -> tuple[Token, str]:
    return asyncio.run(tokens.make(**ONE_USE | more))  # type: ignore[arg-type]


def joined(tokens: Tokens, token: Token, worker: str = "w1", name: str = "alpha") -> Token:
    """The credential that a worker got."""
    found = tokens.find(asyncio.run(tokens.exchange(token, worker, name)))
    assert found is not None
    return found


def refused(tokens: Tokens, token: Token, worker: str = "w1") -> str:
    with pytest.raises(AuthError) as error:
        asyncio.run(tokens.exchange(token, worker, "alpha"))
    return error.value.problem.code


def states(tokens: Tokens) -> dict[str, State]:
    return {token.name: state for token, state in tokens.all()}


def greet(tokens: Tokens, credential: Token) -> None:
    tokens.greeted(credential, lambda problem: pytest.fail(problem.title))


# ---------------------------------------------------------------- making


def test_only_the_hash_of_a_token_is_kept(tokens: Tokens, shell: Shell, tmp_path: Path) -> None:
    token, text = made(tokens)
    assert text.startswith("gl-join-")
    assert len(text) > 40
    assert token.sha256 == sha256(text)
    assert tokens.find(text) == token
    assert shell.store.tokens() == [token]
    files = [path.read_bytes() for path in tmp_path.iterdir()]
    assert not any(text.encode() in data for data in files)


@pytest.mark.parametrize("other", ["", "gl-join-", "no token", "gl-join-" + "x" * 43, "é"])
def test_another_text_is_no_token(tokens: Tokens, other: str) -> None:
    made(tokens)
    assert tokens.find(other) is None


def test_a_token_without_a_name_gets_one(tokens: Tokens) -> None:
    token, _ = made(tokens, name="")
    assert token.name == f"join {token.id}"


def test_what_is_not_written_does_not_count(tokens: Tokens, shell: Shell) -> None:
    shell.full = True
    with pytest.raises(AuthError, match="the disk is full"):
        made(tokens)
    assert tokens.all() == []
    shell.full = False
    token, _ = made(tokens)
    shell.full = True
    with pytest.raises(AuthError):
        asyncio.run(tokens.revoke(token.id))
    assert refused(tokens, token) == "store_failed"
    shell.full = False
    assert states(tokens) == {"paste": "live"}
    assert joined(tokens, token).worker_id == "w1"  # it was not used up


def test_tokens_that_ended_long_ago_are_forgotten_when_another_is_made(tokens: Tokens, shell: Shell) -> None:
    old, text = made(tokens, name="old")
    credential = joined(tokens, made(tokens, name="spent")[0])
    asyncio.run(tokens.revoke(credential.id))
    shell.now += 600 + KEPT_S
    assert states(tokens) == {"old": "expired", "spent": "expired", "alpha": "revoked"}
    shell.now += 1
    made(tokens, name="new")
    for each in (tokens, shell.tokens()):
        assert states(each) == {"alpha": "revoked", "new": "live"}
    assert tokens.find(text) is None
    assert tokens.problem(old) is not None  # also for whoever was just let in by it


# ---------------------------------------------------------------- joining


def test_a_join_token_is_exchanged_for_a_credential(tokens: Tokens, shell: Shell) -> None:
    token, _ = made(tokens)
    shell.now = 1300.0
    credential = joined(tokens, token)
    assert (credential.role, credential.name, credential.worker_id) == (WORKER, "alpha", "w1")
    assert (credential.issued_by, credential.expires_at, credential.used_at) == (token.id, None, None)
    [(used, state), (kept, _)] = shell.tokens().all()
    assert (state, used.used_by, used.worker_id, used.used_at) == ("used", "alpha", "w1", 1300.0)
    assert kept == credential


def test_a_token_that_is_used_up_lets_no_other_worker_in(tokens: Tokens, shell: Shell) -> None:
    token, _ = made(tokens)
    joined(tokens, token)
    assert refused(tokens, token, "w2") == "token_used"
    assert refused(shell.tokens(), token, "w2") == "token_used"


def test_of_two_that_bring_it_at_once_one_gets_in(tokens: Tokens, shell: Shell) -> None:
    token, _ = made(tokens)
    shell.held = []

    async def both() -> list[str | BaseException]:
        asked = [asyncio.ensure_future(tokens.exchange(token, name, name)) for name in ("w1", "w2")]
        await shell.asked.wait()
        shell.let_go()
        return await asyncio.gather(*asked, return_exceptions=True)

    first, second = asyncio.run(both())
    assert isinstance(first, str)
    assert isinstance(second, AuthError)
    assert second.problem.code == "token_used"


def test_whose_answer_was_lost_asks_again_and_the_lost_credential_is_worth_nothing(
    tokens: Tokens, shell: Shell
) -> None:
    token, _ = made(tokens)
    lost = joined(tokens, token)
    for again in (tokens, shell.tokens()):  # also when the control plane died over it
        credential = joined(again, token)
        assert again.problem(lost) is not None
        assert again.problem(credential) is None
        lost = credential


def test_once_its_credential_said_hello_the_token_gives_no_other(tokens: Tokens, shell: Shell) -> None:
    token, _ = made(tokens)
    credential = joined(tokens, token)
    shell.now = 1001.0
    greet(tokens, credential)
    assert refused(tokens, token, "w1") == "token_used"
    assert refused(shell.tokens(), token, "w1") == "token_used"
    assert tokens.problem(credential) is None
    writes = shell.writes
    greet(tokens, credential)
    assert shell.writes == writes  # the first hello is noted, no other
    assert {each.role: each.used_at for each in shell.store.tokens()} == {JOIN: 1000.0, WORKER: 1001.0}


def test_a_hello_that_could_not_be_noted_is_noted_by_the_next(tokens: Tokens, shell: Shell) -> None:
    credential = joined(tokens, made(tokens)[0])
    shell.full = True
    failed: list[Problem] = []
    tokens.greeted(credential, failed.append)
    assert failed == [FULL]
    shell.full = False
    greet(tokens, credential)
    assert all(token.used_at is not None for token, _ in tokens.all())


def test_a_hello_noted_late_gives_nobody_back_what_was_revoked_meanwhile(tokens: Tokens, shell: Shell) -> None:
    credential = joined(tokens, made(tokens)[0])

    async def run() -> None:
        shell.held = []
        revoking = asyncio.ensure_future(tokens.revoke(credential.id))
        await shell.asked.wait()
        greet(tokens, credential)
        shell.let_go()
        assert await revoking

    asyncio.run(run())
    for each in (tokens, shell.tokens()):
        assert states(each)["alpha"] == "revoked"


def test_a_token_for_many_lets_each_in_and_a_worker_that_joins_again_has_one_credential(
    tokens: Tokens, shell: Shell
) -> None:
    token, _ = made(tokens, single_use=False, expires_s=None)
    first, other = joined(tokens, token), joined(tokens, token, "w2", "beta")
    greet(tokens, first)
    again = joined(tokens, token)
    assert tokens.problem(first) is not None
    assert tokens.problem(other) is None
    assert tokens.problem(again) is None
    shell.now += 10 * 365 * 86_400
    assert joined(tokens, token, "w3").worker_id == "w3"


def test_an_expired_or_revoked_token_lets_nobody_in(tokens: Tokens, shell: Shell) -> None:
    token, _ = made(tokens)
    other, _ = made(tokens, name="other", single_use=False)
    joined(tokens, token)
    asyncio.run(tokens.revoke(other.id))
    assert refused(tokens, other) == "token_revoked"
    shell.now += 600
    assert refused(tokens, token) == "token_expired"  # also the worker whose answer was lost


# ---------------------------------------------------------------- names


def test_a_name_is_one_live_tokens_own(tokens: Tokens, shell: Shell) -> None:
    first, _ = made(tokens, name="alice", role="submitter", expires_s=600.0, single_use=False)
    with pytest.raises(AuthError) as taken:
        made(tokens, name="alice", role="reader", expires_s=None, single_use=False)
    assert (taken.value.problem.status, taken.value.problem.code) == (409, "name_taken")
    assert "gpulayer token revoke" in taken.value.problem.detail
    made(tokens, name="bob", role="submitter", expires_s=None, single_use=False)
    shell.now += 600
    second, _ = made(tokens, name="alice", role="submitter", expires_s=None, single_use=False)  # the first has ended
    assert first.id != second.id
    assert asyncio.run(tokens.revoke("alice"))
    assert tokens.problem(second) is not None
    assert asyncio.run(tokens.revoke("alice")), "one that has ended stays so"
    made(tokens, name="alice", role="submitter", expires_s=None, single_use=False)


def test_a_name_of_several_revokes_none(tokens: Tokens, shell: Shell) -> None:
    token, _ = made(tokens, single_use=False)
    credentials = [joined(tokens, token, worker, "twin") for worker in ("w1", "w2")]
    with pytest.raises(AuthError) as several:
        asyncio.run(tokens.revoke("twin"))
    assert (several.value.problem.status, several.value.problem.code) == (409, "several_tokens")
    assert all(each.id in several.value.problem.detail for each in credentials)
    assert asyncio.run(tokens.revoke(credentials[0].id))
    assert asyncio.run(tokens.revoke("twin")), "now it is one's own"
    assert all(tokens.problem(each) is not None for each in credentials)
    assert not asyncio.run(tokens.revoke("nobody"))


# ---------------------------------------------------------------- revoking


def test_a_revoked_worker_is_cut_off_and_no_other_one(tokens: Tokens, shell: Shell) -> None:
    token, _ = made(tokens, single_use=False)
    credentials = [joined(tokens, token, name, name) for name in ("w1", "w2")]
    workers = [Worker(), Worker(), Worker()]
    for credential, worker in zip([*credentials, credentials[0]], workers, strict=True):
        tokens.opened(credential, worker)
    tokens.closed(credentials[0], workers[2])
    assert asyncio.run(tokens.revoke(credentials[0].id))
    assert [worker.told for worker in workers] == [["the credential of worker w1 was revoked"], [], []]
    assert tokens.problem(credentials[0]) is not None
    assert asyncio.run(tokens.revoke(credentials[0].id))  # again: it is so already
    assert len(workers[0].told) == 1


def test_who_joined_by_a_token_stays_when_that_is_revoked_unless_said_otherwise(tokens: Tokens) -> None:
    token, _ = made(tokens, single_use=False)
    others, _ = made(tokens, name="another", single_use=False)
    credential, stranger = joined(tokens, token), joined(tokens, others, "w2", "beta")
    worker, other = Worker(), Worker()
    tokens.opened(credential, worker)
    tokens.opened(stranger, other)
    assert asyncio.run(tokens.revoke(token.id))
    assert refused(tokens, token, "w3") == "token_revoked"
    assert tokens.problem(credential) is None
    assert asyncio.run(tokens.revoke(token.id, workers=True))
    assert tokens.problem(credential) is not None
    assert (len(worker.told), len(other.told)) == (1, 0)


def test_a_token_that_is_not_there_is_not_revoked(tokens: Tokens) -> None:
    assert asyncio.run(tokens.revoke("t-none")) is False


# ---------------------------------------------------------------- limits

ANA = {"role": SUBMITTER, "name": "ana", "expires_s": None, "single_use": False}


def test_limits_are_told_at_the_start_and_when_they_change(shell: Shell, tokens: Tokens) -> None:
    made(tokens, **ANA, limits=Limits(max_running=2))
    made(tokens, **ANA | {"name": "bob"})
    assert shell.limited == [{"ana": Limits(max_running=2)}]
    shell.limited.clear()
    shell.tokens()
    assert shell.limited == [{"ana": Limits(max_running=2)}]


def test_limits_outlast_their_token_until_the_next_one_of_that_name(shell: Shell, tokens: Tokens) -> None:
    made(tokens, **ANA, limits=Limits(max_devices=1))
    assert asyncio.run(tokens.revoke("ana"))
    assert shell.limited == [{"ana": Limits(max_devices=1)}]
    shell.now += 1
    made(tokens, **ANA)
    assert shell.limited[1:] == [{}]


def test_limits_that_could_not_be_written_do_not_count(shell: Shell, tokens: Tokens) -> None:
    shell.full = True
    with pytest.raises(AuthError):
        made(tokens, **ANA, limits=Limits(max_running=1))
    assert shell.limited == []


def test_a_worker_of_the_same_name_changes_no_limits() -> None:
    own = Token(id="t-1", name="ana", role=SUBMITTER, sha256=b"a", created_at=1.0, max_running=3)
    worker = Token(id="t-2", name="ana", role=WORKER, sha256=b"b", created_at=2.0)
    assert limits_of([own, worker]) == {"ana": Limits(max_running=3)}
