"""A checkpoint is complete or it is not one."""

from pathlib import Path
from typing import Any

import pytest

from walras.training import checkpoint
from walras.training.checkpoint import TornCheckpoint
from walras.training.supervisor_link import CheckpointReference


def make(root: Path, step: int, content: bytes = b"weights") -> CheckpointReference:
    partial = checkpoint.partial_folder(root, step)
    partial.mkdir(parents=True)
    (partial / "model.pt").write_bytes(content)
    (partial / "loop.json").write_text("{}")
    return checkpoint.commit_checkpoint(partial, checkpoint.step_folder(root, step), step)


def test_what_was_committed_verifies(tmp_path: Path) -> None:
    """The reference that a commit returns is the one that verification finds, by its digest too."""
    reference = make(tmp_path, 12)
    assert checkpoint.verify_checkpoint(Path(reference.path)) == reference
    assert checkpoint.verify_checkpoint(Path(reference.path), reference.digest) == reference


def test_the_digest_depends_on_content_names_and_sizes_only(tmp_path: Path) -> None:
    """The same files at another place and step have the same digest; another byte has another."""
    first, same = make(tmp_path / "a", 1), make(tmp_path / "b", 2)
    assert first.digest == same.digest != make(tmp_path / "c", 1, b"weightz").digest


@pytest.mark.parametrize(
    "damage", ["no manifest", "cut manifest", "missing file", "short file", "changed byte", "escape"]
)
def test_every_kind_of_damage_is_found(tmp_path: Path, damage: str) -> None:
    """A file that is missing, short or changed, and a manifest that is missing, cut or points outside: torn."""
    folder = Path(make(tmp_path, 3).path)
    listing = folder / checkpoint.MANIFEST
    match damage:
        case "no manifest":
            listing.unlink()
        case "cut manifest":
            listing.write_bytes(listing.read_bytes()[:-20])
        case "missing file":
            (folder / "model.pt").unlink()
        case "short file":
            (folder / "model.pt").write_bytes(b"weight")
        case "changed byte":
            (folder / "model.pt").write_bytes(b"weightX")
        case "escape":
            listing.write_text(listing.read_text().replace("model.pt", "../model.pt"))
    with pytest.raises(TornCheckpoint):
        checkpoint.verify_checkpoint(folder)


def test_another_digest_than_the_recorded_one_is_torn(tmp_path: Path) -> None:
    """A whole checkpoint that is not the one on record is not resumed from."""
    with pytest.raises(TornCheckpoint, match="recorded"):
        checkpoint.verify_checkpoint(Path(make(tmp_path, 3).path), "0" * 64)


def test_a_crash_before_the_manifest_leaves_nothing_that_counts(tmp_path: Path) -> None:
    """Files without a commit are a partial folder, which no listing shows."""
    partial = checkpoint.partial_folder(tmp_path, 5)
    partial.mkdir()
    (partial / "model.pt").write_bytes(b"half")
    make(tmp_path, 4)
    assert [step for step, _ in checkpoint.list_step_folders(tmp_path)] == [4]


def test_a_full_disk_under_torch_is_a_failed_save_like_any_other(tmp_path: Path) -> None:
    """Torch raises a RuntimeError for it, which would end the training; other errors of torch stay what they are."""
    torch = pytest.importorskip("torch")
    (tmp_path / "model.pt").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"model\.pt"):
        checkpoint.write_state(tmp_path, "model", {"weights": torch.zeros(100_000)})

    class Broken:
        def __reduce__(self) -> Any:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        checkpoint.write_state(tmp_path, "other", {"weights": Broken()})
