"""Values before a cell and after it, in the kernel: with both ipykernels, by way of files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy
import pytest

from gpulayer.protocol.values import named
from gpulayer.protocol.values.named import Framed, read, values_of
from gpulayer_worker.kernel.exchange import Exchange
from gpulayer_worker.kernel.request import Request


def inputs(folder: Path, before: bytes = b"", **values: Any) -> dict[str, Any]:
    """A file of values as an agent names it."""
    framed = Framed(values)
    path = folder / "in"
    path.write_bytes(before + b"".join(framed.pieces()) + b"behind")
    return {"path": str(path), "offset": len(before), "size": framed.size_bytes}


def outputs(folder: Path, *names: str) -> dict[str, Any]:
    return {"names": list(names), "path": str(folder / "out")}


def left(folder: Path, reply: dict[str, Any]) -> dict[str, Any]:
    """The values of the file that the reply names."""
    data = (folder / "out").read_bytes()
    assert reply["values"] == {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    assert os.stat(folder / "out").st_mode & 0o777 == 0o600
    assert os.listdir(folder).count("out.new") == 0
    with (folder / "out").open("rb", buffering=0) as file:
        return values_of(read(file, len(data)))


def test_values_go_in_and_come_out(kernel: Any, tmp_path: Path) -> None:
    value = {"k": [1, 2.5, None], (1, 2): {3}}
    asked = inputs(tmp_path, b"others share this file", a=value, b=b"x" * 10_000)
    code = "c = [a, len(b)]\nassert type(b) is bytes\na['k'].append('mine')"
    output = kernel.run(code, inputs=asked, outputs=outputs(tmp_path, "c", "b"))
    assert output.reply["status"] == "ok", output.messages
    assert left(tmp_path, output.reply) == {
        "c": [{"k": [1, 2.5, None, "mine"], (1, 2): {3}}, 10_000],
        "b": b"x" * 10_000,
    }


def test_a_cell_without_values_says_nothing_of_them(kernel: Any) -> None:
    assert "values" not in kernel.run("x = 1").reply


def test_an_input_is_a_variable_as_any_other_from_there_on(kernel: Any, tmp_path: Path) -> None:
    kernel.run("", inputs=inputs(tmp_path, fresh_value=5))
    kernel.run("fresh_value += 1")
    assert left(tmp_path, kernel.run("", outputs=outputs(tmp_path, "fresh_value")).reply) == {"fresh_value": 6}


def test_a_name_that_the_cell_did_not_define(kernel: Any, tmp_path: Path) -> None:
    output = kernel.run("print('ran')\nlosses = 1", outputs=outputs(tmp_path, "losses", "lossess"))
    assert output.text() == "ran\n"
    name, traceback = output.error()
    line = "--out lossess: the cell ended without a variable of this name; did you mean losses?"
    assert (name, traceback) == ("NameError", f"NameError: {line}")
    assert (output.reply["status"], output.reply["ename"], output.reply["evalue"]) == ("error", "NameError", line)
    assert "values" not in output.reply
    assert not (tmp_path / "out").exists()
    assert output.order[-3:] == ["error", "REPLY", "status"]


def test_a_value_that_does_not_travel(kernel: Any, tmp_path: Path) -> None:
    output = kernel.run("b = {'model': object()}", outputs=outputs(tmp_path, "b"))
    name, traceback = output.error()
    assert name == "ValueRefused"
    assert traceback.startswith("ValueRefused: --out b['model'] is of type object, which does not travel: ")
    assert "\n" not in traceback
    assert output.reply["status"] == "error"
    assert not (tmp_path / "out").exists()
    assert kernel.run("b['model'] is not None").reply["status"] == "ok"


def test_a_cell_that_fails_leaves_no_values(kernel: Any, tmp_path: Path) -> None:
    output = kernel.run("d = 1\n1 / 0", outputs=outputs(tmp_path, "d"))
    assert output.reply["ename"] == "ZeroDivisionError"
    assert "values" not in output.reply
    assert not (tmp_path / "out").exists()


def test_inputs_that_are_damaged_or_gone_end_the_cell_before_its_code(kernel: Any, tmp_path: Path) -> None:
    asked = inputs(tmp_path, a=1)
    for change, line in (
        ({"size": asked["size"] + 100}, "ValueError: the values of --in are cut short in "),
        ({"offset": 1}, "ValueDamaged: the bytes are no values"),
        ({"path": str(tmp_path / "nothing")}, "FileNotFoundError: "),
    ):
        output = kernel.run("print('ran')", inputs=asked | change)
        assert output.error()[1].startswith(line)
        assert output.text() == ""
        assert output.reply["status"] == "error"


def test_a_library_that_lacks_is_named(kernel: Any, python: str, tmp_path: Path) -> None:
    asked = inputs(tmp_path, a=numpy.arange(2000.0))
    output = kernel.run("total = float(a.sum())", inputs=asked, outputs=outputs(tmp_path, "total"))
    if (
        "numpy"
        in kernel.run("import importlib.util\nprint('numpy' if importlib.util.find_spec('numpy') else '')").text()
    ):
        assert left(tmp_path, output.reply) == {"total": 1999000.0}
    else:
        line = "LibraryMissing: a: the value needs numpy, which this interpreter lacks: install numpy there"
        assert output.error()[1] == line


def test_the_file_is_written_whole_or_not_at_all(fresh: Any, tmp_path: Path) -> None:
    fresh.start()
    with fresh.failpoint("kernel.values-written") as point:
        output = fresh.send("big = b'x' * 1_000_000", outputs=outputs(tmp_path, "big"))
        point.await_hit()
        assert not (tmp_path / "out").exists()
        fresh.process.kill()
        fresh.end()
    assert not (tmp_path / "out").exists()
    assert not output.read().ended


def test_an_interrupt_while_values_are_written_ends_the_cell(fresh: Any, tmp_path: Path) -> None:
    fresh.start()
    with fresh.failpoint("kernel.values-written") as point:
        output = fresh.send("big = b'x' * 1_000_000", outputs=outputs(tmp_path, "big"))
        point.await_hit()
        fresh.interrupt()
        fresh.wait(output, lambda: output.ended)
    assert output.reply["ename"] == "KeyboardInterrupt"
    assert os.listdir(tmp_path) == []


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path: Path) -> None:
    names: dict[str, Any] = {
        "attempt": "a",
        "spool": "/s",
        "cwd": "",
        "env": {},
        "execution_count": 0,
        "workspace_first_on_path": False,
    }
    request = Request(**names, reserve_bytes=1 << 62, inputs={}, outputs=outputs(tmp_path, "e"))
    with pytest.raises(OSError, match="--out: the values need 5 MB on the worker's disk, which has 0 MB to spare"):
        Exchange(lambda: named, lambda name: None).leave(request, {"e": "x" * 5_000_000})
    assert os.listdir(tmp_path) == []


def test_a_forked_child_leaves_nothing(kernel: Any, tmp_path: Path) -> None:
    code = "import os, sys\nchild = os.fork()\nif child:\n    os.waitpid(child, 0)"
    output = kernel.run(code, outputs=outputs(tmp_path, "child"))
    assert left(tmp_path, output.reply)["child"] > 0


def test_the_codec_is_loaded_by_the_first_cell_that_asks(fresh: Any, tmp_path: Path) -> None:
    fresh.start()
    code = "import sys\nprint('_gpulayer_kernel.codec.named' in sys.modules, 'gpulayer' in sys.modules)"
    assert fresh.run(code).text() == "False False\n"
    fresh.run("", inputs=inputs(tmp_path, a=1))
    assert fresh.run(code).text() == "True False\n"


@pytest.mark.parametrize("asked", [{"inputs": []}, {"outputs": "c"}])
def test_a_malformed_request_is_refused(kernel: Any, asked: dict[str, Any]) -> None:
    output = kernel.send("print('ran')", **asked)
    while (answer := kernel.reply())["parent_header"]["msg_id"] != output.attempt:
        pass  # of earlier cells
    assert answer["content"]["ename"] == "Refused"
    assert output.read().messages == []
