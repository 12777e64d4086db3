-- jobs never change after they are taken; what moves is in tasks and attempts
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO meta (name, value) VALUES ('epoch', 0);

CREATE TABLE jobs (
    id           TEXT PRIMARY KEY,
    n            INTEGER NOT NULL UNIQUE,
    owner        TEXT NOT NULL,
    key          TEXT NOT NULL,
    payload_hash TEXT NOT NULL,
    spec         BLOB NOT NULL,
    submitted_at REAL NOT NULL,
    UNIQUE (owner, key)
) WITHOUT ROWID;

CREATE TABLE tasks (
    id            TEXT PRIMARY KEY,
    job_id        TEXT NOT NULL,
    idx           INTEGER NOT NULL,
    state         TEXT NOT NULL,
    cancel_wanted INTEGER NOT NULL,
    attempt_id    TEXT,
    attempts      INTEGER NOT NULL,
    lost          INTEGER NOT NULL,
    reasons       BLOB NOT NULL,
    outcome       BLOB,
    ended_at      REAL,
    notes         BLOB NOT NULL
) WITHOUT ROWID;

CREATE INDEX tasks_of_job ON tasks (job_id);
CREATE INDEX tasks_live ON tasks (state) WHERE state IN ('queued', 'assigned', 'running', 'unreachable', 'lost');

CREATE TABLE attempts (
    id          TEXT PRIMARY KEY,
    task_id     TEXT NOT NULL,
    number      INTEGER NOT NULL,
    worker_id   TEXT NOT NULL,
    session_id  TEXT,
    devices     BLOB NOT NULL,
    assigned_at REAL NOT NULL,
    started_at  REAL,
    ended_at    REAL,
    end_offset  INTEGER,
    over        INTEGER NOT NULL,
    released    INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX attempts_of_task ON attempts (task_id);
CREATE INDEX attempts_held ON attempts (worker_id) WHERE released = 0;

CREATE TABLE sessions (
    id             TEXT PRIMARY KEY,
    name           TEXT NOT NULL,
    owner          TEXT NOT NULL,
    worker_id      TEXT NOT NULL,
    devices        BLOB NOT NULL,
    opened_at      REAL NOT NULL,
    idle_timeout_s REAL NOT NULL,
    used           INTEGER NOT NULL,
    closing        INTEGER NOT NULL,
    closed         INTEGER NOT NULL,
    reason         TEXT NOT NULL
) WITHOUT ROWID;

CREATE INDEX sessions_open ON sessions (owner, name) WHERE closed = 0;

CREATE TABLE workers (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    slots        INTEGER NOT NULL,
    local        INTEGER NOT NULL,
    inventory    BLOB NOT NULL,
    last_seen_at REAL NOT NULL
) WITHOUT ROWID;
