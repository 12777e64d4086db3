-- name: specs
SELECT n, spec FROM jobs WHERE n > ? ORDER BY n LIMIT ?

-- name: outcomes
SELECT n, idx, outcome FROM tasks WHERE (n, idx) > (?, ?) AND outcome IS NOT NULL ORDER BY n, idx LIMIT ?

-- name: attempts
SELECT n, idx, number, id FROM attempts WHERE (n, idx, number) > (?, ?, ?) ORDER BY n, idx, number LIMIT ?

-- name: args_blobs
SELECT n, k, first, blobs FROM map_args INDEXED BY map_args_blobs
WHERE (n, k, first) > (?, ?, ?) AND blobs IS NOT NULL ORDER BY n, k, first LIMIT ?

-- name: results_blobs
SELECT seq, blobs FROM map_results INDEXED BY map_results_blobs WHERE seq > ? AND blobs IS NOT NULL ORDER BY seq LIMIT ?
