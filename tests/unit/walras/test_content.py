"""Folders by the hash of their content: what is described comes back, and what lies is refused."""

import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from walras.errors import ConfigError
from walras.storage.content import (
    CHUNK_BYTES,
    ContentFile,
    ContentTree,
    DamagedContent,
    TreeDraft,
    check_sizes,
    chunk_name,
    draft_of,
    find_chunks,
    hash_folder,
    pack_chunk,
    unpack_chunk,
)


def filled(folder: Path, files: dict[str, bytes]) -> ContentTree:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return hash_folder(folder, files)


def write_tree(tree: ContentTree, folder: Path, chunks: dict[str, bytes]) -> None:
    draft = TreeDraft(tree, folder)
    for name in draft.missing:
        draft.put(name, chunks[name])
    draft.finish()


def test_a_folder_comes_back_as_it_was(tmp_path: Path) -> None:
    files = {"a/b/train.py": b"print()", "empty": b"", "weights": os.urandom(CHUNK_BYTES + 17)}
    tree = filled(tmp_path / "from", files)
    (tmp_path / "from" / "a/b/train.py").chmod(0o755)
    tree = hash_folder(tmp_path / "from", files)
    chunks = dict(find_chunks(tmp_path / "from", tree, set(tree.chunk_sizes())))
    assert set(chunks) == set(tree.chunk_sizes())
    write_tree(tree, tmp_path / "to", chunks)
    assert {path: (tmp_path / "to" / path).read_bytes() for path in files} == files
    assert os.access(tmp_path / "to" / "a/b/train.py", os.X_OK)
    assert not os.access(tmp_path / "to" / "weights", os.X_OK)
    assert hash_folder(tmp_path / "to", files).name == tree.name


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../up", "a/../../up", "./a", "a//b", "a/", "", "a\0b", "..", "x" * 1025]
)
def test_a_path_that_leaves_the_folder_is_no_file_of_a_tree(path: str) -> None:
    with pytest.raises(ValidationError):
        ContentFile(path=path, size=0)


def test_a_tree_with_a_file_that_is_a_folder_too_is_refused() -> None:
    with pytest.raises(ValidationError, match="file and a folder"):
        ContentTree(files=(ContentFile(path="a", size=0), ContentFile(path="a/b", size=0)))
    with pytest.raises(ValidationError, match="twice"):
        ContentTree(files=(ContentFile(path="a", size=0), ContentFile(path="a", size=0)))


def test_a_file_has_as_many_chunks_as_its_size_needs() -> None:
    with pytest.raises(ValidationError, match="chunks cannot hold"):
        ContentFile(path="a", size=CHUNK_BYTES + 1, chunks=("0" * 64,))


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/passwd"), os.mkfifo, lambda path: path.mkdir()])
def test_only_regular_files_are_described(tmp_path: Path, make: object) -> None:
    make(tmp_path / "odd")  # type: ignore[operator]
    with pytest.raises(ConfigError, match="no regular file"):
        hash_folder(tmp_path, ["odd"])


def test_a_chunk_with_other_bytes_leaves_no_folder(tmp_path: Path) -> None:
    tree = filled(tmp_path / "from", {"a": b"one", "b": b"two"})
    with pytest.raises(DamagedContent):
        write_tree(tree, tmp_path / "to", dict.fromkeys(tree.chunk_sizes(), b"two"))
    assert not (tmp_path / "to").exists()


def test_a_fetch_that_was_cut_asks_for_what_is_missing_alone(tmp_path: Path) -> None:
    """What a draft has is hashed again: a chunk that was damaged meanwhile is asked for, and so is another tree."""
    whole, other = os.urandom(2 * CHUNK_BYTES + 5), os.urandom(9)
    tree = filled(tmp_path / "from", {"a": whole, "b": whole[:CHUNK_BYTES], "c": other})
    chunks = dict(find_chunks(tmp_path / "from", tree, set(tree.chunk_sizes())))
    first, second, third, last = (chunk_name(each) for each in (*pieces(whole), other))
    draft = TreeDraft(tree, tmp_path / "to")
    assert draft.missing == {first, second, third, last}
    for name in (first, third, last):
        draft.put(name, chunks[name])
    (draft_of(tmp_path / "to") / "files/c").write_bytes(b"damaged!!")
    draft = TreeDraft(tree, tmp_path / "to")
    assert draft.missing == {second, last}
    for name in draft.missing:
        draft.put(name, chunks[name])
    draft.finish()
    assert hash_folder(tmp_path / "to", ["a", "b", "c"]).name == tree.name
    assert {path.name for path in tmp_path.iterdir()} == {"from", "to"}
    half = TreeDraft(tree, tmp_path / "again")
    half.put(first, chunks[first])
    changed = filled(tmp_path / "changed", {"a": whole[:CHUNK_BYTES]})
    assert TreeDraft(changed, tmp_path / "again").missing == {first}


