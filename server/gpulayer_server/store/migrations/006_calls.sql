-- maps of calls, by their job's number and their own in it; what moves of one is written again with each change
CREATE TABLE maps (
    n             INTEGER NOT NULL,
    k             INTEGER NOT NULL,
    owner         TEXT NOT NULL,
    key           TEXT NOT NULL,
    spec          BLOB NOT NULL,
    opened_at     REAL NOT NULL,
    total         INTEGER,  -- NULL: more calls may come
    taken         INTEGER NOT NULL,
    done          INTEGER NOT NULL,
    failed        INTEGER NOT NULL,
    state         TEXT NOT NULL,
    cancel_wanted INTEGER NOT NULL,
    started_at    REAL,
    ended_at      REAL,
    problem       TEXT NOT NULL,
    failed_index  INTEGER,
    failed_code   INTEGER NOT NULL,
    failure       BLOB NOT NULL,
    reasons       BLOB NOT NULL,
    PRIMARY KEY (n, k)
) WITHOUT ROWID;

CREATE UNIQUE INDEX maps_by_key ON maps (owner, key);
CREATE INDEX maps_live ON maps (n, k) WHERE ended_at IS NULL;
CREATE INDEX maps_ended ON maps (ended_at) WHERE ended_at IS NOT NULL;

-- arguments of calls that stand one behind the other; they go once their map has ended
CREATE TABLE map_args (
    n     INTEGER NOT NULL,
    k     INTEGER NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    blobs BLOB,  -- digests that these name; NULL: none
    args  BLOB NOT NULL,
    PRIMARY KEY (n, k, first)
) WITHOUT ROWID;

CREATE INDEX map_args_blobs ON map_args (n, k, first) WHERE blobs IS NOT NULL;

-- results, likewise; `seq` is the order of their coming
CREATE TABLE map_results (
    seq      INTEGER PRIMARY KEY,
    n        INTEGER NOT NULL,
    k        INTEGER NOT NULL,
    first    INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    spent_us INTEGER NOT NULL,
    blobs    BLOB,
    codes    BLOB NOT NULL,
    data     BLOB NOT NULL
);

CREATE UNIQUE INDEX map_results_by_index ON map_results (n, k, first, count);
CREATE INDEX map_results_by_coming ON map_results (n, k);
CREATE INDEX map_results_blobs ON map_results (seq) WHERE blobs IS NOT NULL;

-- jobs of calls have keys that the control plane gives: whether an object was there is found by what it was made of
CREATE INDEX jobs_of_calls ON jobs (owner, payload_hash) WHERE substr(key, 1, 6) = 'calls ';
