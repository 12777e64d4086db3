"""Where a machine is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gpulayer_worker.inventory.location import Location, found, labels, told

GCE = {"Metadata-Flavor": "Google"}


class Metadata(HTTPServer):
    """A metadata server on loopback."""

    status, body, headers = 200, b"projects/12/zones/europe-west4-a\n", GCE

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Answer)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Metadata)
        server.asked.append(f"{self.path} {self.headers['Metadata-Flavor']}")
        self.send_response(server.status)
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(server.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with Metadata() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def googles(tmp_path: Path) -> Path:
    """A root whose machine is Google's."""
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/product_name").write_text("Google Compute Engine\n")
    return tmp_path


def test_flags_count_before_the_environment() -> None:
    environ = {"GPULAYER_REGION": "home", "GPULAYER_ZONE": "attic"}
    assert told("", "", environ) == Location(region="home", zone="attic")
    assert told("eu", "", environ) == Location(region="eu", zone="attic")
    assert told("", "", {}) == Location()


def test_a_machine_of_googles_is_told_its_zone(metadata: Metadata, googles: Path) -> None:
    environ = {"GCE_METADATA_HOST": metadata.host}
    assert found(Location(), environ, googles) == Location(region="europe-west4", zone="europe-west4-a")
    assert metadata.asked == ["/computeMetadata/v1/instance/zone Google"]
    assert found(Location(region="mine"), environ, googles) == Location(region="mine", zone="europe-west4-a")


def test_nobody_is_asked_for_what_is_known_or_on_another_machine(
    metadata: Metadata, googles: Path, tmp_path: Path
) -> None:
    environ = {"GCE_METADATA_HOST": metadata.host}
    assert found(Location(zone="a"), environ, googles) == Location(zone="a")
    assert found(Location(), environ, tmp_path / "elsewhere") == Location()
    assert found(Location(), environ | {"NO_GCE_CHECK": "True"}, googles) == Location()
    assert metadata.asked == []


@pytest.mark.parametrize(("status", "headers"), [(404, GCE), (200, {}), (200, {"Metadata-Flavor": "Other"})])
def test_who_does_not_answer_as_google_says_nothing(
    metadata: Metadata, googles: Path, status: int, headers: dict[str, str]
) -> None:
    metadata.status, metadata.headers = status, headers
    assert found(Location(), {"GCE_METADATA_HOST": metadata.host}, googles) == Location()


def test_nobody_there_is_no_trouble(metadata: Metadata, googles: Path) -> None:
    host = metadata.host
    metadata.socket.close()
    assert found(Location(), {"GCE_METADATA_HOST": host}, googles) == Location()
    assert found(Location(), {"GCE_METADATA_HOST": "127.0.0.1:no"}, googles) == Location()


def test_labels_are_keys_with_values() -> None:
    assert labels(["team=vision", "gpulayer.dev/network-group=rack=7"]) == {
        "team": "vision",
        "gpulayer.dev/network-group": "rack=7",
    }


@pytest.mark.parametrize("word", ["team", "=x", "team=", "a b=c", "x" * 300 + "=y"])
def test_a_label_that_is_none_is_named(word: str) -> None:
    with pytest.raises(ValueError, match="give KEY=VALUE without spaces"):
        labels([word])
