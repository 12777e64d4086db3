"""What a token is good for, and what is said of one that is not."""

from __future__ import annotations

import pytest

from gpulayer_server.auth import JOIN, KEPT_S, WORKER, Token, ended, long_ended, sha256, wrong_role


def a_token(role: object = JOIN, **more: object) -> Token:
    facts = {"id": "t-1", "name": "paste", "role": role, "sha256": sha256("x"), "created_at": 0.0} | more
    return Token(**facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, "live"),
        ({"expires_at": 10.0}, "expired"),
        ({"expires_at": 10.5}, "live"),
        ({"single_use": True}, "live"),
        ({"single_use": True, "used_at": 5.0}, "used"),
        ({"used_at": 5.0}, "live"),
        ({"single_use": True, "used_at": 5.0, "expires_at": 9.0}, "expired"),
        ({"revoked_at": 1.0, "expires_at": 9.0, "single_use": True, "used_at": 0.5}, "revoked"),
    ],
)
def test_what_it_is_good_for(facts: dict[str, object], state: str) -> None:
    token = a_token(**facts)
    assert token.state(10.0) == state
    problem = token.problem(10.0)
    if state in ("live", "used"):  # a used one is looked at by the exchange
        assert problem is None
    else:
        assert problem is not None
        assert (problem.status, problem.code) == (401, f"token_{state}")


def test_the_words_for_one_that_ended() -> None:
    used = ended(a_token(used_by="alpha"), "used").line()
    assert used == (
        "the token paste was used already, by alpha: ask whoever runs the control plane for a new join line, "
        "which `gpulayer token create --role join` makes"
    )
    assert ended(a_token(), "expired").title == "the token paste has expired"
    assert ended(a_token(WORKER, name="alpha"), "revoked").title == "the credential of worker alpha was revoked"


def test_the_words_name_the_command_that_makes_another_one() -> None:
    """Situation 19: which of the two it is, the role that is needed, the command that makes one."""
    alice = a_token("submitter", name="alice")
    assert ended(alice, "expired").line() == (
        "the token alice has expired: ask whoever runs the control plane for another one, which "
        "`gpulayer token create --role submitter --name alice` makes"
    )
    assert "--name 'al ice'`" in ended(a_token("reader", name="al ice"), "revoked").detail
    assert wrong_role("submitter", "POST /v1/join", ["join"]).line() == (
        "a token of the role submitter may not do this: POST /v1/join needs a token of the role join, which "
        "`gpulayer token create --role join` makes on the control plane's machine"
    )
    assert "needs a token of the role reader, submitter or admin, which `gpulayer token create --role reader" in (
        wrong_role("join", "GET /v1/jobs", ["reader", "submitter", "admin"]).detail
    )


@pytest.mark.parametrize(
    ("facts", "forgotten"),
    [
        ({}, False),
        ({"expires_at": 0.5}, True),
        ({"expires_at": 1.5}, False),
        ({"single_use": True, "used_at": 0.5}, True),
        ({"single_use": True, "used_at": 0.5, "expires_at": KEPT_S * 2}, True),
        ({"used_at": 0.5}, False),
        ({"revoked_at": 0.5}, True),
        ({"revoked_at": 0.5, "role": WORKER}, False),  # its worker may come back, and is to be told
    ],
)
def test_what_is_forgotten(facts: dict[str, object], forgotten: bool) -> None:
    assert long_ended(a_token(**{"role": JOIN} | facts), KEPT_S + 1.0) is forgotten  # type: ignore[arg-type]
