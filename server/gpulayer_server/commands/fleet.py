"""What `gpulayer up` prints: the line for the next machine, and who comes and goes."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections import Counter

import httpx
import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from gpulayer.protocol.endpoint import Endpoint, on_loopback
from gpulayer.protocol.types import Problem, WorkerView
from gpulayer_server.commands.holding import Holding, UpError, machine
from gpulayer_server.http.tokens import NewToken, TokenView
from gpulayer_server.http.watch import Changes
from gpulayer_server.http.watch import Fleet as All

log = logging.getLogger("gpulayer.server")

_AGAIN_S = 0.5
_SAID_AFTER_S = 3.0  # of a control plane that changes hands nobody needs to hear
_RULE = "─"
_COLUMNS = 78


class Fleet:
    """Follows the control plane and says in lines what a person needs. On one loop."""

    def __init__(self, holding: Holding, expires_s: float):
        """`expires_s`: how long a join line is good for."""
        self._holding = holding
        self._expires_s = expires_s
        self._token: NewToken | None = None
        self._known: dict[str, WorkerView] = {}

    async def begin(self) -> None:
        """Make the first token and show the box. Raises `UpError`."""
        token = await self._new_token()
        where = self._holding.where
        rows = [
            ("other machines find it at", where.url),
            ("its certificate is", where.fingerprint),
            ("its data lies in", str(self._holding.data)),
        ]
        if self._holding.moved_from:
            rows.append(("it was at", f"{self._holding.moved_from}, where machines that joined before still look"))
        if self._holding.holder:
            rows.append(("the control plane runs in", f"process {self._holding.holder}; this one stands by"))
        width = max(len(name) for name, _ in rows)
        title = f" GPUlayer on {machine()} "
        columns = min(_COLUMNS, shutil.get_terminal_size((_COLUMNS, 24)).columns)
        say(f"{_RULE * 2}{title}{_RULE * max(2, columns - 2 - len(title))}")
        for name, value in rows:
            say(f"  {name:<{width}}   {value}")
        say(f"  On another machine, paste this line (once, within {spoken(self._expires_s)}):")
        say("")
        say(self._line(token))
        say("")
        if on_loopback(where.url):
            say("  Only this machine can reach that address; --host names one by which others do.")
        say(_RULE * columns)

    def _line(self, token: NewToken) -> str:
        where = self._holding.where
        return f"gpulayer join {where.url} --token {token.token} --tls-fingerprint {where.fingerprint}"

    # ---------------------------------------------------------------- who comes and goes

    async def tell(self) -> None:
        """Say who comes and goes, until cancelled. A control plane that changes hands is followed."""
        lost_at: float | None = None
        said = False
        while True:
            endpoint = self._holding.endpoint()
            try:
                if endpoint is not None:
                    async with connect(
                        endpoint.url.replace("http", "ws", 1) + "/v1/watch",
                        additional_headers={"Authorization": f"Bearer {endpoint.token}"},
                        proxy=None,
                        max_size=None,
                    ) as socket:
                        if said:
                            say("  the control plane answers again")
                        lost_at, said = None, False
                        await self._follow(socket, endpoint)
            except (OSError, ConnectionClosed, InvalidHandshake, httpx.HTTPError, TimeoutError, UpError) as error:
                log.info("the control plane does not answer now: %s", error)  # said below, where it lasts
            lost_at = lost_at or time.monotonic()
            if not said and time.monotonic() - lost_at > _SAID_AFTER_S:
                said = True
                say("  the control plane does not answer; jobs go on at their machines")
            await asyncio.sleep(_AGAIN_S)  # whoever takes over is another process: there is nothing to wait for

    async def _follow(self, socket: object, endpoint: Endpoint) -> None:
        async for text in socket:  # type: ignore[attr-defined]
            message = msgspec.json.decode(text, type=All | Changes)
            news = [self._news(worker) for worker in message.workers]
            for worker in message.workers:
                self._known[worker.id] = worker
            if isinstance(message, Changes):
                for gone in message.workers_gone:
                    self._known.pop(gone, None)
            for line in filter(None, news):
                say(f"{line} · {self._count()}")
            if any(news) or self._expired() or isinstance(message, All):
                await self._next_line(endpoint)

    def _news(self, worker: WorkerView) -> str:
        before = self._known.get(worker.id)
        if worker.connected and (before is None or not before.connected):
            came = "is back" if before is not None else "is there" if worker.local else "joined"
            return f"  ● {worker.name} {came} · {described(worker)}"
        if before is not None and before.connected and not worker.connected:
            return f"  ○ {worker.name} is out of reach; what runs there goes on"
        return ""

    def _count(self) -> str:
        connected = sum(worker.connected for worker in self._known.values())
        return f"{connected} machine{'s' if connected != 1 else ''}"

    # ---------------------------------------------------------------- the line for the next machine

    def _expired(self) -> bool:
        token = self._token
        return token is None or (token.expires_at is not None and time.time() >= token.expires_at)

    async def _next_line(self, endpoint: Endpoint) -> None:
        """Once the line was used, or its time is over, show another one."""
        if self._token is not None and await self._is_live(endpoint, self._token.id):
            return
        token = await self._new_token()
        say(f"  for the next machine (once, within {spoken(self._expires_s)}):")
        say("")
        say(self._line(token))
        say("")

    async def _is_live(self, endpoint: Endpoint, name: str) -> bool:
        async with _client(endpoint) as http:
            answer = await http.get("/v1/tokens")
        if answer.status_code != 200:
            return True  # asked again at the next news
        listed = msgspec.json.decode(answer.content, type=list[TokenView])
        return any(token.id == name and token.state == "live" for token in listed)

    async def _new_token(self) -> NewToken:
        """Raises `UpError`."""
        endpoint = self._holding.endpoint()
        if endpoint is None:
            raise UpError(f"{self._holding.data}/endpoint.json is gone: the control plane has just ended; run it again")
        body = {"role": "join", "single_use": True, "expires_s": self._expires_s}
        try:
            async with _client(endpoint) as http:
                answer = await http.post("/v1/tokens", json=body)
        except httpx.HTTPError as error:
            raise UpError(f"{endpoint.url} does not answer: {error}; run it again") from error
        if answer.status_code != 201:
            raise UpError(msgspec.json.decode(answer.content, type=Problem).line())
        self._token = msgspec.json.decode(answer.content, type=NewToken)
        return self._token


def _client(endpoint: Endpoint) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {endpoint.token}"}
    return httpx.AsyncClient(base_url=endpoint.url, headers=headers, trust_env=False, verify=False, timeout=20.0)


def described(worker: WorkerView) -> str:
    """What a machine has: '2 × RTX 4090, 16 slots'."""
    kinds = Counter(f"{device.name or device.kind}" for device in worker.inventory.devices)
    devices = [f"{count} × {name}" if count > 1 else name for name, count in kinds.items()]
    return ", ".join([*devices, f"{worker.slots} slot{'s' if worker.slots != 1 else ''}"])


def spoken(seconds: float) -> str:
    """'24 hours', '90 s'."""
    for unit, length in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def say(line: str) -> None:
    """A line for the person in the terminal. One that is gone ends nothing: whoever joined needs no terminal here."""
    try:
        print(line, flush=True)  # noqa: T201 a command's own output
    except (OSError, ValueError) as error:
        log.info("nobody reads this any more (%s): %s", error, line if "--token" not in line else "a join line")
