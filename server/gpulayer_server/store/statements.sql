-- name: put_job
INSERT INTO jobs (n, id, owner, key, payload_hash, spec, submitted_at, name) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: put_label
INSERT INTO labels (label, n) VALUES (?, ?)

-- name: put_task
INSERT OR REPLACE INTO tasks (n, idx, state, cancel_wanted, attempts, lost, reasons, outcome, ended_at, notes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: put_attempt
INSERT OR REPLACE INTO attempts
    (n, idx, number, id, worker_id, session_id, devices, assigned_at, started_at, ended_at, end_offset, over, released,
     problem)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: put_end
INSERT OR REPLACE INTO ends (n, state, ended_at) VALUES (?, ?, ?)

-- name: put_session
INSERT OR REPLACE INTO sessions
    (id, name, owner, worker_id, devices, opened_at, idle_timeout_s, used, closing, closed, reason, requirements)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: put_worker
INSERT OR REPLACE INTO workers (id, name, slots, local, inventory, last_seen_at) VALUES (?, ?, ?, ?, ?, ?)

-- name: raise_epoch
UPDATE meta SET value = value + 1 WHERE name = 'epoch' RETURNING value

-- name: last_job_n
SELECT coalesce(max(n), 0) FROM jobs

-- name: live_jobs
SELECT jobs.n, id, owner, key, payload_hash, spec, submitted_at, ends.state, ends.ended_at
FROM jobs LEFT JOIN ends ON ends.n = jobs.n
WHERE ends.n IS NULL OR jobs.n IN (SELECT n FROM attempts WHERE released = 0) ORDER BY jobs.n

-- name: held_attempts
SELECT jobs.id, attempts.n, idx, attempts.id, number, worker_id, session_id, devices, assigned_at, started_at, ended_at,
    end_offset, over, released, problem
FROM attempts INDEXED BY attempts_held JOIN jobs ON jobs.n = attempts.n
WHERE released = 0 ORDER BY attempts.id

-- name: lost_attempts
SELECT id FROM attempts WHERE over = 1 AND end_offset IS NULL ORDER BY ended_at DESC LIMIT ?

-- name: open_sessions
SELECT id, name, owner, worker_id, devices, opened_at, idle_timeout_s, used, closing, closed, reason, requirements
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
SELECT jobs.n, id, owner, key, payload_hash, spec, submitted_at, ends.state, ends.ended_at
FROM jobs LEFT JOIN ends ON ends.n = jobs.n WHERE id = ?

-- name: job_by_key
SELECT jobs.n, id, owner, key, payload_hash, spec, submitted_at, ends.state, ends.ended_at
FROM jobs LEFT JOIN ends ON ends.n = jobs.n WHERE owner = ? AND key = ?

-- name: page
SELECT jobs.n, id, owner, key, payload_hash, spec, submitted_at, ends.state, ends.ended_at
FROM jobs LEFT JOIN ends ON ends.n = jobs.n WHERE jobs.n < ?

-- name: owner_of_job
SELECT owner FROM jobs WHERE id = ?

-- name: n_of_job
SELECT n FROM jobs WHERE id = ?

-- name: states
SELECT jobs.id, state FROM json_each(?) AS wanted CROSS JOIN jobs ON jobs.id = wanted.value LEFT JOIN ends ON ends.n = jobs.n

-- name: jobs_by_keys
SELECT jobs.key, jobs.id, payload_hash
FROM json_each(?) AS wanted CROSS JOIN jobs INDEXED BY jobs_by_key ON jobs.owner = ? AND jobs.key = wanted.value

-- name: tasks_of_jobs
SELECT jobs.id, tasks.n, tasks.idx, state, cancel_wanted, attempts, lost, reasons, outcome, tasks.ended_at, notes,
    attempts.id, attempts.number, worker_id, session_id, devices, assigned_at, started_at, attempts.ended_at, end_offset,
    over, released, problem
FROM tasks JOIN jobs ON jobs.n = tasks.n
LEFT JOIN attempts ON attempts.n = tasks.n AND attempts.idx = tasks.idx AND attempts.number = tasks.attempts
WHERE tasks.n IN (SELECT value FROM json_each(?)) ORDER BY tasks.n, tasks.idx

-- name: task
SELECT jobs.id, tasks.n, tasks.idx, state, cancel_wanted, attempts, lost, reasons, outcome, tasks.ended_at, notes,
    attempts.id, attempts.number, worker_id, session_id, devices, assigned_at, started_at, attempts.ended_at, end_offset,
    over, released, problem
FROM tasks JOIN jobs ON jobs.n = tasks.n
LEFT JOIN attempts ON attempts.n = tasks.n AND attempts.idx = tasks.idx AND attempts.number = tasks.attempts
WHERE tasks.n = ? AND tasks.idx = ?

-- name: first_task
SELECT jobs.id, tasks.n, tasks.idx, state, cancel_wanted, attempts, lost, reasons, outcome, tasks.ended_at, notes,
    attempts.id, attempts.number, worker_id, session_id, devices, assigned_at, started_at, attempts.ended_at, end_offset,
    over, released, problem
FROM tasks JOIN jobs ON jobs.n = tasks.n
LEFT JOIN attempts ON attempts.n = tasks.n AND attempts.idx = tasks.idx AND attempts.number = tasks.attempts
WHERE jobs.id = ? ORDER BY tasks.idx LIMIT 1

-- name: first_task_in_state
SELECT jobs.id, tasks.n, tasks.idx, state, cancel_wanted, attempts, lost, reasons, outcome, tasks.ended_at, notes,
    attempts.id, attempts.number, worker_id, session_id, devices, assigned_at, started_at, attempts.ended_at, end_offset,
    over, released, problem
FROM tasks JOIN jobs ON jobs.n = tasks.n
LEFT JOIN attempts ON attempts.n = tasks.n AND attempts.idx = tasks.idx AND attempts.number = tasks.attempts
WHERE tasks.n = ? AND state = ? ORDER BY tasks.idx LIMIT 1

-- name: tally
SELECT state, count(*) FROM tasks WHERE n = ? GROUP BY state

-- name: attempts_of_job
SELECT jobs.id, attempts.n, idx, attempts.id, number, worker_id, session_id, devices, assigned_at, started_at, ended_at,
    end_offset, over, released, problem
FROM attempts JOIN jobs ON jobs.n = attempts.n WHERE jobs.id = ? ORDER BY idx, number

-- name: ended_count
SELECT count(*) FROM ends

-- name: oldest_ended
SELECT jobs.n, id, ended_at FROM ends JOIN jobs ON jobs.n = ends.n ORDER BY ended_at LIMIT ?

-- name: attempt_names
SELECT id FROM attempts WHERE n = ?

-- name: drop_labels
DELETE FROM labels WHERE n = ?

-- name: drop_attempts
DELETE FROM attempts WHERE n = ?

-- name: drop_tasks
DELETE FROM tasks WHERE n = ?

-- name: drop_end
DELETE FROM ends WHERE n = ?

-- name: drop_job
DELETE FROM jobs WHERE n = ?

-- name: put_map
INSERT INTO maps
    (n, k, owner, key, spec, opened_at, total, taken, done, failed, state, cancel_wanted, started_at, left_at, ended_at,
     problem, failed_index, failed_code, failure, reasons)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (n, k) DO UPDATE SET
    total = excluded.total, taken = excluded.taken, done = excluded.done, failed = excluded.failed,
    state = excluded.state, cancel_wanted = excluded.cancel_wanted, started_at = excluded.started_at,
    left_at = excluded.left_at, ended_at = excluded.ended_at, problem = excluded.problem, failed_index = excluded.failed_index,
    failed_code = excluded.failed_code, failure = excluded.failure, reasons = excluded.reasons

-- name: put_args
INSERT INTO map_args (n, k, first, count, blobs, args) VALUES (?, ?, ?, ?, ?, ?)

-- name: put_results
INSERT INTO map_results (n, k, first, count, spent_us, blobs, codes, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: drop_args
DELETE FROM map_args WHERE n = ? AND k = ?

-- name: drop_results
DELETE FROM map_results WHERE n = ? AND k = ?

-- name: drop_some_results
DELETE FROM map_results WHERE seq IN (SELECT seq FROM map_results WHERE n = ? AND k = ? LIMIT ?)

-- name: drop_map
DELETE FROM maps WHERE n = ? AND k = ?

-- name: live_maps
SELECT jobs.id, maps.n, k, maps.owner, maps.key, maps.spec, opened_at, total, taken, done, failed, state, cancel_wanted,
    started_at, left_at, ended_at, problem, failed_index, failed_code, failure, reasons
FROM maps INDEXED BY maps_live JOIN jobs ON jobs.n = maps.n WHERE ended_at IS NULL ORDER BY maps.n, k

-- name: done_of_live_maps
SELECT maps.n, maps.k, first, count
FROM maps INDEXED BY maps_live CROSS JOIN map_results INDEXED BY map_results_by_index
    ON map_results.n = maps.n AND map_results.k = maps.k
WHERE ended_at IS NULL ORDER BY maps.n, maps.k, first

-- name: last_maps
SELECT value, (SELECT max(k) FROM maps WHERE maps.n = value) FROM json_each(?)

-- name: maps_with_args
SELECT DISTINCT n, k FROM map_args

-- name: ended_map
SELECT 1 FROM maps WHERE n = ? AND k = ? AND ended_at IS NOT NULL

-- name: map
SELECT jobs.id, maps.n, k, maps.owner, maps.key, maps.spec, opened_at, total, taken, done, failed, state, cancel_wanted,
    started_at, left_at, ended_at, problem, failed_index, failed_code, failure, reasons
FROM jobs CROSS JOIN maps ON maps.n = jobs.n WHERE jobs.id = ? AND k = ?

-- name: map_by_key
SELECT jobs.id, maps.n, k, maps.owner, maps.key, maps.spec, opened_at, total, taken, done, failed, state, cancel_wanted,
    started_at, left_at, ended_at, problem, failed_index, failed_code, failure, reasons
FROM maps INDEXED BY maps_by_key CROSS JOIN jobs ON jobs.n = maps.n WHERE maps.owner = ? AND maps.key = ?

-- name: maps_of_job
SELECT jobs.id, maps.n, k, maps.owner, maps.key, maps.spec, opened_at, total, taken, done, failed, state, cancel_wanted,
    started_at, left_at, ended_at, problem, failed_index, failed_code, failure, reasons
FROM jobs CROSS JOIN maps ON maps.n = jobs.n WHERE jobs.id = ? AND k < ? ORDER BY k DESC LIMIT ?

-- name: args_of
SELECT first, args, blobs FROM map_args
WHERE n = ? AND k = ? AND first < ?
    AND first >= coalesce((SELECT max(first) FROM map_args WHERE n = ? AND k = ? AND first <= ?), 0)
ORDER BY first

-- name: results_by_index
SELECT seq, first, codes, data FROM map_results INDEXED BY map_results_by_index
WHERE n = ? AND k = ?
    AND first >= coalesce((SELECT max(first) FROM map_results WHERE n = ? AND k = ? AND first <= ?), 0)
ORDER BY first

-- name: results_by_coming
SELECT seq, first, codes, data FROM map_results INDEXED BY map_results_by_coming
WHERE n = ? AND k = ? AND seq > ? ORDER BY seq

-- name: maps_of_jobs
SELECT n, k FROM maps WHERE n IN (SELECT value FROM json_each(?)) LIMIT ?

-- name: ended_maps_count
SELECT count(*) FROM maps WHERE ended_at IS NOT NULL

-- name: oldest_ended_maps
SELECT n, k, ended_at FROM maps INDEXED BY maps_ended WHERE ended_at IS NOT NULL ORDER BY ended_at LIMIT ?

-- name: runs_of_map
SELECT count(*) FROM map_results INDEXED BY map_results_by_index WHERE n = ? AND k = ?

-- name: done_of_map
SELECT coalesce(sum(count), 0) FROM map_results INDEXED BY map_results_by_index WHERE n = ? AND k = ?

-- name: end_of_calls
SELECT ends.state FROM jobs INDEXED BY jobs_of_calls JOIN ends ON ends.n = jobs.n
WHERE owner = ? AND payload_hash = ? AND substr(key, 1, 6) = 'calls ' ORDER BY jobs.n DESC LIMIT 1

-- name: tally_of_maps
SELECT count(*), coalesce(sum(taken), 0), coalesce(sum(done), 0), coalesce(sum(failed), 0),
    coalesce(sum(CASE WHEN ended_at IS NULL THEN 0 ELSE taken - done END), 0)
FROM maps WHERE n = ?

-- name: put_token
INSERT INTO tokens
    (id, name, role, sha256, created_at, expires_at, single_use, used_at, used_by, worker_id, issued_by, revoked_at,
     max_running, max_devices)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: use_token
UPDATE tokens SET used_at = ?, used_by = ?, worker_id = ? WHERE id = ?

-- name: revoke_token
UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL

-- name: drop_token
DELETE FROM tokens WHERE id = ?

-- name: tokens
SELECT id, name, role, sha256, created_at, expires_at, single_use, used_at, used_by, worker_id, issued_by, revoked_at,
    max_running, max_devices
FROM tokens ORDER BY created_at, id
