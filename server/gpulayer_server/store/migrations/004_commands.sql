-- jobs, tasks and attempts in the order of their coming: what is written together lies together
CREATE TABLE jobs_by_n (
    n            INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    owner        TEXT NOT NULL,
    key          TEXT NOT NULL,
    payload_hash TEXT NOT NULL,
    spec         BLOB NOT NULL,
    submitted_at REAL NOT NULL,
    name         TEXT NOT NULL
);

CREATE TABLE tasks_by_n (
    n             INTEGER NOT NULL,
    idx           INTEGER NOT NULL,
    state         TEXT NOT NULL,
    cancel_wanted INTEGER NOT NULL,
    attempts      INTEGER NOT NULL,
    lost          INTEGER NOT NULL,
    reasons       BLOB NOT NULL,
    outcome       BLOB,
    ended_at      REAL,
    notes         BLOB NOT NULL,
    PRIMARY KEY (n, idx)
) WITHOUT ROWID;

CREATE TABLE attempts_by_n (
    n           INTEGER NOT NULL,
    idx         INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    id          TEXT NOT NULL,
    worker_id   TEXT NOT NULL,
    session_id  TEXT,
    devices     BLOB NOT NULL,
    assigned_at REAL NOT NULL,
    started_at  REAL,
    ended_at    REAL,
    end_offset  INTEGER,
    over        INTEGER NOT NULL,
    released    INTEGER NOT NULL,
    problem     TEXT NOT NULL,  -- why it was lost, or given back
    PRIMARY KEY (n, idx, number)
) WITHOUT ROWID;

-- how a job ended as a whole, once all of its tasks have
CREATE TABLE ends (
    n        INTEGER PRIMARY KEY,
    state    TEXT NOT NULL,
    ended_at REAL NOT NULL
);

-- a job's labels, as 'key=value'
CREATE TABLE labels (
    label TEXT NOT NULL,
    n     INTEGER NOT NULL,
    PRIMARY KEY (label, n)
) WITHOUT ROWID;

INSERT INTO jobs_by_n SELECT n, id, owner, key, payload_hash, spec, submitted_at, '' FROM jobs ORDER BY n;

INSERT INTO tasks_by_n
SELECT jobs.n, idx, state, cancel_wanted, attempts, lost, reasons, outcome, ended_at, notes
FROM tasks JOIN jobs ON jobs.id = tasks.job_id ORDER BY jobs.n, idx;

INSERT INTO attempts_by_n
SELECT jobs.n, tasks.idx, number, attempts.id, worker_id, session_id, devices, assigned_at, started_at,
    attempts.ended_at, end_offset, over, released, ''
FROM attempts JOIN tasks ON tasks.id = attempts.task_id JOIN jobs ON jobs.id = tasks.job_id
ORDER BY jobs.n, tasks.idx, number;

-- there were no jobs with many tasks until now
INSERT INTO ends SELECT n, state, ended_at FROM tasks_by_n
WHERE state IN ('succeeded', 'failed', 'cancelled', 'rejected') AND ended_at IS NOT NULL ORDER BY n;

DROP TABLE attempts;
DROP TABLE tasks;
DROP TABLE jobs;
ALTER TABLE jobs_by_n RENAME TO jobs;
ALTER TABLE tasks_by_n RENAME TO tasks;
ALTER TABLE attempts_by_n RENAME TO attempts;

CREATE UNIQUE INDEX jobs_by_key ON jobs (owner, key);
CREATE INDEX jobs_of_owner ON jobs (owner, n);
CREATE INDEX jobs_named ON jobs (name, n) WHERE name <> '';
CREATE INDEX attempts_held ON attempts (worker_id) WHERE released = 0;
CREATE INDEX ends_by_time ON ends (ended_at);
CREATE INDEX ends_unwell ON ends (state, n) WHERE state IN ('failed', 'cancelled', 'rejected');
CREATE INDEX labels_of_job ON labels (n);

-- a start looks at the last losses and at the last ended sessions only, however many there are
CREATE INDEX attempts_lost ON attempts (ended_at) WHERE over = 1 AND end_offset IS NULL;
CREATE INDEX sessions_ended ON sessions (opened_at) WHERE closed = 1 AND used = 1 AND reason <> 'released';
