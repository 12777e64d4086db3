"""The table of tokens: its migration, and what a row keeps."""

from __future__ import annotations

import sqlite3
from importlib import resources
from pathlib import Path

import pytest

from gpulayer_server.auth import Token, sha256
from gpulayer_server.store.database import Store, StoreError
from gpulayer_server.store.rows import put_token

WHOLE = Token(
    id="t-1",
    name="paste",
    role="join",
    sha256=sha256("gl-join-x"),
    created_at=1.0,
    expires_at=2.0,
    single_use=True,
    used_at=3.0,
    used_by="alpha",
    worker_id="w1",
    issued_by="t-0",
    revoked_at=4.0,
    max_running=5,
    max_devices=6,
)
BARE = Token(id="t-0", name="n", role="worker", sha256=sha256("y"), created_at=0.5)


def of_version(path: Path, version: int) -> None:
    """A store as that version left it, with a worker in it."""
    raw = sqlite3.connect(path)
    folder = resources.files("gpulayer_server.store").joinpath("migrations")
    for file in sorted(each.name for each in folder.iterdir() if each.name.endswith(".sql")):
        if int(file.split("_")[0]) <= version:
            raw.executescript(folder.joinpath(file).read_text(encoding="utf-8"))
    raw.execute(f"PRAGMA user_version = {version}")
    with raw:
        raw.execute("INSERT INTO jobs VALUES ('j1', 1, 'ana', 'k', 'h', x'00', 1.0)")
    raw.close()


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_from_before_the_tokens_gets_their_table_and_keeps_what_it_has(tmp_path: Path, version: int) -> None:
    path = tmp_path / "store.db"
    of_version(path, version)
    store = Store(path)
    assert store.tokens() == []
    store.commit([[put_token(BARE)]])
    store.close()
    again = Store(path)
    assert again.tokens() == [BARE]
    again.close()
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT id, owner FROM jobs").fetchall() == [("j1", "ana")]
    assert raw.execute("PRAGMA user_version").fetchone()[0] >= 3
    raw.close()


def test_a_token_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    store.commit([[put_token(WHOLE), put_token(BARE)]])
    assert store.tokens() == [BARE, WHOLE]  # oldest first
    store.commit([[("use_token", (9.0, "beta", "w2", "t-0")), ("revoke_token", (8.0, "t-0"))]])
    store.commit([[("revoke_token", (10.0, "t-0")), ("drop_token", ("t-1",))]])
    [left] = store.tokens()
    assert (left.used_at, left.used_by, left.worker_id) == (9.0, "beta", "w2")
    assert left.revoked_at == 8.0  # the first time counts
    store.close()


def test_no_token_is_kept_twice(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    store.commit([[put_token(BARE)]])
    twin = Token(id="t-2", name="n", role="join", sha256=BARE.sha256, created_at=1.0)
    with pytest.raises(StoreError, match="UNIQUE"):
        store.commit([[put_token(twin)]])
    assert store.tokens() == [BARE]
    store.close()
