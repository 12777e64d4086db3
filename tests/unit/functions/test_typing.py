"""What type checkers make of remote functions: our own types are a part of what people use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gpulayer

PROGRAM = """
from collections.abc import Iterator
from typing_extensions import assert_type
import gpulayer as gl

@gl.remote
def plain(x: int, name: str = "") -> dict[str, int]:
    return {name: x}

@gl.remote(accelerator="cuda", frameworks={"torch": ">=2"}, retries=1, source=False)
def optioned(x: int) -> float:
    return x

@gl.remote
async def waits(x: int) -> str:
    return str(x)

@gl.remote
def yields(n: int) -> Iterator[int]:
    yield from range(n)

@gl.remote
class Model:
    def __init__(self, w: int): ...
    def predict(self, x: int) -> int: ...

async def look() -> None:
    assert_type(await plain.aio(1), dict[str, int])
    async for each in plain.aio.map([1]):
        assert_type(each, dict[str, int])
    assert_type(await plain.spawn(1), dict[str, int])

assert_type(plain(1, name="x"), dict[str, int])
assert_type(optioned(1), float)
assert_type(waits(1), str)
for item in yields(3):
    assert_type(item, int)
for each in plain.map([1], ordered=False):
    assert_type(each, dict[str, int])
assert_type(list(optioned.starmap([(1,)])), list[float])
assert_type(plain.spawn(1), gl.Call[dict[str, int]])
assert_type(plain.with_options(devices=2)(1), dict[str, int])
with Model.remote(1) as model:
    model.predict(2)
plain("a")  # wrong
optioned()  # wrong
gl.remote(acelerator="x")  # wrong
gl.remote(retries="x")  # wrong
"""


def test_types_go_through(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(Path(gpulayer.__file__).parents[1])]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = PROGRAM.splitlines()
    wrong = {number for number, line in enumerate(lines) if line.endswith("# wrong")}
    assert {each["range"]["start"]["line"] for each in found} == wrong, [each["message"] for each in found]
