"""What `nvidia-smi topo -m` prints, read: the links between devices, and where each one sits.

It is the fallback for links that NVML does not tell, and it was made for people: tabs or spaces, escapes that underline
the header, columns that come and go with the driver, lines that a terminal wrapped or a log cut. So nothing here
raises: what can't be read for sure is unknown. The matrix tells each link twice, which mends most of what was lost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpulayer.protocol.types import Link

#: Escapes that underline or colour, also as a copy shows them that lost the first byte, or has it as a caret.
_ESCAPE = re.compile(r"(?:\x1b|\^\[|\u241b)?\[[0-9;]{0,16}[mK]")
_GPU = re.compile(r"GPU([0-9]{1,4})")
#: A column of the matrix: GPU0, NIC3, and cards by their own names, such as mlx5_0 or rocep1s0f0.
_COLUMN = re.compile(r"[A-Za-z][\w.-]*[0-9][\w.-]*")
_NVLINK = re.compile(r"NV([0-9]{1,3})")
_CUT = re.compile(r"NV[0-9]*\Z")  # the last word of a text that ends in the middle: NV1 of NV18
_CPUS = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*")
_NODE = re.compile(r"[0-9]{1,4}")
#: Words for ways over PCIe, with what older drivers said: SOC is a socket's interconnect, PSB a switch on the board.
_KINDS = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "NODE", "SYS": "SYS", "SOC": "SYS", "PSB": "PIX"}
#: A row's cells: a link, the device itself, or a word for none.
_CELL = re.compile(r"X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|PSB|N/A|DIS|ERR|UNK|OK|-")
#: Where the matrix ends and the columns about CPUs begin: 'CPU Affinity', 'NUMA Affinity', 'GPU NUMA ID'.
_TAIL = re.compile(r"CPU|NUMA|GPU|Affinity")
_TAIL_NAMES = re.compile(r"CPU\s+Affinity|NUMA\s+Affinity|GPU\s+NUMA\s+ID")
_MOST_CPUS = 1 << 14
_MOST_LINKS = 64  # bonded NVLinks of a pair: more is a misprint


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a device sits in its machine."""

    numa: int | None = None  # the node next to it; None: unknown
    cpus: tuple[int, ...] = ()  # the cores next to it, ascending; none: unknown


@dataclass(frozen=True, kw_only=True)
class Topology:
    """What could be read."""

    links: tuple[Link, ...] = ()  # in order of their UUIDs; none between two devices: unknown
    seats: dict[str, Seat] = field(default_factory=dict[str, Seat])  # by UUID; only what is known


@dataclass(kw_only=True)
class _Row:
    """A line of the matrix: its cells, without its name."""

    cells: list[str]
    tabbed: bool  # empty cells are in their place
    wrapped: bool = False  # by words, on the way: what stands right of the matrix is not to be trusted


@dataclass(kw_only=True)
class _Table:
    """The matrix, cell by cell, and the words over what stands right of it."""

    columns: list[str]
    tail: list[str]
    rows: dict[str, _Row] = field(default_factory=dict[str, _Row])

    @property
    def tail_names(self) -> list[str]:
        """The names of the columns right of the matrix."""
        return [" ".join(name.split()) for name in _TAIL_NAMES.findall(" ".join(self.tail))]


def parse(text: str, uuids: Sequence[str]) -> Topology:
    """Links and seats out of an answer; never raises, whatever the text is.

    `uuids`: those of the devices by the index that the answer counts by (bus order); '' for one that is none of ours.
    """
    table = _table(_unwrapped(_CUT.sub("", _ESCAPE.sub("", text)).splitlines()))
    if table is None:
        return Topology()
    indices = {name: int(found[1]) for name in table.columns if (found := _GPU.fullmatch(name))}
    known = {name: uuids[index] for name, index in indices.items() if index < len(uuids) and uuids[index]}
    return Topology(links=_links(table, known), seats=_seats(table, known))


def _unwrapped(lines: Sequence[str]) -> list[str]:
    """The lines without the breaks of a terminal that is narrower than they are: it fills a line, cutting words."""
    width = max(map(len, lines), default=0)
    whole: list[str] = []
    filled = False
    for line in lines:
        if filled and line.strip() and not _starts(line):
            whole[-1] += line
        else:
            whole.append(line)
        filled = len(line) == width
    return whole


def _starts(line: str) -> bool:
    """Whether a line can't be the rest of the one above: a row, a header, a legend."""
    words = line.split()
    return _named(words) or bool(_GPU.fullmatch(words[0])) or words[0] in ("Legend:", "NIC")


def _named(words: Sequence[str]) -> bool:
    """Whether these are the words of a row."""
    return len(words) > 1 and bool(_COLUMN.fullmatch(words[0]) and _CELL.fullmatch(words[1])) and not _is_cell(words[0])


def _is_cell(word: str) -> bool:
    return _CELL.fullmatch(word) is not None


def _table(lines: Sequence[str]) -> _Table | None:
    """The first matrix in the text that has rows."""
    at = 0
    while at < len(lines):
        table = _header(lines[at].split())
        at += 1
        if table is None:
            continue
        at = _read(table, lines, at)
        if table.rows:
            return table
    return None


