"""Which processes belong to a group, by descent, session and marker."""

from __future__ import annotations

from pathlib import Path

from gpulayer_worker.keeper.context import Context
from gpulayer_worker.keeper.eventloop import Loop
from gpulayer_worker.keeper.group import Group
from gpulayer_worker.keeper.members import Members
from gpulayer_worker.keeper.procs import Process
from gpulayer_worker.keeper.records import Folder, exit_record

KEEPER = 10
AGENT = 11


class Machine:
    """A made-up table of processes, and groups on it."""

    def __init__(self, folder: Path, kind: str = "subreaper") -> None:
        self._loop = Loop()
        self._context = Context(loop=self._loop, folder=Folder(str(folder)), portable=False)
        self._loop.close()
        self._context.keeper_pid = KEEPER
        self._context.agent_pid = AGENT
        self._context.table = self  # type: ignore[assignment]
        self._processes: dict[int, Process] = {}
        self._environs: dict[int, list[bytes]] = {}
        self.groups: dict[str, Group] = {}
        self.mains: dict[int, Group] = {}
        self.tells_children = True
        self.members = Members(self._context, kind, self.groups, self.mains)
        self.process(KEEPER, 1, start=1)
        self.process(AGENT, KEEPER, start=2, group="@agent")

    def process(
        self,
        pid: int,
        ppid: int,
        *,
        start: int = 100,
        session: int = 0,
        group: str | None = None,
        key: str | None = None,
    ) -> None:
        self._processes[pid] = Process(pid=pid, ppid=ppid, session=session or pid, start_time=start, dead=False)
        marks = [f"GPULAYER_GROUP={group}", f"GPULAYER_KEEPER={key or self._context.key}"] if group else []
        self._environs[pid] = [b"PATH=/bin", *(mark.encode() for mark in marks)]

    def end(self, pid: int, *, heir: int = KEEPER) -> None:
        """A process ends; its children fall to the subreaper."""
        del self._processes[pid]
        for process in self._processes.values():
            process.ppid = heir if process.ppid == pid else process.ppid

    def group(self, id: str, pid: int, *, start: int = 100, cgroup: str | None = None) -> Group:
        self.process(pid, KEEPER, start=start, group=id)
        self.groups[id] = Group(
            id=id,
            pid=pid,
            start_time=start,
            boot_id=self._context.boot_id,
            cgroup=cgroup,
            exit_path="/exit",
            started_at=0.0,
        )
        return self.groups[id]

    def end_main(self, group: Group) -> None:
        self.end(group.pid)
        group.record = exit_record(pid=group.pid, start_time=0, boot_id="", started_at=0, ended_at=0, code=0)

    def of(self, group: Group, *, ending: bool = False) -> set[int]:
        return {process.pid for process in self.members.of(group, self.members.snapshot(), ending=ending)}

    def one(self, pid: int) -> Process | None:
        return self._processes.get(pid)

    def all(self) -> list[Process]:
        return list(self._processes.values())

    def environs(self) -> dict[int, list[bytes]]:
        return self._environs

    def children(self, pid: int) -> list[int] | None:
        return [each.pid for each in self._processes.values() if each.ppid == pid] if self.tells_children else None


