-- name: put_job
INSERT INTO jobs (id, n, owner, key, payload_hash, spec, submitted_at) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: put_task
INSERT OR REPLACE INTO tasks
    (id, job_id, idx, state, cancel_wanted, attempt_id, attempts, lost, reasons, outcome, ended_at, notes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: put_attempt
INSERT OR REPLACE INTO attempts
    (id, task_id, number, worker_id, session_id, devices, assigned_at, started_at, ended_at, end_offset, over, released)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: put_session
INSERT OR REPLACE INTO sessions
    (id, name, owner, worker_id, devices, opened_at, idle_timeout_s, used, closing, closed, reason)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: put_worker
INSERT OR REPLACE INTO workers (id, name, slots, local, inventory, last_seen_at) VALUES (?, ?, ?, ?, ?, ?)

-- name: raise_epoch
UPDATE meta SET value = value + 1 WHERE name = 'epoch' RETURNING value

-- name: last_job_n
SELECT coalesce(max(n), 0) FROM jobs

-- name: live_jobs
SELECT id, n, owner, key, payload_hash, spec, submitted_at FROM jobs WHERE id IN (
    SELECT job_id FROM tasks WHERE state IN ('queued', 'assigned', 'running', 'unreachable', 'lost')
    UNION
    SELECT tasks.job_id FROM attempts JOIN tasks ON tasks.id = attempts.task_id WHERE attempts.released = 0
) ORDER BY n

-- name: tasks_of_job
SELECT id, job_id, idx, state, cancel_wanted, attempt_id, attempts, lost, reasons, outcome, ended_at, notes
FROM tasks WHERE job_id = ? ORDER BY idx

-- name: attempt
SELECT id, task_id, number, worker_id, session_id, devices, assigned_at, started_at, ended_at, end_offset, over, released
FROM attempts WHERE id = ?

-- name: held_attempts
SELECT id, task_id, number, worker_id, session_id, devices, assigned_at, started_at, ended_at, end_offset, over, released
FROM attempts INDEXED BY attempts_held WHERE released = 0 ORDER BY id

-- name: lost_attempts
SELECT id FROM attempts WHERE over = 1 AND end_offset IS NULL ORDER BY ended_at DESC, id LIMIT ?

-- name: open_sessions
SELECT id, name, owner, worker_id, devices, opened_at, idle_timeout_s, used, closing, closed, reason
FROM sessions INDEXED BY sessions_open WHERE closed = 0 ORDER BY id

-- name: ended_sessions
SELECT owner, name, reason FROM sessions AS ended
WHERE closed = 1 AND used = 1 AND reason <> 'released' AND NOT EXISTS (
    SELECT 1 FROM sessions AS later
    WHERE later.owner = ended.owner AND later.name = ended.name AND later.opened_at > ended.opened_at
        AND (later.used = 1 OR (later.closed = 1 AND later.reason = 'released'))
) ORDER BY opened_at DESC LIMIT ?

-- name: workers
SELECT id, name, slots, local, inventory, last_seen_at FROM workers ORDER BY id

-- name: job
SELECT id, n, owner, key, payload_hash, spec, submitted_at FROM jobs WHERE id = ?

-- name: job_by_key
SELECT id, n, owner, key, payload_hash, spec, submitted_at FROM jobs WHERE owner = ? AND key = ?

-- name: recent_jobs
SELECT id, n, owner, key, payload_hash, spec, submitted_at FROM jobs WHERE owner = ? ORDER BY n DESC LIMIT ?

-- name: put_token
INSERT INTO tokens
    (id, name, role, sha256, created_at, expires_at, single_use, used_at, used_by, worker_id, issued_by, revoked_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: use_token
UPDATE tokens SET used_at = ?, used_by = ?, worker_id = ? WHERE id = ?

-- name: revoke_token
UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL

-- name: drop_token
DELETE FROM tokens WHERE id = ?

-- name: tokens
SELECT id, name, role, sha256, created_at, expires_at, single_use, used_at, used_by, worker_id, issued_by, revoked_at
FROM tokens ORDER BY created_at, id
