"""Which files must not leave the machine by accident: keys, tokens, passwords.

A list of names, and a look into two kinds of small files. It cannot find every secret; it finds the usual ones before
they travel. Ignore rules come first: what is ignored does not travel and is not looked at.
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

__all__ = ["CONTENT_LIMIT_BYTES", "secret_content", "secret_name", "wants_content"]

CONTENT_LIMIT_BYTES = 65_536
"""Larger files are not looked into: a service account's key has 2,400 bytes."""

_HARMLESS = (".env.example", ".env.sample", ".env.template", ".env.dist", "*.pub")

_SECRET_NAMES = {
    "environment variables": (".env", ".env.*", ".envrc"),
    "a private key": ("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.ppk", "*.p8"),
    "a key store": ("*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.kdb"),
    "passwords": (".netrc", "_netrc", ".pgpass", ".my.cnf", ".htpasswd", ".git-credentials", ".pypirc"),
    "credentials": (
        "credentials.json",
        "client_secret*.json",
        "application_default_credentials.json",
        "service[-_]account*.json",
        "kaggle.json",
        ".dockercfg",
        ".boto",
        ".s3cfg",
        "kubeconfig",
        "*.kubeconfig",
        "secrets.toml",
        "secrets.y*ml",
        "secrets.json",
    ),
    "a token": ("token.json", ".vault-token", ".vault_pass", ".terraformrc"),
}

# A folder of a home directory whose files are secrets, and the names in it (None: all).
_SECRET_FOLDERS: dict[str, frozenset[str] | None] = {
    ".ssh": None,
    ".gnupg": None,
    ".aws": frozenset(("credentials", "config")),
    ".kube": frozenset(("config",)),
    ".docker": frozenset(("config.json",)),
    ".huggingface": frozenset(("token", "stored_tokens")),
    "gcloud": frozenset(("credentials.db", "access_tokens.db", "legacy_credentials")),
}

_PRIVATE_KEY = re.compile(rb'"private_key"\s*:')
_NPM_TOKEN = re.compile(rb"^[^#;\n]*(_authToken|_auth|_password)\s*=\s*(?!\$\{)\S", re.MULTILINE)


def secret_name(path: str) -> str | None:
    """What kind of secret a file of this name holds ('a private key'), or None.

    Args:
        path: of a file, POSIX slashes, relative or absolute; upper and lower case are the same.
    """
    folder, _, name = path.rpartition("/")
    parent = folder.rpartition("/")[2].lower()
    if parent in _SECRET_FOLDERS:
        names = _SECRET_FOLDERS[parent]
        if (names is None or name.lower() in names) and not name.lower().endswith(".pub"):
            return f"a file of {parent}"
    return _by_name(name)


def wants_content(name: str, size: int) -> bool:
    """Whether `secret_content` has to see a file of this name and size (in bytes)."""
    return size <= CONTENT_LIMIT_BYTES and name.lower().endswith((".json", ".npmrc"))


def secret_content(name: str, content: bytes) -> str | None:
    """What kind of secret the content holds, or None; only for files that `wants_content`."""
    if name.lower().endswith(".npmrc"):
        return "an npm token" if _NPM_TOKEN.search(content) else None
    return "a service account's private key" if _PRIVATE_KEY.search(content) else None


@lru_cache(maxsize=1)
def _patterns() -> tuple[re.Pattern[str], tuple[tuple[str, re.Pattern[str]], ...]]:
    return _compiled(_HARMLESS), tuple((what, _compiled(globs)) for what, globs in _SECRET_NAMES.items())


def _compiled(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(glob) for glob in globs))


@lru_cache(maxsize=65_536)
def _by_name(name: str) -> str | None:
    lowered = name.lower()
    harmless, kinds = _patterns()
    if harmless.match(lowered):
        return None
    return next((what for what, pattern in kinds if pattern.match(lowered)), None)
