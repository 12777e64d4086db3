"""Ignore rules: git's meaning, checked against git itself where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulayer.source import scan
from gpulayer.source.ignore import Exclusion, Includes, Layer, compile_lines, compile_rules


def ignored(pattern: str, path: str, *, is_dir: bool = False) -> bool:
    rule = compile_lines((pattern,)).match(path, path.rpartition("/")[2], is_dir)
    return rule is not None and not rule.negated


@pytest.mark.parametrize(
    ("pattern", "path", "is_dir", "expected"),
    [
        ("utils.py", "utils.py", False, True),
        ("utils.py", "deep/down/utils.py", False, True),
        ("/utils.py", "deep/utils.py", False, False),
        ("/utils.py", "utils.py", False, True),
        ("data/", "data", True, True),
        ("data/", "data", False, False),
        ("data/", "a/data", True, True),
        ("a/data", "a/data", False, True),
        ("a/data", "b/a/data", False, False),
        ("*.bin", "x.bin", False, True),
        ("*.bin", "a/x.bin", True, True),
        ("*.bin", "x.binary", False, False),
        ("a/*", "a/b", False, True),
        ("a/*", "a/b/c", False, False),  # a/b is ignored, so git does not come to a/b/c
        ("a/**", "a", True, False),
        ("a/**", "a/b/c", False, True),
        ("**/x", "x", False, True),
        ("**/x", "a/b/x", False, True),
        ("a/**/x", "a/x", False, True),
        ("a/**/x", "a/b/c/x", False, True),
        ("*", "anything", False, True),
        ("*/", "anything", True, True),
        ("*/", "anything", False, False),
        ("file[0-9].txt", "file7.txt", False, True),
        ("file[!0-9].txt", "file7.txt", False, False),
        ("file[[:digit:]].txt", "file7.txt", False, True),
        ("[[]x", "[x", False, True),
        ("\\#not-a-comment", "#not-a-comment", False, True),
        ("# a comment", "# a comment", False, False),
        ("\\!important", "!important", False, True),
        ("trailing   ", "trailing", False, True),
        ("kept\\ ", "kept ", False, True),
        ("with space", "with space", False, True),
        ("x", "x\n", False, False),
        ("x?", "x\n", False, True),
        ("-dash", "-dash", False, True),
        ("ü*", "über", False, True),
        ("[broken", "[broken", False, False),
        ("broken\\", "broken\\", False, False),
        ("[z-a]", "m", False, False),
        ("", "", False, False),
        ("/", "a", True, False),
    ],
)
def test_one_pattern(pattern: str, path: str, is_dir: bool, expected: bool) -> None:
    assert ignored(pattern, path, is_dir=is_dir) is expected


def test_the_last_matching_line_decides_and_is_named() -> None:
    rules = compile_rules(b"*.log\n\n!keep.log\nkeep*\n!keep.log\r\n")
    rule = rules.match("a/keep.log", "keep.log", False)
    assert rule is not None
    assert (rule.text, rule.line, rule.negated) == ("!keep.log", 5, True)
    rule = rules.match("x.log", "x.log", False)
    assert rule is not None
    assert (rule.text, rule.line, rule.negated) == ("*.log", 1, False)
    assert rules.match("x.txt", "x.txt", False) is None


def test_a_byte_order_mark_is_no_part_of_the_first_pattern() -> None:
    assert compile_rules(b"\xef\xbb\xbfdata\n").match("data", "data", False)


def test_patterns_that_are_not_utf8_match_such_names() -> None:
    name = os.fsdecode(b"caf\xe9")
    assert compile_rules(b"caf\xe9\n").match(name, name, False)


def test_equal_content_is_compiled_once() -> None:
    assert compile_rules(b"only-once\n") is compile_rules(b"only-once\n")
    assert Layer.of_file(b"a\n", ".gitignore", "", 0) is Layer.of_file(b"a\n", ".gitignore", "", 0)


def test_an_exclusion_reads_as_a_sentence() -> None:
    exclusion = Exclusion(path="utils.py", rule="utils*", file=".gitignore", line=3)
    assert str(exclusion) == "utils.py was left out by .gitignore line 3 (utils*)"
    assert str(Exclusion(path=".git", rule=".git", file="default")) == ".git was left out by default rule (.git)"


def test_includes_say_what_they_open_and_name() -> None:
    include = Includes(["build/model.bin", "data/*/x", "**/anywhere", "*.env", "runs/**/best.pt", "/top"])
    assert include.lead_into("build")
    assert not include.lead_into("build/model.bin")
    assert include.lead_into("data/any")
    assert include.lead_into("runs/deep/down")
    assert not include.lead_into("top")
    assert not include.lead_into("node_modules")
    assert include.names("secret.env", "secret.env", False)
    assert not Includes(["*", "**/*"]).names(".env", ".env", False)
    assert not Includes(["*.env", "!x.env"]).names("x.env", "x.env", False)


# --- against git ---------------------------------------------------------------------------------------------------

git = shutil.which("git")
parts = st.sampled_from(["a", "b", "ab", "*", "**", "a*", "*b", "?", "[ab]", "[!a]", "a.x", "*.x", "b c"])
patterns = st.builds(
    lambda bang, slash, segments, end: bang + slash + "/".join(segments) + end,
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "", "/"]),
    st.lists(parts, min_size=1, max_size=3),
    st.sampled_from(["", "", "/", " ", "/**"]),
)
files = st.sets(
    st.lists(st.sampled_from(["a", "b", "ab", "a.x", "b.x", "b c", "c"]), min_size=1, max_size=4).map("/".join),
    max_size=14,
)
ignore_files = st.dictionaries(st.sampled_from(["", "a/", "b/", "a/b/"]), st.lists(patterns, max_size=5), max_size=3)


@pytest.fixture(scope="module")
def repository() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    run_git(folder, "init", "-q")
    yield folder
    shutil.rmtree(folder)


def run_git(folder: Path, *arguments: str, may_fail: bool = False) -> bytes:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    done = subprocess.run([str(git), *arguments], cwd=folder, env=environment, check=not may_fail, capture_output=True)
    return done.stdout


def write_tree(folder: Path, paths: set[str], rules: dict[str, list[str]]) -> None:
    for path in sorted(folder.iterdir()):
        if path.name != ".git":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    folders = {"/".join(path.split("/")[:count]) for path in paths for count in range(1, path.count("/") + 1)}
    for path in sorted(paths - folders):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.encode())
    for prefix, lines in rules.items():
        if not prefix or (folder / prefix).is_dir():
            (folder / prefix / ".gitignore").write_text("\n".join(lines))


@pytest.mark.skipif(git is None, reason="git is not installed")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(paths=files, rules=ignore_files)
def test_what_travels_is_what_git_would_add(repository: Path, paths: set[str], rules: dict[str, list[str]]) -> None:
    write_tree(repository, paths, rules)
    listed = run_git(repository, "ls-files", "-z", "--others", "--exclude-standard").decode().split("\0")
    travelling = {entry.path for entry in scan(repository).manifest.files if entry.kind == "file"}
    assert travelling == set(filter(None, listed))


@pytest.mark.skipif(git is None, reason="git is not installed")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(paths=files, rules=ignore_files)
def test_a_folder_inside_a_repository_obeys_the_rules_above_it(
    repository: Path, paths: set[str], rules: dict[str, list[str]]
) -> None:
    write_tree(repository, paths | {"a/b/a", "a/b/c"}, rules)
    root = repository / "a"
    if (root / "b").is_file() or root.is_file():
        return
    ignored_itself = run_git(repository, "check-ignore", "a", may_fail=True) != b""
    listed = run_git(repository, "ls-files", "-z", "--others", "--exclude-standard", "a").decode().split("\0")
    travelling = {"a/" + entry.path for entry in scan(root).manifest.files if entry.kind == "file"}
    if ignored_itself:
        assert travelling.issuperset(filter(None, listed))
    else:
        assert travelling == set(filter(None, listed))
