"""The control plane's own certificate."""

from __future__ import annotations

import datetime
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from gpulayer.protocol.pin import fingerprint
from gpulayer_server import tls
from gpulayer_server.datafolder import DataFolderError
from gpulayer_server.tls import own_certificate


def test_it_is_made_once_for_thirty_years_and_its_owner_alone(tmp_path: Path) -> None:
    made = own_certificate(tmp_path)
    assert made == own_certificate(tmp_path)
    assert made.path == tmp_path / "tls" / "certificate.pem"
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.path.parent.stat().st_mode) == 0o700
    assert [path.name for path in made.path.parent.iterdir()] == ["certificate.pem"]
    parsed = x509.load_pem_x509_certificate(made.path.read_bytes())
    key = parsed.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    lasts = parsed.not_valid_after_utc - datetime.datetime.now(datetime.timezone.utc)
    assert 30 * 365 < lasts.days < 31 * 365
    assert not parsed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert made.context().get_ca_certs() == []


def test_each_folder_has_its_own(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    assert len({own_certificate(folder).fingerprint for folder in folders}) == 2


def test_it_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes, *, durable: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tls, "write_private", full)
    with pytest.raises(DataFolderError, match=r"certificate\.pem can't be used: .*No space left"):
        own_certificate(tmp_path)
    assert list((tmp_path / "tls").iterdir()) == []
    monkeypatch.undo()
    assert own_certificate(tmp_path).fingerprint.startswith("SHA256:")


@pytest.mark.parametrize("content", [b"", b"\xff", b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n"])
def test_one_that_is_damaged_is_one_line_and_never_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tls").mkdir()
    path = tmp_path / "tls" / "certificate.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(DataFolderError) as refused:
        own_certificate(tmp_path).context()
    assert str(refused.value).startswith(f"{path} can't be used: ")
    assert "every machine has to join anew" in str(refused.value)
    assert path.read_bytes() == content


def test_a_key_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    made = own_certificate(tmp_path)
    made.path.chmod(0o640)
    with pytest.raises(DataFolderError, match=r"others may read its key \(mode 640, chmod 600 would be right\)"):
        own_certificate(tmp_path)
    made.path.chmod(0o600)
    assert own_certificate(tmp_path) == made


def test_a_certificate_without_its_key_does_not_listen(tmp_path: Path) -> None:
    made = own_certificate(tmp_path)
    text = made.path.read_text()
    made.path.write_text(text[text.index("-----BEGIN CERTIFICATE") :])
    again = own_certificate(tmp_path)
    assert again.fingerprint == made.fingerprint == fingerprint(made.path.read_text())
    with pytest.raises(DataFolderError, match="can't be used"):
        again.context()