def test_nothing_is_left_where_all_our_children_are_known(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    group = machine.group("a", 20)
    machine.mains[20] = group
    machine.process(21, 20)  # of one that goes on: no orphan
    assert machine.members.none_left()
    machine.process(30, KEEPER)
    assert not machine.members.none_left()
    machine.end(30)
    assert machine.members.none_left()
    machine.end_main(group)
    del machine.mains[20]
    assert not machine.members.none_left()  # 21 came to us
    machine.end(21)
    machine.tells_children = False
    assert not machine.members.none_left()


def test_who_is_no_subreaper_has_to_look_at_all(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "marker")
    assert not machine.members.none_left()


def test_a_start_time_that_was_a_bound_is_read_while_the_process_is_there(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    group = machine.group("a", 20, start=105)
    group.start_time, group.identified = 104, False
    machine.process(21, 20, session=20)
    assert machine.of(group) == {20, 21}
    assert (group.start_time, group.identified) == (105, True)


def test_what_descends_from_the_main_process_belongs_to_the_group(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    group = machine.group("a", 20)
    machine.process(21, 20)
    machine.process(22, 21)
    machine.process(30, 1)
    assert machine.of(group) == {20, 21, 22}


def test_its_session_belongs_to_it_when_the_parents_are_gone(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    group = machine.group("a", 20)
    machine.process(21, 20, session=20)
    machine.end_main(group)
    assert machine.of(group) == {21}


def test_an_orphan_belongs_to_the_group_that_its_marker_names(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    group, other = machine.group("a", 20), machine.group("b", 30)
    machine.process(21, KEEPER, group="a")
    machine.process(22, 21)
    assert machine.of(group) == {20, 21, 22}
    assert machine.of(other, ending=True) == {30}


def test_another_keepers_group_of_the_same_name_is_not_ours(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "marker")
    group = machine.group("a", 20)
    machine.process(40, 1, group="a", key="another")
    machine.process(41, 1, group="a")
    machine.process(42, 1, group="a", start=50)  # older than the group: not even this keeper's
    assert machine.of(group, ending=True) == {20, 41}


def test_a_subreaper_looks_for_markers_among_its_own_children_only(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    group = machine.group("a", 20)
    machine.process(41, 1, group="a")
    assert machine.of(group) == {20}
    group.adopted = True  # its orphans went elsewhere
    assert machine.of(group) == {20, 41}


def test_what_belonged_to_it_once_stays_when_its_parent_is_gone(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "marker")
    group = machine.group("a", 20)
    machine.process(21, 20)  # no marker, another session
    assert machine.of(group) == {20, 21}
    machine.end(20, heir=1)
    assert machine.of(group) == {21}
    machine.end(21)
    machine.process(21, 1, start=999)  # the pid is another's now
    assert machine.of(group) == set()


def test_a_pid_that_came_round_again_is_not_the_main_process(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    group = machine.group("a", 20)
    group.adopted = True
    machine.end(20)
    machine.process(20, 1, start=999)
    machine.process(21, 20, session=20, start=1000)
    assert machine.of(group) == set()


def test_a_group_that_vanished_unseen_is_known_by_marker_only(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    group = machine.group("a", 20)
    group.adopted = group.vanished = True
    machine.end(20)
    machine.process(21, 1, session=20)
    machine.process(22, 1, group="a")
    assert machine.of(group) == {22}


def test_an_orphan_without_marker_goes_with_the_only_group_that_can_own_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    group = machine.group("a", 20)
    machine.process(21, KEEPER, start=150)
    machine.process(22, 21, start=160)
    assert machine.of(group) == {20}
    assert machine.of(group, ending=True) == {20, 21, 22}


def test_an_orphan_that_several_may_own_goes_with_the_last_of_them(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    first, second = machine.group("a", 20, start=100), machine.group("b", 30, start=120)
    younger = machine.group("c", 40, start=200)
    machine.process(21, KEEPER, start=150)
    machine.end_main(first)
    assert machine.of(first, ending=True) == set()
    first.state = "gone"
    assert machine.of(younger, ending=True) == {40}  # it started after the orphan
    assert machine.of(second, ending=True) == {30, 21}


def test_groups_with_a_cgroup_and_adopted_ones_own_no_orphans_of_ours(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    group = machine.group("a", 20)
    machine.group("b", 30, cgroup="/cgroup/b")
    machine.group("c", 40).adopted = True
    machine.process(21, KEEPER, start=150)
    assert machine.of(group, ending=True) == {20, 21}


def test_the_agent_and_what_starts_just_now_are_nobodys_orphans(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    group = machine.group("a", 20)
    machine.process(AGENT, KEEPER, start=150)  # forked, and still with the keeper's own environment
    machine.group("b", 30, start=160)
    machine.process(30, KEEPER, start=160)
    machine.process(12, KEEPER, start=170, group="@agent")
    assert machine.of(group, ending=True) == {20}


def test_what_a_gone_group_left_by_a_race_goes_with_the_next(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    gone, group = machine.group("a", 20), machine.group("b", 30)
    machine.end_main(gone)
    gone.state = "gone"
    machine.process(21, KEEPER, start=150, group="a")
    assert machine.of(group, ending=True) == {30, 21}


def test_a_cgroup_says_itself_what_is_in_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "cgroup.procs").write_text("21\n22\n")
    group = machine.group("a", 20, cgroup=str(tmp_path))
    machine.process(21, 20)
    machine.process(23, 20)
    assert machine.of(group) == {20, 21}  # the main process counts wherever it is; 22 ended meanwhile
