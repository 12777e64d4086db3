-- tokens that people gave out, and the credentials that workers got for them: never a token itself, only its hash
CREATE TABLE tokens (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    role       TEXT NOT NULL,
    sha256     BLOB NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    expires_at REAL,
    single_use INTEGER NOT NULL,
    used_at    REAL,
    used_by    TEXT,
    worker_id  TEXT,
    issued_by  TEXT,
    revoked_at REAL
) WITHOUT ROWID;
