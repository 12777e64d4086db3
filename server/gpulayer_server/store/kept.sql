-- name: specs
SELECT n, spec FROM jobs WHERE n > ? ORDER BY n LIMIT ?

-- name: outcomes
SELECT n, idx, outcome FROM tasks WHERE (n, idx) > (?, ?) AND outcome IS NOT NULL ORDER BY n, idx LIMIT ?

-- name: attempts
SELECT n, idx, number, id FROM attempts WHERE (n, idx, number) > (?, ?, ?) ORDER BY n, idx, number LIMIT ?
