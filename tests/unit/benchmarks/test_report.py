import io
import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main, names
from benchmarks.report import Report, Row, figure, median, table


def finished(*rows: Row) -> tuple[int, list[str]]:
    report = Report("cell", packages=("msgspec", "no-such-distribution"))
    for row in rows:
        report.add(row)
    out = io.StringIO()
    code = report.finish(out)
    return code, out.getvalue().splitlines()


def test_the_last_line_is_one_json_object_with_everything() -> None:
    rows = [
        Row(name="cell.overhead_ms", value=6.4, unit="ms", min=5.9, max=9.1, note="240 cells", goal="<= 8"),
        Row(name="cell.flood_mb_per_s", value=62.0, unit="MB/s"),
    ]
    code, lines = finished(*rows)
    found = json.loads(lines[-1])
    assert code == 0
    assert found["benchmark"] == "cell"
    assert found["rows"] == [
        {
            "name": "cell.overhead_ms",
            "value": 6.4,
            "unit": "ms",
            "min": 5.9,
            "max": 9.1,
            "note": "240 cells",
            "goal": "<= 8",
        },
        {"name": "cell.flood_mb_per_s", "value": 62.0, "unit": "MB/s"},
    ]
    assert found["versions"]["python"].startswith("3.")
    assert found["versions"]["msgspec"]
    assert found["versions"]["no-such-distribution"] == ""
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["ram_gb"] > 0


@pytest.mark.parametrize(
    ("value", "goal", "missed"),
    [
        (8.0, "<= 8", False),
        (8.01, "<= 8", True),
        (2.0, ">= 2.0", False),
        (1.99, ">= 2.0", True),
        (0.0, "<= 0", False),
        (1e9, "", False),
    ],
)
def test_a_missed_goal_is_the_exit_code_and_named(value: float, goal: str, missed: bool) -> None:
    code, lines = finished(
        Row(name="calls.x", value=value, unit="ms", goal=goal), Row(name="calls.y", value=1, unit="")
    )
    assert code == (1 if missed else 0)
    told = [line for line in lines if line.startswith("missed: ")]
    assert told == ([f"missed: calls.x is {figure(value)} ms, the goal is {goal}"] if missed else [])


def test_a_median_keeps_its_extremes() -> None:
    row = median("calls.p50_ms", [3.0, 1.0, 2.0, 9.0, 2.5], "ms", goal="<= 3")
    assert (row.value, row.min, row.max, row.missed) == (2.5, 1.0, 9.0, False)


def test_what_was_not_measured_is_no_row() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median("calls.p50_ms", [], "ms")
    with pytest.raises(ValueError, match="not measured"):
        Row(name="calls.p50_ms", value=float("nan"), unit="ms")


def test_a_goal_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="'< 8'"):
        Row(name="cell.overhead_ms", value=1.0, unit="ms", goal="< 8")


def test_a_row_is_reported_once() -> None:
    report = Report("cell")
    report.add(Row(name="cell.x", value=1.0, unit="s"))
    with pytest.raises(ValueError, match="twice"):
        report.add(Row(name="cell.x", value=2.0, unit="s"))


def test_the_table_lines_up_and_marks_the_goals() -> None:
    rows = [
        Row(name="a.short", value=12.0, unit="ms", goal="<= 8"),
        Row(name="a.much_longer_name", value=20_000, unit="lines", note="a note"),
        Row(name="a.good", value=0.5, unit="s", min=0.1, max=1.0, goal="<= 1"),
    ]
    head, *lines = table(rows).splitlines()
    assert [line[0] for line in lines] == ["✗", " ", "✓"]
    column = head.index("unit")
    assert [line[column:].split()[0] for line in lines] == ["ms", "lines", "s"]
    assert lines[1].endswith("a note")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.04123, "0.0412"),
        (9.812, "9.81"),
        (43.9, "43.9"),
        (219.2, "219"),
        (20_000.4, "20,000"),
        (0.0, "0"),
        (None, ""),
    ],
)
def test_figures_have_the_places_that_matter(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_benchmarks_are_the_modules_with_a_main(tmp_path: Path) -> None:
    (tmp_path / "fleet.py").write_text('"""Many jobs.\n\nMore."""\n\ndef main(argv):\n    return 0\n')
    (tmp_path / "helper.py").write_text('"""No benchmark."""\n')
    (tmp_path / "__main__.py").write_text("def main(argv):\n    return 0\n")
    (tmp_path / "broken.py").write_text("def main(:\n")
    found = names(tmp_path)
    assert set(found) == {"fleet", "broken"}
    assert found["fleet"] == "Many jobs."
    assert "can't be read" in found["broken"]


@pytest.mark.parametrize("argv", [[], ["nope"], ["report"]])
def test_a_wrong_name_lists_the_names(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert "  cell " in said
    assert "local kernel" in said
