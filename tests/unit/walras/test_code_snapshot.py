"""A folder that cannot travel is refused by its name, at once, whatever is in it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from walras.errors import ConfigError
from walras.storage.code_snapshot import keep_out, snapshot_folder


def bytes_read() -> int:
    """By this process, ever."""
    return int(Path("/proc/self/io").read_text().splitlines()[0].removeprefix("rchar: "))


def test_a_folder_of_two_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "data.bin", "wb") as file:
        file.truncate(2 * 1000**3)
    (tmp_path / "train.py").write_text("print()")
    before = bytes_read()
    with pytest.raises(ConfigError, match=r"data\.bin \(2,000\.0 MB\)") as told:
        snapshot_folder(tmp_path)
    assert bytes_read() - before < 1_000_000
    assert ".walrasignore" in told.value.fix


def test_results_that_were_fetched_do_not_travel_as_code(tmp_path: Path) -> None:
    """Unless they bring rules of their own."""
    for name in ("job-1", "job-2"):
        (tmp_path / name / "out").mkdir(parents=True)
        (tmp_path / name / "out" / "model").write_text(name)
    (tmp_path / "job-2" / ".walrasignore").write_text("*.log\n")
    (tmp_path / "train.py").touch()
    assert (keep_out(tmp_path / "job-1"), keep_out(tmp_path / "job-2")) == (True, False)
    paths = [file.path for file in snapshot_folder(tmp_path).files]
    assert paths == ["job-2/.walrasignore", "job-2/out/model", "train.py"]
    with pytest.raises(ConfigError, match=r"job-1/\.walrasignore leaves out all"):
        snapshot_folder(tmp_path / "job-1")


def test_folders_in_folders_without_end_are_refused_in_words(tmp_path: Path) -> None:
    place = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    try:
        with pytest.raises(ConfigError, match="characters"):
            snapshot_folder(tmp_path)
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_what_is_ignored_may_be_anything(tmp_path: Path) -> None:
    (tmp_path / ".walrasignore").write_text("pipe\nlink\n")
    (tmp_path / "link").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "train.py").write_text("print()")
    assert [file.path for file in snapshot_folder(tmp_path).files] == [".walrasignore", "train.py"]
    (tmp_path / ".walrasignore").write_text("pipe\n")
    with pytest.raises(ConfigError, match="link is no regular file"):
        snapshot_folder(tmp_path)


def test_keys_of_people_and_of_the_cluster_stay_where_they_are(tmp_path: Path) -> None:
    """Who submits beside a server's data, or beside their own keys, sends neither; an ignore file lets keys travel."""
    private = (".ssh/id_ed25519", ".aws/credentials", ".netrc", "sub/.kube/config", "walras.token", "sub/admin.token")
    ours = (
        "d/secret.key", "d/join.token", "d/walras.db", "pg/secret.key", "pg/join.token", "a/agent.sqlite",
        "a/agent.lock",
    )  # fmt: skip
    for path in (*private, *ours, "train.py", "x/secret.key"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("k")
    assert [file.path for file in snapshot_folder(tmp_path).files] == ["train.py", "x/secret.key"]
    (tmp_path / ".walrasignore").write_text("!.aws/\n!d/\n")
    assert ".aws/credentials" in (paths := [file.path for file in snapshot_folder(tmp_path).files])
    assert not any(path.startswith("d/") for path in paths)
    with pytest.raises(ConfigError, match="the cluster's keys"):
        snapshot_folder(tmp_path / "d")


def test_environments_of_python_stay_where_they_are(tmp_path: Path) -> None:
    """By any name, venv's with its links and conda's: their paths are those of this machine."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "myenv"], check=True)
    (tmp_path / "deep/condaenv/conda-meta").mkdir(parents=True)
    (tmp_path / "deep/condaenv/python").symlink_to(sys.executable)
    (tmp_path / "train.py").write_text("print()")
    assert [file.path for file in snapshot_folder(tmp_path).files] == ["train.py"]


def test_the_home_folder_of_a_person_does_not_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home of a container that holds nothing else does."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.py").write_text("print()")
    assert len(snapshot_folder(tmp_path).files) == 1
    (tmp_path / ".bash_history").touch()
    with pytest.raises(ConfigError, match="your home folder") as told:
        snapshot_folder(tmp_path)
    assert "a folder of its own" in told.value.fix
    with pytest.raises(ConfigError, match="is the root"):
        snapshot_folder(Path("/"))
    (tmp_path / "work").mkdir()
    (tmp_path / "work/train.py").write_text("print()")
    assert len(snapshot_folder(tmp_path / "work").files) == 1


def test_all_that_cannot_travel_is_named_in_one_answer(tmp_path: Path) -> None:
    """Links, names that are not UTF-8, pipes: each with its reason, so that nobody submits once for each of them."""
    (tmp_path / "fine.py").write_text("x")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "link").symlink_to("../fine.py")
    (tmp_path / "other").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.bin")).write_text("x")
    with pytest.raises(ConfigError) as refused:
        snapshot_folder(tmp_path)
    for told in (
        "bad\ufffd.bin has a name that is not UTF-8",
        "inner/link is no regular file but a link to ../fine.py",
        "other is no regular file but a link to /etc",
        "pipe is no regular file",
    ):
        assert told in str(refused.value)
    assert ".walrasignore" in str(refused.value.fix)
    (tmp_path / ".walrasignore").write_text("link\nother\npipe\nbad*\n")
    assert [file.path for file in snapshot_folder(tmp_path).files] == [".walrasignore", "fine.py"]