@pytest.mark.parametrize("planted", ["files", "draft", "file"])
def test_a_draft_that_leads_elsewhere_is_begun_anew(tmp_path: Path, planted: str) -> None:
    """Ranks can write where checkpoints are fetched to; what is fetched must not follow links that they left."""
    tree = filled(tmp_path / "from", {"authorized_keys": b"stranger"})
    victim = filled_folder(tmp_path / "victim")
    draft = draft_of(tmp_path / "to")
    if planted == "draft":
        (victim / "tree").write_text(tree.name)
        (victim / "files").mkdir()
        draft.symlink_to(victim)
    else:
        draft.mkdir()
        (draft / "tree").write_text(tree.name)
        if planted == "files":
            (draft / "files").symlink_to(victim)
        else:
            (draft / "files").mkdir()
            (draft / "files/authorized_keys").symlink_to(victim / "authorized_keys")
    write_tree(tree, tmp_path / "to", {chunk_name(b"stranger"): b"stranger"})
    assert (victim / "authorized_keys").read_bytes() == b"mine"
    assert not (victim / "files/authorized_keys").exists()
    assert (tmp_path / "to/authorized_keys").read_bytes() == b"stranger"
    assert not (tmp_path / "to").is_symlink()


def filled_folder(folder: Path) -> Path:
    filled(folder, {"authorized_keys": b"mine"})
    return folder


def pieces(content: bytes) -> list[bytes]:
    return [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]


def test_a_file_that_changes_while_it_is_sent_is_named(tmp_path: Path) -> None:
    tree = filled(tmp_path, {"a": b"one"})
    (tmp_path / "a").write_bytes(b"other")
    with pytest.raises(DamagedContent, match="changed while it was read"):
        list(find_chunks(tmp_path, tree, set(tree.chunk_sizes())))


def test_a_file_that_grows_while_it_is_sent_travels_as_it_was(tmp_path: Path) -> None:
    """A log that something appends to lies in many folders with code."""
    content = b"x" * (CHUNK_BYTES + 3)
    tree = filled(tmp_path, {"train.log": content})
    with open(tmp_path / "train.log", "ab") as log:
        log.write(b"more")
    assert dict(find_chunks(tmp_path, tree, set(tree.chunk_sizes()))) == {chunk_name(e): e for e in pieces(content)}


def test_too_large_a_folder_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    tree = filled(tmp_path, {"data.bin": b"x" * 5000, "small.py": b"y"})
    check_sizes({file.path: file.size for file in tree.files}, 6000, "the work folder")
    with pytest.raises(ConfigError, match=r"data\.bin .*small\.py") as refused:
        check_sizes({file.path: file.size for file in tree.files}, 4000, "the work folder")
    assert "walrasignore" in refused.value.fix


@given(st.binary(max_size=20_000))
def test_chunks_come_through_packing(content: bytes) -> None:
    assert unpack_chunk(*pack_chunk(content)) == content


def test_a_bomb_is_refused_before_it_unpacks() -> None:
    with pytest.raises(DamagedContent, match="more than"):
        unpack_chunk(zlib.compress(bytes(16 * CHUNK_BYTES), 1), "zlib")


@pytest.mark.parametrize(
    ("body", "encoding"), [(b"no zlib", "zlib"), (b"x", "br"), (b"x" * (CHUNK_BYTES + 1), "plain")]
)
def test_what_packing_never_makes_is_refused(body: bytes, encoding: str) -> None:
    with pytest.raises(DamagedContent):
        unpack_chunk(body, encoding)


def test_the_name_of_a_tree_is_the_hash_of_what_is_stored(tmp_path: Path) -> None:
    tree = filled(tmp_path, {"a": b"one"})
    assert chunk_name(tree.encoded()) == tree.name
    assert ContentTree.model_validate_json(tree.encoded()) == tree
