"""Which names and contents count as secrets."""

from __future__ import annotations

import pytest

from gpulayer.source.secrets import CONTENT_LIMIT_BYTES, secret_content, secret_name, wants_content


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        "app/.env",
        ".env.production",
        ".ENV.local",
        "id_rsa",
        "id_ed25519",
        "keys/id_ed25519_work",
        "server.pem",
        "tls/Server.KEY",
        "store.p12",
        "store.pfx",
        ".netrc",
        ".pypirc",
        "credentials.json",
        "client_secret_123.json",
        "service-account.json",
        "service_account_prod.json",
        "kubeconfig",
        "prod.kubeconfig",
        "vault.kdbx",
        ".git-credentials",
        "token.json",
        ".aws/credentials",
        "home/.aws/credentials",
        ".kube/config",
        ".ssh/anything",
        ".docker/config.json",
        ".streamlit/secrets.toml",
    ],
)
def test_secrets(path: str) -> None:
    assert secret_name(path)


@pytest.mark.parametrize(
    "path",
    [
        ".env.example",
        ".env.sample",
        ".env.template",
        "id_rsa.pub",
        ".ssh/id_ed25519.pub",
        "environment.py",
        "env.py",
        "tokenizer.json",
        "token.py",
        "keys.py",
        "monkey.txt",
        "keyboard",
        "config.json",
        "config",
        "credentials.py",
        "aws/credentials.md",
        ".aws/readme.txt",
        "pem/readme",
    ],
)
def test_ordinary_files(path: str) -> None:
    assert secret_name(path) is None


def test_service_account_keys_are_found_by_content() -> None:
    assert wants_content("project-1a2b.json", 2400)
    key = b'{"type": "service_account", "private_key" : "-----BEGIN PRIVATE KEY-----"}'
    assert secret_content("project-1a2b.json", key) == "a service account's private key"
    assert secret_content("metrics.json", b'{"loss": 1, "private": "key"}') is None


def test_npmrc_only_with_a_token() -> None:
    assert wants_content("web/.npmrc", 100)
    assert secret_content(".npmrc", b"save-exact=true\n//registry.example/:_authToken=npm_abc\n")
    assert secret_content(".npmrc", b"_auth = dXNlcg==\n")
    assert secret_content(".npmrc", b"save-exact=true\n# _authToken=npm_abc\n") is None
    assert secret_content(".npmrc", b"//registry.example/:_authToken=${NPM_TOKEN}\n") is None


def test_large_and_other_files_are_not_looked_into() -> None:
    assert not wants_content("data.json", CONTENT_LIMIT_BYTES + 1)
    assert not wants_content("train.py", 10)
