"""How a keeper keeps its agent running, and how it ends itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpulayer_worker.keeper.client import KeeperError, start_keeper
from gpulayer_worker.keeper.records import LOG_LIMIT_BYTES


def run_group(house, id: str) -> None:
    """Start a group that stays."""

    async def spawn() -> None:
        async with house.client() as client:
            await client.spawn(**house.job(id, f"exec {house.sleep}"))

    asyncio.run(spawn())


def test_the_agent_is_started_again_whenever_it_dies(house) -> None:
    agent = (
        f"mkdir -p tries; touch tries/$$; echo $$ > $MAIL; [ $(ls tries | wc -l) -lt 3 ] || exec {house.sleep}; exit 9"
    )
    keeper = house.start(agent=agent)
    pids = [house.mail.line() for _ in range(3)]
    assert len(set(pids)) == 3
    assert house.record("agent.json")["pid"] == int(pids[-1])
    os.kill(int(pids[-1]), signal.SIGKILL)
    assert house.mail.line() not in pids
    assert house.end(keeper) == (0, "")
    assert not (house.data / "agent.json").exists()


def test_an_agent_that_cannot_be_run_is_named_and_tried_again(house) -> None:
    keeper = house.start(argv=["/no/such/agent"])
    assert keeper.stderr is not None
    said = [keeper.stderr.readline() for _ in range(2)]
    assert said[0] == said[1]
    assert "cannot run '/no/such/agent': No such file or directory" in said[0]
    assert house.end(keeper)[0] == 0


def test_an_agent_that_was_asked_to_stop_ends_the_keeper_and_its_groups(house) -> None:
    os.mkfifo(house.folder / "go")
    keeper = house.start(agent=f"echo agent > $MAIL; read line < {house.folder}/go; exit 0")
    assert house.mail.line() == "agent"
    run_group(house, "running")
    run_folder = Path(house.record("keeper.json")["run_dir"])
    (house.folder / "go").write_text("\n")
    assert house.ended(keeper) == (0, "")
    assert house.everyone() == {}
    assert not run_folder.exists()
    assert not (house.data / "keeper.json").exists()


def test_an_agent_that_was_refused_ends_the_keeper_with_its_last_line(house) -> None:
    keeper = house.start(agent="echo trying; echo 'the token has been revoked' >&2; echo; exit 77")
    code, said = house.ended(keeper)
    assert code == 1
    assert said == "gpulayer keeper: the agent gave up: the token has been revoked\n"
    assert (house.data / "logs" / "agent.log").read_text().startswith("trying\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_agent_first_then_the_groups(house, number: int) -> None:
    keeper = house.start(
        agent="trap 'echo asked > $MAIL; exit 0' TERM; echo agent > $MAIL; while :; do sleep 0.01; done"
    )
    assert house.mail.line() == "agent"
    run_group(house, "running")
    assert house.end(keeper, number) == (0, "")
    assert house.mail.line() == "asked"
    assert house.everyone() == {}


def test_a_second_signal_waits_for_the_agent_no_longer(house) -> None:
    agent = f"trap 'echo deaf > $MAIL' TERM; echo agent > $MAIL; while :; do {house.sleep} & wait; done"
    keeper = house.start(agent=agent)
    assert house.mail.line() == "agent"
    keeper.terminate()
    assert house.mail.line() == "deaf"
    assert house.end(keeper)[0] == 0
    assert house.everyone() == {}


def test_a_hangup_ends_nothing(house) -> None:
    keeper = house.start()
    keeper.send_signal(signal.SIGHUP)
    run_group(house, "after")
    assert keeper.poll() is None
    assert len(house.processes()) == 1


def test_a_second_keeper_is_refused_by_name_of_the_first(house) -> None:
    first = house.start()
    code, said = house.ended(house.start(argv=["true"]))
    assert code == 3
    assert said.count("\n") == 1
    assert f"process {first.pid} is the keeper of {house.data}" in said
    assert house.record("keeper.json")["pid"] == first.pid


def test_a_keeper_that_cannot_do_what_was_asked_says_so(house, tmp_path: Path) -> None:
    house.containment = "hope"
    code, said = house.ended(house.start(argv=["true"]))
    assert (code, said.count("\n")) == (1, 1)
    assert "containment 'hope' is unknown: use one of cgroup, subreaper, marker" in said
    house.containment = None
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(KeeperError, match=r"cannot start a keeper for .*File exists"):
        start_keeper(blocked, ["true"], env=house.keeper_env)


def test_a_large_log_is_put_aside_before_an_agent_starts(house) -> None:
    log = house.data / "logs" / "agent.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * (LOG_LIMIT_BYTES + 1))
    house.ended(house.start(agent="echo fresh; exit 0"))
    assert log.read_text() == "fresh\n"
    assert log.with_name("agent.log.1").stat().st_size == LOG_LIMIT_BYTES + 1


def test_the_files_and_folders_are_the_users_alone(house) -> None:
    house.start()
    files = [house.data / name for name in ("keeper.lock", "keeper.json", "agent.json", "logs/agent.log")]
    socket_path = Path(house.record("keeper.json")["socket"])
    assert {path.stat().st_mode & 0o777 for path in (*files, socket_path)} == {0o600}
    folders = [house.data, house.data / "groups", house.data / "logs", socket_path.parent]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    assert len(str(socket_path.parent / ("k" * 40))) <= 100


def test_a_removed_socket_comes_back_with_the_next_agent(house) -> None:
    keeper = house.start(agent=f"echo $$ > $MAIL; exec {house.sleep}")
    agent = house.mail.line()
    before = house.record("keeper.json")["socket"]
    Path(before).unlink()
    Path(before).parent.rmdir()
    os.kill(int(agent), signal.SIGKILL)
    assert house.mail.line() != agent
    run_group(house, "after")
    assert "has been removed: listening anew" in house.end(keeper)[1]


def test_a_keeper_is_small(house) -> None:
    """The interpreter alone is the measure: what the keeper adds to it stays below 5 MB."""

    def rss_kb(pid: int) -> int:
        line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1])

    keeper = house.start()
    for number in range(5):
        run_group(house, f"group-{number}")
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bare:
        assert bare.stdout is not None
        bare.stdout.readline()
        assert rss_kb(keeper.pid) < rss_kb(bare.pid) + 5_000