def _header(words: list[str]) -> _Table | None:
    """A table of these columns; None where the words are no header's."""
    if not words or not _GPU.fullmatch(words[0]) or _named(words):
        return None
    columns, tail = _split(words)
    if len(columns) > 1 and not tail and (columns[-1] in columns[:-1] or not _COLUMN.fullmatch(columns[-1])):
        columns.pop()  # cut: GPU1 of GPU12
    return _Table(columns=columns, tail=tail) if _distinct(columns) else None


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The columns of the matrix, and the words right of them."""
    end = next((at for at, word in enumerate(words) if _TAIL.fullmatch(word)), len(words))
    return words[:end], words[end:]


def _distinct(columns: list[str]) -> bool:
    return all(_COLUMN.fullmatch(word) for word in columns) and len(set(columns)) == len(columns)


def _read(table: _Table, lines: Sequence[str], at: int) -> int:
    """Take the rows below a header, and the rest of the header where it was wrapped. Returns the line after them."""
    row: _Row | None = None
    while at < len(lines) and not lines[at].lstrip().startswith(("Legend", "NIC Legend")):
        words = lines[at].split()
        if _named(words):
            if words[0] in table.rows:  # another matrix begins
                break
            row = table.rows[words[0]] = _row(lines[at], words, table)
        elif not words:
            row = None
        elif row is not None:
            _continue(row, words)
        elif not table.rows:
            _continue_header(table, words)
        at += 1
    return at


def _continue_header(table: _Table, words: list[str]) -> None:
    """Take what stands on the line below the header's first, where it is more of it."""
    columns, tail = _split(words)
    if columns and (table.tail or not _distinct(table.columns + columns)):
        return
    table.columns += columns
    table.tail += tail


def _row(line: str, words: list[str], table: _Table) -> _Row:
    cells = [cell.strip() for cell in line.lstrip().split("\t")][1:]
    tabbed = "\t" in line.strip() and not any(" " in cell for cell in cells[: len(table.columns)])
    return _Row(cells=cells if tabbed else words[1:], tabbed=tabbed)


def _continue(row: _Row, words: list[str]) -> None:
    """Take the words below a row as more of it, unless the break may have cut a word of the matrix."""
    row.wrapped = True
    if words and row.cells and _is_cell(row.cells[-1]) and _is_cell(words[0]):
        row.cells += words


def _links(table: _Table, known: dict[str, str]) -> tuple[Link, ...]:
    """The links of which one side tells, or both in the same words."""
    told: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for name, row in table.rows.items():
        cells = _matrix(name, row, table) if name in known else []
        for column, cell in zip(table.columns, cells, strict=False):
            a, b, link = known[name], known.get(column, ""), _link(cell)
            if link is not None and b and a != b:
                told.setdefault((min(a, b), max(a, b)), set()).add(link)
    found = sorted((pair, *words) for pair, words in told.items() if len(words) == 1)
    return tuple(Link(a=a, b=b, kind=kind, count=count) for (a, b), (kind, count) in found)


def _matrix(name: str, row: _Row, table: _Table) -> list[str]:
    """A row's cells of the matrix: none where its own X is not in its place, and something is missing before it."""
    whole, end = _whole(row, table), len(table.columns)
    cells, own = whole[:end], table.columns.index(name)
    selves = [at for at, cell in enumerate(cells) if cell == "X"]
    return cells if selves == [own] or (not selves and len(cells) <= own) else []


def _whole(row: _Row, table: _Table) -> list[str]:
    """The cells that are surely whole: where a row ends early, its last one may be cut, NV18 to NV1."""
    expected = len(table.columns) + len(table.tail_names)
    return row.cells[:-1] if len(row.cells) < expected else row.cells


def _link(cell: str) -> tuple[str, int] | None:
    bonded = _NVLINK.fullmatch(cell)
    if bonded is not None:
        return ("NV", int(bonded[1])) if 1 <= int(bonded[1]) <= _MOST_LINKS else None
    return (_KINDS[cell], 1) if cell in _KINDS else None


def _seats(table: _Table, known: dict[str, str]) -> dict[str, Seat]:
    """Nodes and cores, of rows that are whole."""
    seats: dict[str, Seat] = {}
    names, end = table.tail_names, len(table.columns)
    for name, uuid in known.items():
        row = table.rows.get(name)
        if row is None or row.wrapped or len(_matrix(name, row, table)) < end:
            continue
        right = _whole(row, table)[end:]
        if len(right) < len(names) and not row.tabbed:
            continue  # an empty one can't be seen among spaces
        of = dict(zip(names, right, strict=False))
        node = of.get("NUMA Affinity", "")
        seat = Seat(numa=int(node) if _NODE.fullmatch(node) else None, cpus=_cpus(of.get("CPU Affinity", "")))
        if seat != Seat():
            seats[uuid] = seat
    return seats


def _cpus(words: str) -> tuple[int, ...]:
    """The cores of a list such as '0-19,40-59'; none for anything else."""
    if not _CPUS.fullmatch(words):
        return ()
    found: set[int] = set()
    for part in words.split(","):
        first, _, last = part.partition("-")
        if int(last or first) >= _MOST_CPUS:
            return ()
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))
