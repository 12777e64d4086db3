"""Jobs over HTTP, with a worker that is played by hand; with real ones they are tested in tests/integration."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import pytest

from gpulayer.protocol.messages import Finished, Output, Started
from gpulayer.protocol.records import Kind, encode
from gpulayer.protocol.types import Outcome, State
from gpulayer.source import FileEntry, Manifest
from gpulayer_server.http import jobs
from tests.support.processes import until


def command(*argv: str, **more: Any) -> dict[str, Any]:
    return {"command": {"argv": argv or ("true",)}, **more}


def submit(plane: Any, key: str, spec: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = plane.request("POST", "/v1/jobs", json={"key": key, "spec": spec or command()})
    assert answer.status_code == 201, answer.text
    return answer.json()


def get(plane: Any, path: str) -> Any:
    answer = plane.request("GET", path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def run(worker: Any, *records: bytes, **outcome: Any) -> str:
    """Play the next assignment to its end; the attempt."""
    attempt = worker.assigned().attempt
    data = b"".join(records)
    ended = Outcome(**({"state": State.SUCCEEDED, "exit_code": 0} | outcome))
    worker.say(
        Started(attempt=attempt),
        Output(attempt=attempt, offset=0, data=data),
        Finished(attempt=attempt, end_offset=len(data), outcome=ended, began=True, released=True),
    )
    return attempt


# ---------------------------------------------------------------- in


def test_a_command_goes_all_the_way(plane: Any, worker: Any) -> None:
    job = submit(plane, "k", command("echo", "a b", name="hello"))
    assert (job["kind"], job["command"], job["name"]) == ("command", "echo 'a b'", "hello")
    attempt = run(worker, encode(Kind.STDOUT, b"a b\n"))
    over = get(plane, f"/v1/jobs/{job['id']}?wait=30")
    assert (over["state"], over["attempt"], over["outcome"]["exit_code"]) == ("succeeded", attempt, 0)


def test_many_jobs_are_taken_in_order_and_once(plane: Any) -> None:
    body = {"jobs": [{"key": f"k{n}", "spec": command("true", name=f"n{n}")} for n in range(450)]}
    first = plane.request("POST", "/v1/jobs/batch", json=body)
    assert first.status_code == 201
    ids = first.json()["jobs"]
    assert len(set(ids)) == 450
    assert [job["name"] for job in get(plane, "/v1/jobs?limit=450")] == [f"n{n}" for n in reversed(range(450))]
    assert plane.request("POST", "/v1/jobs/batch", json=body).json()["jobs"] == ids


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "Object missing required field `jobs`"),
        ({"jobs": [{"key": "a", "spec": {}}, {"spec": {}}]}, "$.jobs[1]: Object missing required field `key`"),
        ({"jobs": [{"key": "a", "spec": {"priority": "high"}}]}, "Expected `int`, got `str` - at `$.spec.priority`"),
        ({"jobs": [7]}, "$.jobs[0]: Expected `object`, got `int`"),
    ],
)
def test_a_batch_that_is_none_takes_no_job(plane: Any, body: Any, words: str) -> None:
    answer = plane.request("POST", "/v1/jobs/batch", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert words in answer.json()["detail"]
    assert get(plane, "/v1/jobs") == []


def test_a_key_with_another_payload_refuses_the_whole_batch(plane: Any) -> None:
    submit(plane, "k1")
    body = {"jobs": [{"key": "k0", "spec": command()}, {"key": "k1", "spec": command("false")}]}
    answer = plane.request("POST", "/v1/jobs/batch", json=body)
    assert answer.status_code == 409
    assert len(get(plane, "/v1/jobs")) == 1


def test_too_many_are_refused(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_JOBS", 3)
    some = [{"key": f"k{n}", "spec": command()} for n in range(4)]
    for path, body in (("/v1/jobs/batch", some), ("/v1/jobs/states", ["x"] * 4)):
        answer = plane.request("POST", path, json={"jobs": body})
        assert answer.status_code == 400
        assert "at most 3 may" in answer.json()["title"]


# ---------------------------------------------------------------- how they are


def test_lists_are_narrowed(plane: Any) -> None:
    body = [command("true", name="a" if n % 2 else "b", labels={"run": str(n // 2)}) for n in range(6)]
    ids = [submit(plane, f"k{n}", spec)["id"] for n, spec in enumerate(body)]

    def listed(query: str) -> list[int]:
        return [ids.index(job["id"]) for job in get(plane, f"/v1/jobs?{query}")]

    assert listed("") == [5, 4, 3, 2, 1, 0]
    assert listed("limit=2") == [5, 4]
    assert listed("name=a") == [5, 3, 1]
    assert listed("label=run%3D1") == [3, 2]
    assert listed(f"before={ids[3]}&limit=2") == [2, 1]
    assert listed("state=running") == []
    assert sorted(listed("state=rejected") + listed("state=queued")) == [0, 1, 2, 3, 4, 5]
    assert listed("owner=nobody") == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=many", "limit must be a whole number, not 'many'"),
        ("state=odd", "state must be one of queued, assigned"),
        ("label=run", "label must be KEY=VALUE, not 'run'"),
    ],
)
def test_a_list_that_can_not_be_made_is_told_why(plane: Any, query: str, words: str) -> None:
    answer = plane.request("GET", f"/v1/jobs?{query}")
    assert answer.status_code == 400
    assert words in answer.json()["title"]


def test_who_waits_hears_when_it_is_over_and_not_before(plane: Any, worker: Any) -> None:
    job = submit(plane, "k")
    assert get(plane, f"/v1/jobs/{job['id']}?wait=0.05")["state"] in ("assigned", "running")
    answers: list[str] = []
    waiting = threading.Thread(target=lambda: answers.append(get(plane, f"/v1/jobs/{job['id']}?wait=30")["state"]))
    waiting.start()
    until(lambda: plane.do(lambda: len(plane.service.shell.followers)) == 1, "somebody to wait")
    run(worker)
    waiting.join()
    assert answers == ["succeeded"]
    assert plane.do(lambda: len(plane.service.shell.followers)) == 0
    assert plane.request("GET", f"/v1/jobs/{job['id']}?wait=x").status_code == 400


def test_the_states_of_many(plane: Any, worker: Any) -> None:
    first, second = (submit(plane, f"k{n}")["id"] for n in range(2))
    run(worker)
    get(plane, f"/v1/jobs/{first}?wait=30")
    states = plane.request("POST", "/v1/jobs/states", json={"jobs": [first, second, "j-none"]}).json()
    assert states == {first: "succeeded", second: "assigned"}


def test_tasks_and_attempts_have_their_records(plane: Any, new_worker: Any) -> None:
    worker = new_worker(slots=1)
    job = submit(plane, "k", command("true", array=[[3, 5]]))
    attempts = [run(worker, exit_code=n, state=State.FAILED if n else State.SUCCEEDED) for n in range(3)]
    over = get(plane, f"/v1/jobs/{job['id']}?wait=30")
    assert (over["state"], over["tasks"]) == ("failed", {"succeeded": 1, "failed": 2})
    tasks = get(plane, f"/v1/jobs/{job['id']}/tasks")
    assert [(task["index"], task["outcome"]["exit_code"]) for task in tasks] == [(3, 0), (4, 1), (5, 2)]
    found = get(plane, f"/v1/jobs/{job['id']}/attempts")
    assert [(each["id"], each["index"], each["number"], each["worker"]) for each in found] == [
        (attempt, index, 1, "alpha") for attempt, index in zip(attempts, (3, 4, 5), strict=True)
    ]
    assert [each["id"] for each in get(plane, f"/v1/jobs/{job['id']}/attempts?index=4")] == [attempts[1]]


# ---------------------------------------------------------------- what they wrote and made


def test_logs_are_the_bytes_as_they_were_written(plane: Any, worker: Any) -> None:
    job = submit(plane, "k")
    path = f"/v1/jobs/{job['id']}/logs"
    run(worker, encode(Kind.STDOUT, b"one\n\xff"), encode(Kind.STDERR, b"two\n"), encode(Kind.STDOUT, b"three\n"))
    get(plane, f"/v1/jobs/{job['id']}?wait=30")
    answer = plane.request("GET", path)
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.content == b"one\n\xfftwo\nthree\n"
    assert plane.request("GET", f"{path}?stream=stderr").content == b"two\n"
    assert plane.request("GET", f"{path}?stream=stdout&tail=7").content == b"\xffthree\n"
    assert plane.request("GET", f"{path}?tail=0").content == b""
    for query in ("stream=stdin", "tail=x", "tail=-1", "index=x"):
        assert plane.request("GET", f"{path}?{query}").status_code == 400


def test_each_task_has_logs_of_its_own(plane: Any, new_worker: Any) -> None:
    worker = new_worker(slots=1)
    job = submit(plane, "k", command("true", array=[[0, 1]]))
    for text in (b"first", b"second"):
        run(worker, encode(Kind.STDOUT, text))
    get(plane, f"/v1/jobs/{job['id']}?wait=30")
    logs = [plane.request("GET", f"/v1/jobs/{job['id']}/logs?index={n}").content for n in range(2)]
    assert logs == [b"first", b"second"]


def test_a_job_that_wrote_nothing_has_empty_logs(plane: Any) -> None:
    job = submit(plane, "k")
    answer = plane.request("GET", f"/v1/jobs/{job['id']}/logs")
    assert (answer.status_code, answer.content) == (200, b"")


def test_the_files_that_came_back_are_listed(plane: Any, worker: Any) -> None:
    data = b"result"
    digest = hashlib.sha256(data).hexdigest()
    manifest = Manifest(files=(FileEntry(path="out/a b.txt", mode=0o644, size=len(data), sha256=digest),))
    plane.service.shell.blobs.put(digest, [data])
    plane.request("POST", "/v1/bundles", content=manifest.to_bytes())
    job = submit(plane, "k")
    run(worker, files=manifest.digest)
    get(plane, f"/v1/jobs/{job['id']}?wait=30")
    assert get(plane, f"/v1/jobs/{job['id']}/outputs") == [
        {"index": 0, "path": "out/a b.txt", "size": 6, "sha256": digest, "mode": 0o644}
    ]
    assert get(plane, f"/v1/jobs/{job['id']}/outputs?index=1") == []
    other = submit(plane, "k2")
    assert get(plane, f"/v1/jobs/{other['id']}/outputs") == []


@pytest.mark.parametrize("path", ["", "/tasks", "/attempts", "/outputs", "/logs"])
def test_a_job_that_is_not_there(plane: Any, path: str) -> None:
    answer = plane.request("GET", f"/v1/jobs/j-none{path}")
    assert (answer.status_code, answer.json()["code"], answer.json()["title"]) == (404, "no_such_job", "no job j-none")


def test_a_task_that_is_not_there(plane: Any) -> None:
    job = submit(plane, "k")
    answer = plane.request("GET", f"/v1/jobs/{job['id']}/logs?index=7")
    assert (answer.status_code, answer.json()["title"]) == (404, f"job {job['id']} has no task 7")


def test_a_submitter_cancels_only_its_own(plane: Any) -> None:
    def token(name: str) -> dict[str, str]:
        made = plane.request("POST", "/v1/tokens", json={"role": "submitter", "name": name, "single_use": False})
        assert made.status_code == 201, made.text
        return {"Authorization": f"Bearer {made.json()['token']}"}

    alice, bob = token("alice"), token("bob")
    made = plane.request("POST", "/v1/jobs", json={"key": "k", "spec": command()}, headers=alice).json()
    assert made["owner"] == "alice"
    url = f"/v1/jobs/{made['id']}/cancel"
    refused = plane.request("POST", url, headers=bob)
    assert (refused.status_code, refused.json()["code"]) == (403, "wrong_role")
    assert "alice's" in refused.json()["title"]
    assert plane.request("POST", url, headers=alice).status_code == 200
    mine = plane.request("POST", "/v1/jobs", json={"key": "k", "spec": command()}, headers=bob).json()
    assert plane.request("POST", f"/v1/jobs/{mine['id']}/cancel").status_code == 200


@pytest.mark.parametrize("index", ["-1", "9" * 30, "x"])
def test_an_index_that_is_none(plane: Any, index: str) -> None:
    job = submit(plane, "k")["id"]
    for what in ("logs", "attempts", "outputs"):
        answer = plane.request("GET", f"/v1/jobs/{job}/{what}?index={index}")
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


def test_a_key_is_something(plane: Any) -> None:
    answer = plane.request("POST", "/v1/jobs", json={"key": "", "spec": command()})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert "$.key" in answer.json()["detail"]
    answer = plane.request("POST", "/v1/jobs/batch", json={"jobs": [{"key": "", "spec": command()}]})
    assert (answer.status_code, get(plane, "/v1/jobs")) == (400, [])
