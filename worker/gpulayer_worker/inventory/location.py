"""Where a machine is: what it was told, else what Google's metadata server says of a machine of Google's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("gpulayer.worker")

_METADATA = "169.254.169.254"  # link-local: answered by the machine's host, and by nobody else
_PATH = "/computeMetadata/v1/instance/zone"
_TIMEOUT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Location:
    """'' where it is not known."""

    region: str = ""
    zone: str = ""


def told(region: str, zone: str, environ: Mapping[str, str]) -> Location:
    """By flags, else by GPULAYER_REGION and GPULAYER_ZONE."""
    return Location(region=region or environ.get("GPULAYER_REGION", ""), zone=zone or environ.get("GPULAYER_ZONE", ""))


def found(known: Location, environ: Mapping[str, str], root: Path = Path("/")) -> Location:
    """What is known, and what the metadata server adds on a machine of Google's. Blocks for a second or two at most.

    GCE_METADATA_HOST names another server, and NO_GCE_CHECK asks none, as for Google's own libraries.
    """
    if known.zone or environ.get("NO_GCE_CHECK", "").lower() == "true" or not _is_googles(root):
        return known
    zone = _ask(environ.get("GCE_METADATA_HOST") or _METADATA)
    region = zone.rpartition("-")[0]
    return Location(region=known.region or region, zone=zone)


def _is_googles(root: Path) -> bool:
    for name in ("product_name", "sys_vendor"):
        try:
            text = (root / "sys/class/dmi/id" / name).read_text(errors="replace").strip()
        except OSError:
            continue
        if text in ("Google", "Google Compute Engine"):
            return True
    return False


def _ask(host: str) -> str:
    """The zone, as in 'projects/1/zones/europe-west4-a'; '' where nobody says."""
    import http.client  # it takes long to import, and most machines are nobody's

    try:
        connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_S)  # by no proxy
        try:
            connection.request("GET", _PATH, headers={"Metadata-Flavor": "Google"})
            answer = connection.getresponse()
            body = answer.read(1000).decode(errors="replace").strip()
            if answer.status == 200 and answer.headers.get("Metadata-Flavor") == "Google":
                return body.rpartition("/")[2]
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        log.info("the metadata server %s does not say the zone: %s", host, error)
    return ""


def labels(words: list[str]) -> dict[str, str]:
    """Of 'KEY=VALUE's. Raises ValueError, with the words for a person."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or not value or any(letter.isspace() for letter in word) or len(word) > 200:
            raise ValueError(f"--label {word!r}: give KEY=VALUE without spaces, such as team=vision")
        found[key] = value
    return found
