"""Programs that a keeper starts by the batch: contained as any other, and known to the next keeper."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from gpulayer_worker.keeper.client import KeeperClient


class Batch:
    """A client that starts programs by the batch, and what it is told."""

    def __init__(self, house: Any) -> None:
        self._house = house
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.client = KeeperClient(house.data, self._told)

    def _told(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            self.events.put_nowait(event)

    async def __aenter__(self) -> Batch:
        await self.client.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    def run(self, **scripts: str) -> None:
        """Start lines of shell, by their ids."""
        folder = str(self._house.folder)
        jobs = [
            {
                "id": id,
                "argv": ["sh", "-c", script],
                "env": {},
                "cwd": folder,
                "stdout": f"{folder}/{id}.out",
                "stderr": f"{folder}/{id}.out",
            }
            for id, script in scripts.items()
        ]
        self.client.send([{"op": "run", "env": self._house.env, "jobs": jobs}])

    async def next(self, kind: str, id: str) -> dict[str, Any]:
        """The next event of this kind for this program."""
        while True:
            event = await asyncio.wait_for(self.events.get(), 30)
            if event["event"] == kind and event.get("id", id) == id:
                return event

    async def over(self, id: str) -> dict[str, Any]:
        """How a program ended, once nothing of it is left."""
        ended = await self.next("ended", id)
        if not ended["gone"]:
            await self.next("cleared", id)
        return ended


def test_a_hundred_small_ones_end_each_with_its_own_code(contained) -> None:
    contained.start()

    async def check() -> None:
        async with Batch(contained) as batch:
            batch.run(**{f"n{number}": f"echo {number}; exit {number}" for number in range(100)})
            codes: dict[str, int] = {}
            while len(codes) < 100:
                event = await asyncio.wait_for(batch.events.get(), 30)
                if event["event"] == "ended":
                    codes[event["id"]] = event["code"]
            assert codes == {f"n{number}": number for number in range(100)}
            batch.client.send([{"op": "drop", "ids": list(codes)}])
            assert await batch.client.list() == ()
        assert [contained.output(f"n{number}") for number in range(100)] == [f"{number}\n" for number in range(100)]

    asyncio.run(check())


def test_daemons_of_one_are_gone_and_the_others_stay(contained) -> None:
    contained.start()
    daemons = f"""
        (setsid {contained.sleep} > /dev/null 2>&1 &)
        (setsid sh -c '(setsid {contained.sleep} &); {contained.sleep}' &)
        {contained.sleep} &
        while [ $(ps -e -o args= | grep -c '^{contained.sleep}$') -lt 6 ]; do :; done
        exit 3"""

    async def check() -> None:
        async with Batch(contained) as batch:
            batch.run(bystander=f"exec {contained.sleep}")
            await batch.next("started", "bystander")
            batch.run(daemons=daemons)
            assert (await batch.over("daemons"))["code"] == 3
            assert len(contained.processes()) == 1
            (row,) = [row for row in await batch.client.list() if row.id == "bystander"]
            assert row.processes == 1
            await batch.client.kill("bystander")
            assert (await batch.over("bystander"))["killed_by_us"]
        assert contained.processes() == {}

    asyncio.run(check())


@pytest.mark.parametrize("kind", ["cgroup", "subreaper"])
def test_a_daemon_that_cleared_its_environment_is_gone_too(house, has_cgroup: bool, kind: str) -> None:
    if kind == "cgroup" and not has_cgroup:
        pytest.skip("no writable cgroup2 here")
    house.containment = kind
    house.start()
    script = f"(env -i /usr/bin/setsid /usr/bin/{house.sleep} &); until pgrep -f '^/usr/bin/{house.sleep}$'; do :; done"

    async def check() -> None:
        async with Batch(house) as batch:
            for round in range(3):  # the same cgroup serves one after the other
                batch.run(**{f"cleared{round}": script})
                await batch.over(f"cleared{round}")
                assert house.processes() == {}

    asyncio.run(check())


def test_in_cgroups_nobody_elses_daemon_stays_for_want_of_a_name(house, has_cgroup: bool) -> None:
    if not has_cgroup:
        pytest.skip("no writable cgroup2 here")
    house.containment = "cgroup"
    house.start()
    script = f"(env -i /usr/bin/setsid /usr/bin/{house.sleep} &); until pgrep -f '^/usr/bin/{house.sleep}$'; do :; done"

    async def check() -> None:
        async with Batch(house) as batch:
            batch.run(elder="exec cat /dev/zero > /dev/null")
            await batch.next("started", "elder")
            batch.run(maker=script)
            await batch.over("maker")
            assert len(house.processes()) == 1  # though the elder, which lives, could have started it by descent
            await batch.client.kill("elder")

    asyncio.run(check())


def test_a_signal_reaches_it_and_its_end_says_who_asked(contained) -> None:
    contained.start()

    async def check() -> None:
        async with Batch(contained) as batch:
            batch.run(
                deaf=f"trap '' TERM; echo up > $MAIL; {contained.sleep}",
                polite=f"echo up > $MAIL; exec {contained.sleep}",
            )
            lines = [await asyncio.to_thread(contained.mail.line) for _ in range(2)]
            assert lines == ["up", "up"]
            await batch.client.kill("deaf")
            assert (await batch.over("deaf"))["signal"] == signal.SIGKILL
            await batch.client.kill("polite")

    asyncio.run(check())


@pytest.mark.parametrize("young", [True, False])
def test_the_next_keeper_finds_it_also_where_nobody_wrote_down_who_it_is(contained, young: bool) -> None:
    portable = contained.containment == "marker"
    keeper = contained.start(*(["--portable"] if portable else []))

    async def begin() -> None:
        async with Batch(contained) as batch:
            batch.run(kept=f"(setsid {contained.sleep} &); echo up > $MAIL; exec {contained.sleep}", done="exit 4")
            assert (await batch.next("ended", "done"))["code"] == 4
            assert await asyncio.to_thread(contained.mail.line) == "up"

    asyncio.run(begin())
    contained.end(keeper, signal.SIGKILL)
    journal = contained.data / "groups.log"
    if young:  # as if it had been killed before it wrote down the process
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(line for line in lines if b'"pid"' not in line or b'"exit"' in line))
    contained.start_detached(portable=portable)

    async def check() -> None:
        async with Batch(contained) as batch:
            batch.client.send([{"op": "look", "ids": ["kept", "done", "other"]}])
            assert (await batch.next("ended", "done"))["code"] == 4
            await batch.next("unknown", "other")
            await batch.next("started", "kept")
            assert len(contained.processes()) == 2
            batch.run(kept=f"exec {contained.sleep}")  # it is there already
            await batch.next("started", "kept")
            assert len(contained.processes()) == 2
            batch.client.send([{"op": "keep", "ids": ["done"]}])
            await batch.client.kill("kept")  # answers when none is left
            assert {row.id for row in await batch.client.list()} == {"done"}
            assert contained.processes() == {}

    asyncio.run(check())
