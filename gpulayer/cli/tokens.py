"""`gpulayer token`: who may do what from elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from gpulayer.cli import common
from gpulayer.cli.common import Json, maybe, print_json, print_lines
from gpulayer.cli.errors import UsageError
from gpulayer.cli.terminal import Terminal
from gpulayer.client import asks
from gpulayer.client.asks import Listening, NewToken, TokenView
from gpulayer.client.errors import RequestRefused
from gpulayer.parsing import parse_count, parse_time_limit
from gpulayer.tables import Column, Row, table
from gpulayer.words import ago, near_words, roughly

ROLES = {
    "admin": "everything",
    "submitter": "submits jobs, and cancels its own",
    "reader": "looks at jobs, machines and what jobs left",
    "join": "lets one machine join",
    "metrics": "reads the metrics",
}
_SUBMIT = ("admin", "submitter")
_JOIN_S = 3600.0
_EVERYWHERE = ("0.0.0.0", "::")  # no address to go to
_THIS = "…"

app = common.group("Tokens let other people and machines in: each has a role, and ends when it is revoked.")


_CREATE = "\b\nRoles:\n" + "".join(f"  {role:<10} {text}\n" for role, text in ROLES.items())
_CREATE += """
\b
Examples:
  gpulayer token create --role submitter --name alice --expires 30d
  gpulayer token create --role submitter --name students --max-running 4 --max-devices 2
  gpulayer token create --role join --single-use --expires 10m

\b
stdout carries the token alone, and nobody sees it again: it is kept as a hash."""


@app.command(epilog=_CREATE)
def create(
    role: Annotated[str, typer.Option(metavar="ROLE", help=f"One of {', '.join(ROLES)}.", show_default=False)],
    name: Annotated[str, typer.Option(metavar="NAME", help="Whose it is: the owner of the jobs that it submits.")] = "",
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="It ends after so long, like 30d (join: 1h, others: never).")
    ] = None,
    single_use: Annotated[bool, typer.Option("--single-use", help="It ends with its first use.")] = False,
    max_running: Annotated[
        str | None, typer.Option("--max-running", metavar="N", help="So many tasks of its owner run at once.")
    ] = None,
    max_devices: Annotated[
        str | None, typer.Option("--max-devices", metavar="N", help="So many devices these hold at once.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a token and print it."""
    if role not in ROLES:
        raise UsageError(f"--role: {role!r} is no role{near_words(role, list(ROLES))}: one of {', '.join(ROLES)}")
    expires_s = maybe(parse_time_limit, expires, "--expires")
    if expires_s is None and role == "join":
        expires_s = _JOIN_S
    limits = {
        "max_running": maybe(parse_count, max_running, "--max-running"),
        "max_devices": maybe(parse_count, max_devices, "--max-devices"),
    }
    if any(limits.values()) and role not in _SUBMIT:
        raise UsageError(f"--max-running and --max-devices are of tokens that submit jobs, not of {role} ones")
    with Terminal() as terminal, common.open_client() as client:
        made = client.ask(asks.new_token(role, name=name, expires_s=expires_s, single_use=single_use, **limits))
        if json:
            print_json(made)
            return
        ends = f", ends in {roughly(made.expires_at - time.time() + 0.5)}" if made.expires_at else ""
        once = ", for one use" if made.single_use else ""
        most = "".join(f", {each}" for each in _limits(made))
        terminal.say(f"✓ token {made.id}{f' ({name})' if name else ''}, role {role}: {ROLES[role]}{ends}{once}{most}")
        sys.stdout.write(f"{made.token}\n")
        sys.stdout.flush()
        for line in _use(role, client.ask(asks.listening())):
            terminal.say(line)


def _limits(token: NewToken | TokenView) -> list[str]:
    """'4 tasks', '8 devices': how much its owner may have at once."""
    counts = ((token.max_running, "task"), (token.max_devices, "device"))
    return [f"at most {count} {what}{'' if count == 1 else 's'}" for count, what in counts if count is not None]


def _use(role: str, where: Listening) -> list[str]:
    """How the token is used on another machine; it stands on stdout, and nowhere else."""
    if not where.port or where.host in _EVERYWHERE:
        return ["  where it is used: gpulayer up says under which address this control plane is reached"]
    host = f"[{where.host}]" if ":" in where.host else where.host
    url = f"https://{host}:{where.port}"
    if role == "join":
        return ["  paste there:", f"    gpulayer join {url} --token {_THIS} --tls-fingerprint {where.fingerprint}"]
    return [
        "  there:",
        f"    export GPULAYER_URL={url} GPULAYER_FINGERPRINT={where.fingerprint} GPULAYER_TOKEN={_THIS}",
    ]


@app.command("list", epilog="\b\nExamples:\n  gpulayer token list\n  gpulayer token list --all")
def list_tokens(
    every: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    json: Json = False,
) -> None:
    """The tokens that were given out; what they are, nobody can show."""
    with common.open_client() as client:
        tokens = client.ask(asks.tokens())
    shown = [token for token in tokens if every or token.state == "live"]
    if json:
        print_json(shown)
    elif shown:
        print_lines(_table(shown, time.time()))
    else:
        print_lines(["no tokens: gpulayer token create --role submitter --name alice makes one"])


def _table(tokens: list[TokenView], now: float) -> list[str]:
    columns = (
        Column(title="token"),
        Column(title="name", cuts=True),
        Column(title="role"),
        Column(title="state"),
        Column(title="made"),
        Column(title="ends"),
        Column(title="used"),
        Column(title="limits"),
    )
    return table(columns, [_row(token, now) for token in tokens], common.width())


def _row(token: TokenView, now: float) -> Row:
    ends = "–" if token.expires_at is None else f"in {roughly(token.expires_at - now)}"
    if token.expires_at is not None and token.expires_at <= now:
        ends = ago(now - token.expires_at)
    used = ago(now - token.used_at) if token.used_at else "–"
    return Row(
        cells=(
            token.id,
            token.name or token.used_by or "–",
            token.role,
            token.state,
            ago(now - token.created_at),
            ends + (", one use" if token.single_use else ""),
            used,
            ", ".join(_limits(token)).replace("at most ", "") or "–",
        )
    )


@app.command(epilog="\b\nExamples:\n  gpulayer token revoke alice\n  gpulayer token revoke t3k9 --workers")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name or id.", show_default=False)],
    workers: Annotated[
        bool, typer.Option("--workers", help="Of a join token: also cut off the machines that joined with it.")
    ] = False,
) -> None:
    """End a token at once; a machine whose credential it is, is cut off."""
    with Terminal() as terminal, common.open_client() as client:
        try:
            client.ask(asks.revoke(name, workers=workers))
        except RequestRefused as error:
            if error.problem.code != "no_such_token":
                raise
            there = [known for token in client.ask(asks.tokens()) for known in (token.name, token.id) if known]
            raise UsageError(f"no token {name}{near_words(name, there)}; gpulayer token list shows them") from None
        terminal.say(f"✓ token {name} is revoked")
