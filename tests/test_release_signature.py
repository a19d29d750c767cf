"""A release's bill of materials is signed by one key for one purpose, and names the released files by their hashes."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.software_bill import NAMESPACE, sign_file, with_released

ROOT = Path(__file__).resolve().parents[1]
needs_openssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="NO SSH-KEYGEN: install openssh-client")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A fresh key, whose public half is the only line of `signers`."""
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    (tmp_path / "signers").write_text(f"release {path.with_suffix('.pub').read_text()}")
    return path


def is_valid(bill: Path, *, namespace: str = NAMESPACE) -> bool:
    """Whether the command that docs/upgrading.md gives accepts the bill."""
    written = re.search(r"^    (ssh-keygen -Y verify .*)$", (ROOT / "docs" / "upgrading.md").read_text(), re.MULTILINE)
    assert written is not None
    command = written[1].split(" < ")[0].replace("walras-0.1.0.cdx.json", bill.name).replace(NAMESPACE, namespace)
    with bill.open("rb") as content:
        done = subprocess.run(command.split(), stdin=content, cwd=bill.parent, capture_output=True, timeout=60)
    return done.returncode == 0


@needs_openssh
def test_the_documented_command_accepts_the_bill_and_nothing_else(key: Path, tmp_path: Path) -> None:
    """Not one letter may change, and a signature of the same key for something else does not count."""
    bill = tmp_path / "walras.cdx.json"
    bill.write_text('{"bomFormat": "CycloneDX"}\n')
    assert sign_file(bill, key) == tmp_path / "walras.cdx.json.sig"
    assert is_valid(bill)
    assert not is_valid(bill, namespace="file")
    bill.write_text('{"bomFormat": "CycloneDx"}\n')
    assert not is_valid(bill)
    sign_file(bill, key)
    assert is_valid(bill)


@needs_openssh
def test_another_key_is_not_accepted_and_a_missing_one_is_named(key: Path, tmp_path: Path) -> None:
    """And no signature of before is left where signing fails."""
    bill = tmp_path / "walras.cdx.json"
    bill.write_text("{}\n")
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    signature = sign_file(bill, other)
    assert not is_valid(bill)
    with pytest.raises(SystemExit, match=r"was not signed with .*nowhere"):
        sign_file(bill, tmp_path / "nowhere")
    assert not signature.exists()


def test_the_bill_names_the_released_files(tmp_path: Path) -> None:
    """By name and SHA-256; without files it stays as it was."""
    wheel = tmp_path / "walras-1-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    bill = {"metadata": {"component": {"name": "walras", "externalReferences": [{"type": "website", "url": "x"}]}}}
    assert with_released(bill, []) == bill
    references = with_released(bill, [wheel])["metadata"]["component"]["externalReferences"]
    assert [each["url"] for each in references] == ["x", wheel.name]
    assert references[1]["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"wheel").hexdigest()}]
    assert len(bill["metadata"]["component"]["externalReferences"]) == 1
