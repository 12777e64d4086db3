"""Faults in what is done of calls, as a line of source and what stands in its place: see `handwritten`."""

from __future__ import annotations

_CALLS = "gpulayer_server.core.calls"

#: Name -> module, source that must be there once, what is put in its place.
TABLE: dict[str, tuple[str, str, str]] = {
    # ------------------------------------------------------------ calls
    "second-result-counts": (
        f"{_CALLS}.results",
        "    new = of.done.missing(first, end)\n",
        "    new = [(first, end)]\n",
    ),
    "results-not-stored": (f"{_CALLS}.results", "out.put(ResultsRow(n=row.n, k=row.k, run=run))", "pass"),
    "fenced-results-taken": (
        f"{_CALLS}.results",
        "lease = plane.calls.leases.get(attempt.id) if attempt is not None else None\n    for run",
        "lease = plane.calls.leases.get(message.attempt) or next(iter(plane.calls.leases.values()), None)\n    for run",
    ),
    "returned-calls-forgotten": (
        f"{_CALLS}.results",
        "            lease.let_go(of, first, end)\n            wait_again(lease.pool, of, first, end)\n",
        "            lease.let_go(of, first, end)\n",
    ),
    "deaths-not-counted": (f"{_CALLS}.results", "if deaths <= _FREE_DEATHS:", "if True:"),
    "retries-without-end": (f"{_CALLS}.results", "if tries > spec.retries:", "if spec.retries == 0:"),
    "never-tried-again": (
        f"{_CALLS}.results",
        "        if of.row.ended_at is None and of.put_off",
        "        if False and of.put_off",
    ),
    "accepted-not-said": (
        f"{_CALLS}.results",
        "    out.send(worker.conn, CallsAccepted(attempt=message.attempt, ranges=accepted))\n",
        "",
    ),
    "calls-lost-with-their-lease": (
        f"{_CALLS}.leases",
        "        for low, high in ranges:\n            results.wait_again(pool, of, low, high)\n    dispatch",
        "    dispatch",
    ),
    "undelivered-calls-forgotten": (
        f"{_CALLS}.leases",
        "                lease.let_go(of, low, high)\n                results.wait_again(pool, of, low, high)\n",
        "                pass\n",
    ),
    "declared-calls-unheeded": (
        f"{_CALLS}.leases",
        "            _take_over(lease, of, first, end)",
        "            pass",
    ),
    "ended-map-not-dropped-at-hello": (f"{_CALLS}.leases", "    for name in dropped:\n", "    for name in ():\n"),
    "no-further-runner": (f"{_CALLS}.leases", "    elif _wants_another(plane, pool, now):", "    elif False:"),
    "job-ends-with-its-first-runner": (f"{_CALLS}.leases", "if pool.maps and not others:", "if False:"),
    "object-made-anew": (
        f"{_CALLS}.leases",
        "    elif pool.stateful:\n        _object",
        "    elif False:\n        _object",
    ),
    "letting-go-forgotten": (f"{_CALLS}.leases", "if pool.closing and not pool.maps:", "if False:"),
    "given-out-before-hello": (f"{_CALLS}.dispatch", "    if pool.unheard:", "    if False:"),
    "never-called-back": (f"{_CALLS}.dispatch", "        _call_back(pool, now, out)", "        pass"),
    "cancelled-calls-run-on": (
        f"{_CALLS}.ending",
        "                out.send(lease.worker.conn, DropCalls(attempt=lease.attempt.id, map=row.id))\n",
        "",
    ),
    "end-of-a-map-not-stored": (
        f"{_CALLS}.ending",
        "row.ended_at = state, now\n    out.put(row)\n",
        "row.ended_at = state, now\n",
    ),
    "done-forgotten-in-a-restart": (
        f"{_CALLS}.restoring",
        "            of.done.add(first, first + count)",
        "            pass",
    ),
    "map-numbers-begin-anew": (f"{_CALLS}.restoring", "snapshot.last_map_k.get(job.n, 0)", "0"),
    "args-counted-twice": (
        f"{_CALLS}.opening",
        "new = args[row.taken - first :] if first < row.taken else args",
        "new = args",
    ),
    # ------------------------------------------------------------ calls of clients that go away
    "client-away-not-stored": (f"{_CALLS}.attending", "    out.put(of.row)\n", ""),
    "client-away-unnoticed": (f"{_CALLS}.attending", "_note(of, of.alone_since, out)", "pass"),
    "ends-before-what-came-is-done": (f"{_CALLS}.attending", "elif row.done == row.taken and alone_s", "elif alone_s"),
    "client-that-is-there-unheeded": (f"{_CALLS}.attending", "        if row.id in attended:", "        if False:"),
    "waits-for-a-client-for-good": (
        f"{_CALLS}.attending",
        "            _end_if_late(plane, of, row.left_at + settings.client_away_s, now, out)",
        "            pass",
    ),
    "complete-maps-wait-for-clients": (f"{_CALLS}.attending", "    if row.taken == row.total:", "    if False:"),
    "incomplete-maps-not-restored": (
        f"{_CALLS}.restoring",
        "        if row.total is None or row.taken < row.total:",
        "        if False:",
    ),
    # ------------------------------------------------------------ calls, once more
    "key-makes-two-maps": (f"{_CALLS}.opening", "name = calls.keys.get((event.owner, event.key))", "name = None"),
    "args-not-stored": (
        f"{_CALLS}.opening",
        "        out.put(ArgsRow(n=row.n, k=row.k, first=row.taken, args=new, blobs=blobs))\n",
        "",
    ),
    "map-not-stored": (
        f"{_CALLS}.opening",
        "    out.put(row)\n    out.maps.add(row.id)\n    return of",
        "    out.maps.add(row.id)\n    return of",
    ),
    "last-args-unheeded": (f"{_CALLS}.opening", "        row.total = row.taken\n", "        pass\n"),
    "letting-go-not-stored": (
        f"{_CALLS}.opening",
        "                task.notes = (*task.notes, LET_GO)\n                out.put(task)",
        "                task.notes = (*task.notes, LET_GO)",
    ),
    "deaths-untold": (
        f"{_CALLS}.results",
        "        if message.began:\n            died",
        "        if False:\n            died",
    ),
    "failed-call-of-nobody-tried-again": (f"{_CALLS}.results", "(index not in held or _tried", "(_tried"),
    "lease-stays-with-its-pool": (f"{_CALLS}.leases", "    del pool.leases[attempt.id]\n", ""),
    "waits-for-who-is-out-of-reach": (
        f"{_CALLS}.leases",
        "        lease.pool.unheard.discard(lease.attempt.id)\n",
        "",
    ),
    "put-off-calls-taken-over": (f"{_CALLS}.leases", "        for index in of.put_off:", "        for index in ():"),
    "end-not-said-again": (
        f"{_CALLS}.leases",
        "    if lease.ending:\n        out.send",
        "    if False:\n        out.send",
    ),
    "object-in-two-runners": (f"{_CALLS}.leases", " or (pool.stateful and pool.job.tasks)", ""),
    "sleeping-lease-never-woken": (f"{_CALLS}.leases", "        _wake(plane, pool)\n", "        pass\n"),
    "begun-not-stored": (
        f"{_CALLS}.dispatch",
        "row.started_at = State.RUNNING, now\n        out.put(row)\n",
        "row.started_at = State.RUNNING, now\n",
    ),
    "idle-runners-stay": (f"{_CALLS}.yielding", "    if idle:\n", "    if False:\n"),
    "results-untold-on-a-new-connection": (
        "gpulayer_worker.callslink",
        "        self._told = 0\n\n    def pump",
        "        pass\n\n    def pump",
    ),
    "ended-calls-undeclared": ("gpulayer_worker.callslink", "(self._calls, self._ended, *(", "(self._calls, *("),
    "waiting-calls-undeclared": ("gpulayer_worker.callslink", "(self._calls, self._ended, *(", "(self._ended, *("),
    "results-told-before-their-text": (
        "gpulayer_worker.callslink",
        "self._results) and self._results[self._told][1] <= sent:",
        "self._results):",
    ),
    "found-calls-forgotten": ("gpulayer_worker.linkcalls", "            held.calls.found(ranges)", "            pass"),
}
