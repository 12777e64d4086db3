"""What a keeper does with groups: starting, telling how they ended, and leaving nothing of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from gpulayer_worker.keeper.client import ExitRecord, KeeperClient, KeeperError, KeeperEvent


async def wait_for(client: KeeperClient, kind: str, id: str) -> KeeperEvent:
    """The next event of this kind for this group."""

    async def look() -> KeeperEvent:
        async for event in client.events():
            if (event.kind, event.id) == (kind, id):
                return event
        raise AssertionError("the events ended")

    return await asyncio.wait_for(look(), timeout=30)


async def run_to_end(client: KeeperClient, **job) -> ExitRecord:
    """Run a job; its exit record, once nothing is left of it."""
    await client.spawn(**job)
    record = (await wait_for(client, "exit", job["id"])).record
    await wait_for(client, "gone", job["id"])
    assert record is not None
    return record


def test_tells_exit_codes_and_signals_and_writes_them_down(house) -> None:
    house.start()

    async def check() -> None:
        async with house.client() as client:
            left = await run_to_end(client, **house.job("left", "echo out; echo err >&2; exit 4"))
            crashed = await run_to_end(client, **house.job("crashed", "kill -SEGV $$"))
        assert (left.code, left.signal, left.unknown) == (4, None, False)
        assert (crashed.code, crashed.signal) == (None, signal.SIGSEGV)
        assert not crashed.killed_by_us
        assert not crashed.oom
        assert left.started_at <= left.ended_at
        assert ExitRecord.from_file(house.folder / "left.exit") == left
        assert ExitRecord.from_file(house.folder / "crashed.exit") == crashed
        assert house.output("left") == "out\nerr\n"

    asyncio.run(check())


def test_tells_what_a_program_used(house) -> None:
    house.start()
    use = "import time; data = bytearray(150 << 20)\nwhile time.process_time() < 0.2: pass"
    job = {**house.job("used", ""), "argv": [sys.executable, "-S", "-c", use]}

    async def check() -> None:
        async with house.client() as client:
            record = await run_to_end(client, **job)
        assert record.peak_rss_bytes is not None
        assert 150 << 20 < record.peak_rss_bytes < 250 << 20
        assert record.cpu_s is not None
        assert record.cpu_s >= 0.2

    asyncio.run(check())


def test_a_program_gets_exactly_its_environment_and_nothing_else_of_the_keeper(house) -> None:
    house.start()

    async def check() -> None:
        async with house.client() as client:
            env = await run_to_end(client, **house.job("env", "", argv=["env"]))
            shown = await run_to_end(
                client,
                **house.job("shown", "ls /proc/self/fd; grep -E 'Sig(Blk|Ign)' /proc/self/status; cat; pwd", env={}),
            )
        assert (env.code, shown.code) == (0, 0)

    asyncio.run(check())
    lines = dict(line.split("=", 1) for line in house.output("env").splitlines())
    marks = {name: lines.pop(name) for name in ("GPULAYER_GROUP", "GPULAYER_KEEPER")}
    assert lines == house.env
    assert marks["GPULAYER_GROUP"] == "env"
    words = house.output("shown").split()
    assert words[:4] == ["0", "1", "2", "3"]  # 3 is what ls itself opens
    assert (words[4], words[6], words[8]) == ("SigBlk:", "SigIgn:", str(house.folder))
    internal = 3 << 31  # 32 and 33 are the C library's own: posix_spawn leaves them ignored
    assert (int(words[5], 16), int(words[7], 16) & ~internal) == (0, 0)


def test_says_in_one_line_what_cannot_be_started(house) -> None:
    house.start()

    async def check() -> None:
        async with house.client() as client:
            with pytest.raises(KeeperError, match=r"^cannot start x: cannot run 'no-such-program': No such file"):
                await client.spawn(**house.job("x", "", argv=["no-such-program"]))
            with pytest.raises(KeeperError, match=r"^cannot start x: cannot enter the folder '/no/such'.*No such file"):
                await client.spawn(**house.job("x", "true", cwd="/no/such"))
            with pytest.raises(KeeperError, match="cannot open the output '/no/such/out'"):
                await client.spawn(**house.job("x", "true", stdout="/no/such/out"))
            assert await client.list() == ()
            assert not (house.data / "groups" / "x.json").exists()
            assert not (house.folder / "x.exit").exists()
            assert (await run_to_end(client, **house.job("x", "exit 3"))).code == 3  # the id is free

    asyncio.run(check())


def test_an_id_is_started_once_until_it_is_forgotten(house) -> None:
    house.start()
    job = house.job("once", f"echo started $$ > $MAIL; exec {house.sleep}")

    async def check() -> None:
        async with house.client() as client, house.client() as other:
            first, second = await asyncio.gather(client.spawn(**job), other.spawn(**job))
            assert await asyncio.to_thread(house.mail.line) == f"started {first.pid}"
            third = await client.spawn(**job)
            assert first.pid == second.pid == third.pid
            assert first.start_time == third.start_time
            assert third.already
            await client.kill("once")
            ended = await client.spawn(**job)
            assert (ended.pid, ended.already, ended.alive) == (first.pid, True, False)
            await client.forget("once")
            again = await client.spawn(**job)
            assert (again.already, again.alive) == (False, True)
            assert again.pid != first.pid
            assert await asyncio.to_thread(house.mail.line) == f"started {again.pid}"
            await client.kill("once")

    asyncio.run(check())


def test_daemons_are_gone_after_the_main_process_ended(contained) -> None:
    contained.start()
    script = f"""
        (setsid {contained.sleep} > /dev/null 2>&1 &)
        (setsid sh -c '(setsid {contained.sleep} &); {contained.sleep}' &)
        {contained.sleep} &
        while [ $(ps -e -o args= | grep -c '^{contained.sleep}$') -lt 5 ]; do :; done
        exit 0"""

    async def check() -> None:
        async with contained.client() as client:
            assert (await client.ping())["containment"] == contained.containment
            spawned = await client.spawn(**contained.job("daemons", script))
            assert (spawned.cgroup is not None) == (contained.containment == "cgroup")
            record = (await wait_for(client, "exit", "daemons")).record
            assert record is not None
            assert record.code == 0
            await wait_for(client, "gone", "daemons")
            assert contained.processes() == {}
            (row,) = await client.list()
            assert (row.alive, row.gone, row.processes) == (False, True, 0)

    asyncio.run(check())


@pytest.mark.parametrize("kind", ["cgroup", "subreaper"])
def test_a_daemon_that_cleared_its_environment_is_gone_too(house, has_cgroup: bool, kind: str) -> None:
    if kind == "cgroup" and not has_cgroup:
        pytest.skip("no writable cgroup2 here")
    house.containment = kind
    house.start()
    script = f"(env -i /usr/bin/setsid /usr/bin/{house.sleep} &); until pgrep -f '^/usr/bin/{house.sleep}$'; do :; done"

    async def check() -> None:
        async with house.client() as client:
            record = await run_to_end(client, **house.job("cleared", script))
            assert record.code == 0
            assert house.processes() == {}

    asyncio.run(check())


def test_an_unmarked_orphan_stays_while_another_group_may_own_it(house) -> None:
    house.containment = "subreaper"
    house.start()
    script = f"(env -i /usr/bin/setsid /usr/bin/{house.sleep} &); until pgrep -f '^/usr/bin/{house.sleep}$'; do :; done"

    async def check() -> None:
        async with house.client() as client:
            await client.spawn(**house.job("elder", f"exec {house.sleep}"))
            await run_to_end(client, **house.job("maker", script))
            await client.spawn(**house.job("younger", f"exec {house.sleep}"))
            await client.kill("younger")
            assert len(house.processes()) == 2  # the elder's main process, and the orphan
            await client.kill("elder")
            assert house.processes() == {}

    asyncio.run(check())


def test_kill_ends_all_of_a_group_and_may_be_asked_again(contained) -> None:
    contained.start()
    script = f"trap '' TERM INT; {contained.sleep} & setsid {contained.sleep} & echo up > $MAIL; wait"

    async def check() -> None:
        async with contained.client() as client:
            await client.spawn(**contained.job("bystander", f"exec {contained.sleep}"))
            await client.spawn(**contained.job("victim", script))
            assert await asyncio.to_thread(contained.mail.line) == "up"
            killed = await asyncio.gather(client.kill("victim"), client.kill("victim"))
            assert max(killed) == 3
            assert min(killed) in (3, 0)  # whoever asks when all are gone is told 0
            record = ExitRecord.from_file(contained.folder / "victim.exit")
            assert record is not None
            assert (record.signal, record.killed_by_us, record.oom) == (signal.SIGKILL, True, False)
            assert await client.kill("victim") == 0
            assert await client.kill("never-there") == 0
            assert len(contained.processes()) == 1  # the bystander
            await client.kill("bystander")

    asyncio.run(check())


def test_a_signal_reaches_the_process_group_of_the_main_process(house) -> None:
    house.start()
    script = f"trap 'echo caught > $MAIL; exit 5' INT; {house.sleep} & echo up > $MAIL; wait"

    async def check() -> None:
        async with house.client() as client:
            await client.spawn(**house.job("signalled", script))
            assert await asyncio.to_thread(house.mail.line) == "up"
            await client.signal("signalled", signal.SIGINT)
            assert await asyncio.to_thread(house.mail.line) == "caught"
            record = (await wait_for(client, "exit", "signalled")).record
            assert record is not None
            assert (record.code, record.killed_by_us) == (5, False)
            await wait_for(client, "gone", "signalled")
            with pytest.raises(KeeperError, match="has ended"):
                await client.signal("signalled", signal.SIGINT)
            with pytest.raises(KeeperError, match="no group 'nobody'"):
                await client.signal("nobody", signal.SIGINT)

    asyncio.run(check())


def test_a_group_is_listed_with_its_processes_until_it_is_forgotten(contained) -> None:
    contained.start()
    script = f"{contained.sleep} & setsid {contained.sleep} & echo up > $MAIL; wait"

    async def check() -> None:
        async with contained.client() as client:
            spawned = await client.spawn(**contained.job("listed", script))
            assert await asyncio.to_thread(contained.mail.line) == "up"
            (row,) = await client.list()
            assert (row.id, row.pid, row.start_time) == ("listed", spawned.pid, spawned.start_time)
            assert (row.alive, row.processes, row.exit) == (True, 3, None)
            with pytest.raises(KeeperError, match="kill it first"):
                await client.forget("listed")
            await client.kill("listed")
            assert (contained.data / "groups" / "listed.json").exists()
            await client.forget("listed")
            assert await client.list() == ()
            assert not (contained.data / "groups" / "listed.json").exists()
            assert (contained.folder / "listed.exit").exists()

    asyncio.run(check())


def test_answers_nonsense_with_a_line_and_goes_on(house) -> None:
    house.start()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(house.record("keeper.json")["socket"])
        stream = connection.makefile("rw")

        def ask(line: str) -> dict:
            stream.write(line + "\n")
            stream.flush()
            return json.loads(stream.readline())

        assert ask("nonsense")["n"] is None
        assert "unknown operation" in ask('{"n": 1, "op": "dance"}')["error"]
        assert "letters" in ask('{"n": 2, "op": "kill", "id": "../x"}')["error"]
        assert "argv" in ask('{"n": 3, "op": "spawn", "id": "x", "argv": []}')["error"]
        assert ask('{"n": 4, "op": "ping"}')["ok"] is True


def test_an_exit_record_that_cannot_be_written_is_still_told(house) -> None:
    house.start()

    async def check() -> None:
        async with house.client() as client:
            record = await run_to_end(client, **house.job("lost", "exit 6", exit="/no/such/folder/exit"))
            assert record.code == 6
            (row,) = await client.list()
            assert row.exit == record

    asyncio.run(check())


MEMORY = Path("/sys/fs/cgroup/memory")


@pytest.mark.skipif(not os.access(MEMORY / "memory.limit_in_bytes", os.W_OK), reason="no writable memory cgroup here")
def test_tells_when_the_machine_ran_out_of_memory(house) -> None:
    house.start()
    limited = MEMORY / f"gpulayer-test-{house.tag}"
    limited.mkdir()
    (limited / "memory.limit_in_bytes").write_text(str(40 << 20))
    use = f"import os; open({str(limited / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); bytearray(200 << 20)"

    async def check() -> None:
        async with house.client() as client:
            record = await run_to_end(client, **house.job("large", "", argv=[sys.executable, "-S", "-c", use]))
            assert (record.signal, record.oom, record.killed_by_us) == (signal.SIGKILL, True, False)
            other = await run_to_end(client, **house.job("killed", "kill -KILL $$"))
            assert (other.signal, other.oom) == (signal.SIGKILL, False)

    try:
        asyncio.run(check())
    finally:
        limited.rmdir()
