"""A keeper that was killed, and the next one on the same folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from gpulayer_worker.keeper.client import ExitRecord, KeeperClient, KeeperEvent, KeeperGone


async def event(client: KeeperClient) -> KeeperEvent:
    """The next event."""
    return await asyncio.wait_for(anext(client.events()), timeout=30)


def spawn(house, *jobs: dict) -> list[int]:
    """Start jobs; their main processes."""

    async def start() -> list[int]:
        async with house.client() as client:
            return [(await client.spawn(**job)).pid for job in jobs]

    return asyncio.run(start())


def kill_keeper(house, keeper) -> None:
    house.end(keeper, signal.SIGKILL)


def test_the_next_keeper_takes_over_agent_and_groups(contained) -> None:
    portable = contained.containment == "marker"
    keeper = contained.start(*(["--portable"] if portable else []))
    agent = contained.record("agent.json")
    script = f"(setsid {contained.sleep} &); echo up > $MAIL; read line < end; exit 4"
    os.mkfifo(contained.folder / "end")
    (main,) = spawn(contained, contained.job("kept", script))
    assert contained.mail.line() == "up"
    run_folder = contained.record("keeper.json")["run_dir"]
    kill_keeper(contained, keeper)
    contained.start_detached(portable=portable)
    assert contained.record("agent.json") == agent
    assert contained.record("keeper.json")["run_dir"] == run_folder

    async def check() -> None:
        async with contained.client() as client:
            (row,) = await client.list()
            assert (row.id, row.pid, row.alive, row.adopted) == ("kept", main, True, True)
            assert row.processes == 2
            assert (await client.spawn(**contained.job("kept", "true"))).pid == main
            await asyncio.to_thread((contained.folder / "end").write_text, "\n")
            ended, gone = await event(client), await event(client)
            assert (ended.kind, gone.kind) == ("exit", "gone")
            assert ended.record is not None
            assert (ended.record.unknown, ended.record.code, ended.record.signal) == (True, None, None)
            assert not ended.record.killed_by_us
            assert ExitRecord.from_file(contained.folder / "kept.exit") == ended.record
            assert contained.processes() == {}

    asyncio.run(check())


def test_an_adopted_group_can_be_signalled_and_killed(contained) -> None:
    keeper = contained.start()
    script = (
        f"trap 'echo caught > $MAIL' USR1; (setsid {contained.sleep} &); echo up > $MAIL; while :; do sleep 0.01; done"
    )
    spawn(contained, contained.job("kept", script))
    assert contained.mail.line() == "up"
    kill_keeper(contained, keeper)
    contained.start_detached()

    async def check() -> None:
        async with contained.client() as client:
            await client.signal("kept", signal.SIGUSR1)
            assert await asyncio.to_thread(contained.mail.line) == "caught"
            assert await client.kill("kept") >= 2
            (row,) = await client.list()
            assert row.gone
            assert row.exit is not None
            assert (row.exit.unknown, row.exit.killed_by_us) == (True, True)
            assert contained.processes() == {}

    asyncio.run(check())


def test_what_ended_without_a_keeper_is_unknown_and_its_rest_is_killed(contained, until_dead) -> None:
    keeper = contained.start()
    script = f"(setsid {contained.sleep} &); echo up > $MAIL; exec {contained.sleep}"
    (main,) = spawn(contained, contained.job("ended", script))
    assert contained.mail.line() == "up"
    kill_keeper(contained, keeper)
    os.kill(main, signal.SIGTERM)
    until_dead(main)
    assert len(contained.processes()) == 1
    contained.start_detached()

    async def check() -> None:
        async with contained.client() as client:
            assert await client.kill("ended") in (0, 1)  # replies when none is left
            (row,) = await client.list()
            assert row.gone
            assert row.exit is not None
            assert row.exit.unknown
            assert ExitRecord.from_file(contained.folder / "ended.exit") == row.exit
            assert contained.processes() == {}

    asyncio.run(check())


def test_an_exit_that_was_written_is_still_known(house) -> None:
    keeper = house.start()

    async def run() -> None:
        async with house.client() as client:
            await client.spawn(**house.job("done", "exit 4"))
            assert [(await event(client)).kind for _ in range(2)] == ["exit", "gone"]

    asyncio.run(run())
    kill_keeper(house, keeper)
    house.start_detached()

    async def check() -> None:
        async with house.client() as client:
            await client.kill("done")
            (row,) = await client.list()
            assert row.gone
            assert row.exit is not None
            assert (row.exit.code, row.exit.unknown) == (4, False)
            assert row.exit == ExitRecord.from_file(house.folder / "done.exit")

    asyncio.run(check())


def test_the_client_learns_that_its_keeper_is_gone(house) -> None:
    keeper = house.start()

    async def check() -> None:
        async with house.client() as client:
            events = client.events()
            await client.ping()
            next_event = asyncio.ensure_future(anext(events))
            keeper.kill()
            with pytest.raises(KeeperGone):
                await asyncio.wait_for(next_event, timeout=30)
            with pytest.raises(KeeperGone):
                await client.ping()
            await asyncio.to_thread(house.start_detached)
            await asyncio.to_thread(house.start_detached)  # one that serves is as good
            async with house.client() as again:
                assert (await again.ping())["pid"] == house.record("keeper.json")["pid"] != keeper.pid

    asyncio.run(check())


def test_nobody_answers_for_an_empty_folder(house) -> None:
    async def check() -> None:
        with pytest.raises(KeeperGone, match="no keeper answers for"):
            await house.client().connect()

    asyncio.run(check())


def test_an_adopted_agent_is_started_again_when_it_dies(house) -> None:
    kill_keeper(house, house.start())
    house.start_detached()
    os.kill(house.record("agent.json")["pid"], signal.SIGKILL)
    assert house.mail.line().startswith("agent ")


def test_an_adopted_agent_says_how_it_leaves(house, until_dead) -> None:
    kill_keeper(house, house.start())
    house.start_detached()
    keeper, agent = house.record("keeper.json")["pid"], house.record("agent.json")["pid"]

    async def leave() -> None:
        async with house.client() as client:
            await client.spawn(**house.job("running", f"exec {house.sleep}"))
            await client.leaving(0)

    asyncio.run(leave())
    os.kill(agent, signal.SIGKILL)
    until_dead(keeper)
    assert house.everyone() == {}
    assert not (house.data / "keeper.json").exists()


def test_groups_of_an_earlier_boot_are_gone(house) -> None:
    kill_keeper(house, house.start())
    agent = house.record("agent.json")["pid"]
    record = {
        "id": "old",
        "pid": agent,  # the pid is another's now
        "start_time": house.record("agent.json")["start_time"],
        "boot_id": "another-boot",
        "cgroup": None,
        "exit": str(house.folder / "old.exit"),
        "started_at": 1.0,
    }
    (house.data / "groups" / "old.json").write_text(json.dumps(record))
    house.start_detached()

    async def check() -> None:
        async with house.client() as client:
            (row,) = await client.list()
            assert (row.id, row.gone, row.processes) == ("old", True, 0)
            assert row.exit is not None
            assert row.exit.unknown
            assert house.record("agent.json")["pid"] == agent
            assert agent in house.everyone()

    asyncio.run(check())
