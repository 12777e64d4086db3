"""`--in` and `--out`: values of variables, to a cell and back."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpulayer.client.errors import GpulayerError, RequestRefused
from gpulayer.client.transfer import Body, Tell, Tie, download, persist, upload
from gpulayer.protocol.types import JobView
from gpulayer.words import size

if TYPE_CHECKING:
    import httpx

    from gpulayer.protocol.values.named import Framed

MOST_BYTES = 4 * 1024**3 - 65_536
"""Of all values together: what an upload of 4 GiB holds."""


class ValuesRefused(GpulayerError):
    """Values that can't go with a cell, or can't be taken from it: which, and what to do."""


class Values:
    """The values that one cell begins with. They view the variables' memory: nothing is copied."""

    def __init__(self, framed: Framed) -> None:
        self._framed = framed
        self.digest = framed.digest()
        self.size_bytes = framed.size_bytes

    @classmethod
    def of(cls, names: tuple[str, ...], variables: Mapping[str, Any]) -> Values | None:
        """The values of these variables, None for no names. Raises `ValuesRefused`."""
        if not names:
            return None
        from gpulayer.protocol.values import ValueRefused
        from gpulayer.protocol.values.named import Framed, nearest

        for name in names:
            if name not in variables:
                raise ValuesRefused(f"--in {name}: there is no such variable here{nearest(name, variables)}")
        try:
            framed = Framed({name: variables[name] for name in names})
        except ValueRefused as refused:
            raise ValuesRefused(f"--in {refused}") from refused
        if framed.size_bytes > MOST_BYTES:
            raise ValuesRefused(f"--in: the values have {size(framed.size_bytes)}, at most {size(MOST_BYTES)} travel")
        return cls(framed)

    def send(self, tie: Tie, tell: Tell) -> None:
        """Send them. Raises `RequestRefused`, `ControlPlaneError`; `ValuesRefused` where they changed meanwhile."""
        line = f"◐ sending values, {size(self.size_bytes)}"
        tell(line)

        def act(client: httpx.Client) -> None:
            upload(client, self.digest, self.size_bytes, self._framed.pieces(), tell, line)

        try:
            persist(tie, act, tell, "while the values were sent", "run the cell again")
        except RequestRefused as error:
            if error.problem.code != "bad_source" or self._framed.digest() == self.digest:
                raise
            raise ValuesRefused("--in: a value changed while it was sent; run the cell again") from error


def fetch(job: JobView, tie: Tie, tell: Tell, wanted: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The values that a job left, by name.

    Args:
        job: as it ended.
        tie: knows where the control plane is.
        tell: takes the line under the cell.
        wanted: their names; None where they are not known here.

    Raises:
        ValuesRefused: they can't be read here, or are others. `RequestRefused`, `ControlPlaneError`.
    """
    from gpulayer.protocol.values import ValueDamaged
    from gpulayer.protocol.values.named import read, values_of

    outcome = job.outcome
    if outcome is None or not outcome.values:
        return {}
    digest = outcome.values

    def into(body: Body, size_bytes: int) -> dict[str, list[bytearray]]:
        return read(body, size_bytes)

    def act(client: httpx.Client) -> dict[str, list[bytearray]]:
        return download(client, digest, into, tell, f"◐ fetching values, {size(outcome.values_bytes)}")

    try:
        parts = persist(tie, act, tell, "while the values were fetched", f"%gpulayer attach {job.id} fetches them")
        if (wanted is not None and set(parts) != set(wanted)) or not all(map(_is_name, parts)):
            raise ValueDamaged(f"they are called {', '.join(map(repr, parts))}")
        return values_of(parts)
    except ValueDamaged as damaged:
        raise ValuesRefused(f"the values of job {job.id} can't be read here: {damaged}") from damaged


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)
