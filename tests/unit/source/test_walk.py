"""Which files travel: ignore files, defaults, includes, symlinks, special files."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from gpulayer.source import Bundle, Exclusion, SourceError, SymlinkRefused, scan


def write(root: Path, *paths: str, content: bytes = b"x") -> None:
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def rules(root: Path, path: str, *lines: str) -> None:
    write(root, path, content="\n".join(lines).encode())


def travelling(bundle: Bundle) -> set[str]:
    return {entry.path for entry in bundle.manifest.files if entry.kind == "file"}


def folders(bundle: Bundle) -> set[str]:
    return {entry.path for entry in bundle.manifest.files if entry.kind == "dir"}


def left_out(bundle: Bundle) -> dict[str, tuple[str, str, int | None]]:
    return {record.path: (record.rule, record.file, record.line) for record in bundle.exclusions}


def test_nested_ignore_files_with_negation(tmp_path: Path) -> None:
    rules(tmp_path, ".gitignore", "# logs", "*.log", "/secretive/", "build/")
    rules(tmp_path, "sub/.gitignore", "!keep.log", "*.tmp")
    write(
        tmp_path,
        "a.log",
        "a.py",
        "sub/keep.log",
        "sub/other.log",
        "sub/x.tmp",
        "x.tmp",
        "secretive/x",
        "sub/secretive/y",
    )
    write(tmp_path, "build/deep/x", "sub/build/y")
    bundle = scan(tmp_path)
    assert travelling(bundle) == {
        ".gitignore",
        "a.py",
        "sub/.gitignore",
        "sub/keep.log",
        "sub/secretive/y",
        "x.tmp",
    }
    assert left_out(bundle) == {
        "a.log": ("*.log", ".gitignore", 2),
        "sub/other.log": ("*.log", ".gitignore", 2),
        "sub/x.tmp": ("*.tmp", "sub/.gitignore", 2),
        "secretive": ("/secretive/", ".gitignore", 3),
        "build": ("build/", ".gitignore", 4),
        "sub/build": ("build/", ".gitignore", 4),
    }


def test_gpulayerignore_decides_over_gitignore_of_the_same_folder(tmp_path: Path) -> None:
    rules(tmp_path, ".gitignore", "model.bin")
    rules(tmp_path, ".gpulayerignore", "!model.bin", "notes.txt")
    write(tmp_path, "model.bin", "notes.txt", "a.py")
    bundle = scan(tmp_path)
    assert {"model.bin", "a.py"} < travelling(bundle)
    assert left_out(bundle) == {"notes.txt": ("notes.txt", ".gpulayerignore", 2)}


def test_defaults_are_left_out_once_and_not_entered(tmp_path: Path) -> None:
    write(
        tmp_path, ".git/objects/aa/bb", ".venv/lib/x.py", "__pycache__/a.pyc", "node_modules/m/i.js", "checkpoints/1.pt"
    )
    write(tmp_path, "wandb/run", "mlruns/0/meta", "lightning_logs/v0/x", "b.pyc", "a.ipynb", ".DS_Store", "a.py")
    write(tmp_path, "deep/__pycache__/a.pyc", "deep/b.py")
    bundle = scan(tmp_path)
    assert travelling(bundle) == {"a.py", "deep/b.py"}
    records = left_out(bundle)
    assert records[".git"] == (".git", "default", None)
    assert records["deep/__pycache__"] == ("__pycache__/", "default", None)
    assert records["a.ipynb"] == ("*.ipynb", "default", None)
    assert not any("/" in path for path in records if path != "deep/__pycache__")


def test_notebooks_travel_where_they_are_wanted(tmp_path: Path) -> None:
    write(tmp_path, "a.ipynb", ".ipynb_checkpoints/a.ipynb")
    assert travelling(scan(tmp_path, notebooks=True)) == {"a.ipynb"}
    assert travelling(scan(tmp_path, include=["*.ipynb"])) == {"a.ipynb"}
    assert travelling(scan(tmp_path)) == set()


@pytest.mark.parametrize("mark", ["pyvenv.cfg", "conda-meta/history"])
def test_an_environment_of_any_name_is_left_out(tmp_path: Path, mark: str) -> None:
    write(tmp_path, f"tools/my-python/{mark}", "tools/my-python/lib/x.py", "tools/a.py")
    bundle = scan(tmp_path)
    assert travelling(bundle) == {"tools/a.py"}
    (record,) = bundle.exclusions
    assert record.path == "tools/my-python"
    assert "environment" in record.rule
    assert "tools/my-python/lib/x.py" in travelling(scan(tmp_path, include=["tools/my-python"]))


def test_a_source_folder_that_is_an_environment_itself_travels(tmp_path: Path) -> None:
    write(tmp_path, "pyvenv.cfg", "a.py")
    assert travelling(scan(tmp_path)) == {"a.py", "pyvenv.cfg"}


def test_a_package_called_env_is_code(tmp_path: Path) -> None:
    write(tmp_path, "env/__init__.py", "env/cartpole.py", "venv/lib/x.py")
    bundle = scan(tmp_path)
    assert travelling(bundle) == {"env/__init__.py", "env/cartpole.py"}
    assert left_out(bundle) == {"venv": ("venv/", "default", None)}


def test_an_ignore_file_brings_a_default_back_only_by_name(tmp_path: Path) -> None:
    rules(tmp_path, ".gitignore", "*", "!*/", "!*.py", "!checkpoints/", "!*.pt", "!.git*")
    write(tmp_path, "a.py", "checkpoints/best.pt", ".venv/lib/x.py", ".git/hook.py", "sub/b.py", "sub/b.txt")
    assert travelling(scan(tmp_path)) == {".gitignore", "a.py", "checkpoints/best.pt", "sub/b.py"}


def test_include_overrides_ignore_files_and_defaults(tmp_path: Path) -> None:
    rules(tmp_path, ".gitignore", "utils.py", "/build/")
    write(tmp_path, "utils.py", "sub/utils.py", "build/a.bin", "build/b.bin", "build/deep/c.bin", "checkpoints/1.pt")
    assert travelling(scan(tmp_path, include=["/utils.py"])) == {".gitignore", "utils.py"}
    assert travelling(scan(tmp_path, include=["utils.py"])) == {".gitignore", "utils.py", "sub/utils.py"}
    opened = scan(tmp_path, include=["build/a.bin", "build/deep/*.bin"])
    assert travelling(opened) == {".gitignore", "build/a.bin", "build/deep/c.bin"}
    assert left_out(opened)["build"] == ("/build/", ".gitignore", 2)
    named = scan(tmp_path, include=["build", "checkpoints/"])
    assert travelling(named) >= {"build/a.bin", "build/b.bin", "build/deep/c.bin", "checkpoints/1.pt"}


def test_a_named_folder_comes_whole_but_for_the_defaults(tmp_path: Path) -> None:
    rules(tmp_path, ".gitignore", "data/*")
    rules(tmp_path, "data/.gitignore", "*")
    write(tmp_path, "data/a.csv", "data/deep/b.csv", "data/__pycache__/x.pyc", "data/wandb/y")
    bundle = scan(tmp_path, include=["data"])
    assert travelling(bundle) == {".gitignore", "data/.gitignore", "data/a.csv", "data/deep/b.csv"}
    assert set(left_out(bundle)) == {"data/__pycache__", "data/wandb"}


def test_an_include_without_a_slash_opens_no_ignored_folder(tmp_path: Path) -> None:
    write(tmp_path, ".venv/lib/a.so", "a.so")
    rules(tmp_path, ".gitignore", "*.so")
    assert travelling(scan(tmp_path, include=["*.so"])) == {".gitignore", "a.so"}
    assert travelling(scan(tmp_path, include=["**/*.so"])) == {".gitignore", "a.so"}


def test_exclude_has_the_last_word(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "data/x.csv", "data/y.csv", "big.bin")
    bundle = scan(tmp_path, include=["data", "big.bin"], exclude=["data/x.csv", "*.bin", "nothing"])
    assert travelling(bundle) == {"a.py", "data/y.csv"}
    assert left_out(bundle) == {
        "data/x.csv": ("data/x.csv", "--exclude", None),
        "big.bin": ("*.bin", "--exclude", None),
    }


def test_why_left_out_looks_at_the_folders_above(tmp_path: Path) -> None:
    rules(tmp_path, ".gitignore", "", "", "utils/")
    write(tmp_path, "utils/deep/a.py", "a.py")
    bundle = scan(tmp_path)
    expected = Exclusion(path="utils", rule="utils/", file=".gitignore", line=3)
    assert bundle.why_left_out("utils/deep/a.py") == bundle.why_left_out("utils") == expected
    assert bundle.why_left_out("a.py") is None
    assert bundle.why_left_out("never/there.py") is None


def test_rules_of_the_repository_above_hold(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    rules(tmp_path, ".gitignore", "*.ckpt", "/project/data/")
    rules(tmp_path, "project/.gitignore", "!good.ckpt")
    write(tmp_path, "project/nb/a.ckpt", "project/nb/good.ckpt", "project/nb/a.py", "project/data/x")
    bundle = scan(tmp_path / "project" / "nb")
    assert travelling(bundle) == {"a.py", "good.ckpt"}
    assert left_out(bundle) == {"a.ckpt": ("*.ckpt", "../../.gitignore", 1)}


def test_rules_above_do_not_hold_outside_of_git_or_when_they_ignore_the_source_folder_itself(tmp_path: Path) -> None:
    rules(tmp_path, ".gitignore", "*")
    write(tmp_path, "nb/a.py")
    assert travelling(scan(tmp_path / "nb")) == {"a.py"}
    (tmp_path / ".git").mkdir()
    assert travelling(scan(tmp_path / "nb")) == {"a.py"}


def test_odd_names_travel(tmp_path: Path) -> None:
    names = {
        "with space",
        "new\nline",
        "-dash",
        "ünïcödé",
        "tab\t",
        "'quote\"",
        "*",
        "[a]",
        "#hash",
        "!bang",
        "~",
        ".x",
    }
    names.add(os.fsdecode(b"not-utf8-\xff"))
    write(tmp_path, *names, *(f"{name}/{name}" for name in ("f older", "-d")))
    assert travelling(scan(tmp_path)) == names | {"f older/f older", "-d/-d"}


def test_a_backslash_in_a_name_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a\\b", "c\\d/e", "f")
    bundle = scan(tmp_path)
    assert travelling(bundle) == {"f"}
    assert {path: record[0] for path, record in left_out(bundle).items()} == {
        "a\\b": "a backslash in the name",
        "c\\d": "a backslash in the name",
    }


def test_empty_folders_travel_also_when_only_their_content_is_left_out(tmp_path: Path) -> None:
    rules(tmp_path, ".gitignore", "*.log", "/gone/")
    (tmp_path / "outputs" / "deep").mkdir(parents=True)
    (tmp_path / "gone").mkdir()
    write(tmp_path, "logs/a.log", "code/a.py")
    bundle = scan(tmp_path)
    assert folders(bundle) == {"outputs/deep", "logs"}
    assert all(entry.mode == 0o755 for entry in bundle.manifest.files if entry.kind == "dir")


def test_sockets_and_fifos_are_left_out() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/s")
        os.mkfifo(f"{folder}/fifo")
        write(Path(folder), "a.py")
        bundle = scan(folder)
    assert travelling(bundle) == {"a.py"}
    reason = ("no regular file (socket, fifo or device)", "scan", None)
    assert left_out(bundle) == {"fifo": reason, "s": reason}


# --- symlinks --------------------------------------------------------------------------------------------------------


def test_symlinks_inside_are_carried_as_what_they_point_at(tmp_path: Path) -> None:
    write(tmp_path, "real/a.py", "real/deep/b.py", content=b"content")
    (tmp_path / "link.py").symlink_to("real/a.py")
    (tmp_path / "folder").symlink_to(tmp_path / "real", target_is_directory=True)
    (tmp_path / "real" / "again.py").symlink_to("../link.py")
    bundle = scan(tmp_path)
    assert travelling(bundle) == {
        "real/a.py",
        "real/deep/b.py",
        "real/again.py",
        "link.py",
        "folder/a.py",
        "folder/deep/b.py",
        "folder/again.py",
    }
    assert {entry.sha256 for entry in bundle.manifest.files} == bundle.source_of.keys()
    assert len(bundle.source_of) == 1


def test_the_source_folder_may_be_a_symlink(tmp_path: Path) -> None:
    write(tmp_path, "real/a.py")
    (tmp_path / "real" / "b.py").symlink_to("a.py")
    (tmp_path / "link").symlink_to("real")
    bundle = scan(tmp_path / "link")
    assert bundle.root == tmp_path / "real"
    assert travelling(bundle) == {"a.py", "b.py"}


@pytest.mark.parametrize("target", ["../outside.txt", "../outside", "../missing", "/etc/passwd", "..", "../project-2"])
def test_symlinks_that_leave_are_refused(tmp_path: Path, target: str) -> None:
    write(tmp_path, "outside.txt", "outside/x", "project-2/x", "project/a.py")
    (tmp_path / "project" / "data").symlink_to(target)
    with pytest.raises(SymlinkRefused, match=r"data is a symlink that leaves the source folder.*--exclude data"):
        scan(tmp_path / "project")
    assert travelling(scan(tmp_path / "project", exclude=["data"])) == {"a.py"}


def test_an_ignored_symlink_is_left_out_also_by_a_pattern_for_folders(tmp_path: Path) -> None:
    write(tmp_path, "outside/x", "project/a.py")
    rules(tmp_path, "project/.gitignore", "data/")
    (tmp_path / "project" / "data").symlink_to(tmp_path / "outside", target_is_directory=True)
    (tmp_path / "project" / ".venv").symlink_to(tmp_path / "outside", target_is_directory=True)
    bundle = scan(tmp_path / "project")
    assert travelling(bundle) == {".gitignore", "a.py"}
    assert left_out(bundle)["data"] == ("data/", ".gitignore", 1)


def test_circles_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a/b/x")
    (tmp_path / "a" / "b" / "up").symlink_to("../../a")
    with pytest.raises(SymlinkRefused, match=r"a/b/up is a symlink to a folder that it lies in \(a\)"):
        scan(tmp_path)
    (tmp_path / "a" / "b" / "up").unlink()
    (tmp_path / "self").symlink_to("self")
    with pytest.raises(SymlinkRefused, match="self is a symlink that runs in a circle"):
        scan(tmp_path)


def test_two_folders_that_point_into_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a/x", "b/y")
    (tmp_path / "a" / "to_b").symlink_to("../b")
    (tmp_path / "b" / "to_a").symlink_to("../a")
    with pytest.raises(SymlinkRefused, match="a folder that it lies in"):
        scan(tmp_path)


def test_a_symlink_that_points_nowhere_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    (tmp_path / ".#a.py").symlink_to("user@host.1234:567")  # as Emacs locks files
    bundle = scan(tmp_path)
    assert travelling(bundle) == {"a.py"}
    assert left_out(bundle) == {".#a.py": ("a symlink that points nowhere", "scan", None)}


def test_a_symlinked_ignore_file_has_no_rules(tmp_path: Path) -> None:
    rules(tmp_path, "rules", "*.py")
    (tmp_path / ".gitignore").symlink_to("rules")
    write(tmp_path, "a.py")
    assert "a.py" in travelling(scan(tmp_path))


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "locked/x", "a.py")
    original = os.scandir

    def refuse(path: str) -> object:
        if path.endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return original(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceError, match=r"folder locked cannot be listed: Permission denied.*--exclude"):
        scan(tmp_path)
    assert travelling(scan(tmp_path, exclude=["locked"])) == {"a.py"}


def test_a_second_walk_sees_changed_rules_and_kinds(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b.py")
    assert travelling(scan(tmp_path)) == {"a.py", "b.py"}
    rules(tmp_path, ".gitignore", "a.py")
    assert travelling(scan(tmp_path)) == {".gitignore", "b.py"}
    (tmp_path / "b.py").unlink()
    (tmp_path / "b.py").symlink_to("/etc/passwd")
    with pytest.raises(SymlinkRefused):
        scan(tmp_path)
    (tmp_path / "b.py").unlink()
    write(tmp_path, "b.py/inside")
    assert travelling(scan(tmp_path)) == {".gitignore", "b.py/inside"}
