"""What a machine brings and makes before ranks start: once for each content, bounded, in nobody's way, checked."""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest

from walras.errors import ConfigError, JobSpecError
from walras.job_needs import GitNeed, InputNeed
from walras.spec.job_spec import parse_spec, spec_mapping
from walras.spec.job_travel import needs_of
from workers.preparation import inputs
from workers.preparation.environments import bring_commit
from workers.preparation.folder_cache import CacheBounds, FolderCache
from workers.preparation.inputs import CannotFetch, bring_input

ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


@pytest.fixture
def cache(tmp_path: Path) -> FolderCache:
    return FolderCache(tmp_path / "cache", CacheBounds(10, 10**9))


def fill(content: str, place: Path) -> None:
    (place / "f").write_text(content)


# ------------------------------------------------------------------------------------------------ the cache


def test_an_entry_that_somebody_uses_stays_and_the_least_used_goes(tmp_path: Path) -> None:
    """Another process uses the oldest entry: it is kept beyond the bound for as long as that process lives."""
    folder = tmp_path / "cache"
    use = (
        "import sys; from pathlib import Path; from workers.preparation.folder_cache import *\n"
        "FolderCache(Path(sys.argv[1]), CacheBounds(2, 10**9)).get('a', lambda place: None)\n"
        "print('up', flush=True); sys.stdin.read()"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", use, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert user.stdout is not None
        assert user.stdout.readline() == "up\n"
        # Each in a process of its own, which ends: nobody uses these any more.
        for key in ("b", "c", "d"):
            subprocess.run([sys.executable, "-c", use.replace("'a'", f"'{key}'"), str(folder)], input="", text=True)
        kept = {path.name.removesuffix(".done") for path in folder.glob("*.done")}
        assert kept == {"a", "c", "d"}
    finally:
        user.communicate("")
    subprocess.run([sys.executable, "-c", use.replace("'a'", "'e'"), str(folder)], input="", text=True)
    assert {path.name for path in folder.glob("*.done")} == {"d.done", "e.done"}


def test_what_was_cut_is_made_anew_and_what_failed_leaves_nothing(cache: FolderCache, tmp_path: Path) -> None:
    def fail(place: Path) -> None:
        fill("half", place)
        raise OSError("cut")

    with pytest.raises(OSError, match="cut"):
        cache.get("k", fail)
    assert not (tmp_path / "cache/k").exists()
    (tmp_path / "cache/k").mkdir()
    fill("of a process that was killed", tmp_path / "cache/k")
    assert (cache.get("k", partial(fill, "whole")) / "f").read_text() == "whole"
    assert (cache.get("k", partial(fill, "again")) / "f").read_text() == "whole"


# ------------------------------------------------------------------------------------------------ data


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A folder `web` over HTTP, with the date and size of each file."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    (tmp_path / "web").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "web")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_url_is_fetched_once_for_each_version_and_is_read_only(cache: FolderCache, tmp_path: Path, web: str) -> None:
    need = InputNeed(url=f"{web}/d.bin")
    (tmp_path / "web/d.bin").write_bytes(b"first")
    first = bring_input(cache, "data", need, ENV)
    assert bring_input(cache, "data", need, ENV) == first
    assert first.stat().st_mode & 0o222 == 0
    (tmp_path / "web/d.bin").write_bytes(b"second one")
    second = bring_input(cache, "data", need, ENV)
    assert (first.read_bytes(), second.read_bytes()) == (b"first", b"second one")


def test_what_is_not_there_fails_for_good_and_what_does_not_answer_for_now(cache: FolderCache, web: str) -> None:
    with pytest.raises(ConfigError, match="404"):
        bring_input(cache, "data", InputNeed(url=f"{web}/none"), ENV)
    with pytest.raises(CannotFetch, match="refused"):
        bring_input(cache, "data", InputNeed(url="http://127.0.0.1:1/none"), ENV)


def test_another_hash_than_stated_is_refused_and_not_kept(cache: FolderCache, tmp_path: Path, web: str) -> None:
    (tmp_path / "web/d").write_bytes(b"what is there")
    right = hashlib.sha256(b"what is there").hexdigest()
    with pytest.raises(ConfigError, match="not 0000"):
        bring_input(cache, "data", InputNeed(url=f"{web}/d", sha256="0" * 64), ENV)
    assert bring_input(cache, "data", InputNeed(url=f"{web}/d", sha256=right), ENV).read_bytes() == b"what is there"


def test_a_full_disk_refuses_data_before_it_comes(
    cache: FolderCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "huge").write_bytes(b"x")
    monkeypatch.setattr(inputs, "FREE_LEAST_BYTES", 2**62)
    with pytest.raises(CannotFetch, match="no room"):
        bring_input(cache, "data", InputNeed(url=f"file:{tmp_path}/huge"), ENV)


def test_a_folder_is_copied_without_links_and_pipes_and_a_change_is_noticed(cache: FolderCache, tmp_path: Path) -> None:
    source = tmp_path / "data"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "a").write_text("a")
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    need = InputNeed(url=f"file:{source}")
    first = bring_input(cache, "data", need, ENV)
    assert [path.relative_to(first).as_posix() for path in sorted(first.rglob("*"))] == ["deep", "deep/a"]
    (source / "deep" / "a").write_text("other")
    assert (bring_input(cache, "data", need, ENV) / "deep/a").read_text() == "other"
    with pytest.raises(ConfigError, match="is no regular file"):
        bring_input(cache, "data", InputNeed(url=f"file:{source}/pipe"), ENV)


def test_other_stores_are_read_through_fsspec_by_their_versions(cache: FolderCache) -> None:
    store = fsspec.filesystem("memory")
    for path, content in {"/b/d/one": b"1", "/b/d/deep/two": b"2"}.items():
        store.pipe(path, content)
    folder = bring_input(cache, "data", InputNeed(url="memory://b/d"), ENV)
    assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == {"one": b"1", "two": b"2"}
    store.pipe("/b/d/one", b"changed")
    assert (bring_input(cache, "data", InputNeed(url="memory://b/d"), ENV) / "one").read_bytes() == b"changed"
    for url, words in (("memory://b/none", "there is nothing"), ("other://b/d", "other")):
        with pytest.raises(ConfigError, match=words):
            bring_input(cache, "data", InputNeed(url=url), ENV)


def test_a_command_fills_its_folder_once(cache: FolderCache, tmp_path: Path) -> None:
    need = InputNeed(command=f'echo run >> {tmp_path}/runs; echo hi > "$WALRAS_INPUT/f"')
    for _ in range(2):
        assert (bring_input(cache, "data", need, ENV) / "f").read_text() == "hi\n"
    assert (tmp_path / "runs").read_text() == "run\n"
    with pytest.raises(ConfigError, match="input data: its command ended with code 3"):
        bring_input(cache, "data", InputNeed(command="exit 3"), ENV)


# ------------------------------------------------------------------------------------------------ code, and the spec


def test_a_commit_fills_the_working_folder_and_another_is_refused(cache: FolderCache, tmp_path: Path) -> None:
    repository, env = tmp_path / "repo", ENV | {"GIT_CONFIG_GLOBAL": "/dev/null"}
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True, env=env)
    (repository / "train.py").write_text("print(1)")
    subprocess.run([*git, "add", "."], check=True, env=env)
    subprocess.run([*git, "commit", "--quiet", "-m", "one"], check=True, env=env)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, env=env, capture_output=True, text=True).stdout
    work = tmp_path / "work"
    work.mkdir()
    bring_commit(cache, GitNeed(url=f"file://{repository}", commit=commit.strip()), work, env)
    assert (work / "train.py").read_text() == "print(1)"
    with pytest.raises(ConfigError, match="git fetch"):
        bring_commit(cache, GitNeed(url=f"file://{repository}", commit="0" * 40), work, env)
    with pytest.raises(ConfigError, match="git fetch"):
        bring_commit(cache, GitNeed(url="ext::sh -c touch% /tmp/x", commit="0" * 40), work, env)


def test_short_forms_are_read_and_written_back() -> None:
    spec = parse_spec(
        "run: x\nworkdir: {git: 'https://h/r', commit: " + "a" * 40 + "}\n"
        "inputs: {data: 's3://b/d', model: {command: hf download x}}\npython: requirements.txt\nsetup: make\n"
    )
    assert parse_spec(spec_mapping(spec)) == spec
    needs = needs_of(spec)
    assert (needs.inputs["data"].url, needs.inputs["model"].command) == ("s3://b/d", "hf download x")
    assert needs.python is not None
    assert (needs.python.requirements, needs.setup, needs.git and needs.git.url) == (
        "requirements.txt", "make", "https://h/r",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("inputs: {data: data.tar}", "inputs"),
        ("inputs: {'../x': 'https://h/x'}", "inputs"),
        ("inputs: {data: {url: 'https://h/x', command: y}}", "inputs"),
        ("inputs: {data: 'file:relative'}", "inputs"),
        ("python: ../requirements.txt", "python"),
        ("python: {}", "python"),
        ("workdir: {git: 'https://h/r', commit: main}", "git"),
        ("workdir: {git: '--upload-pack=x', commit: " + "a" * 40 + "}", "git"),
        ("workdir: {git: x}", "workdir"),
        ("outputs: [../x]", "outputs"),
        ("outputs: ['.']", "outputs"),
    ],
)
def test_what_leaves_its_folder_or_says_too_little_is_refused_by_its_name(text: str, field: str) -> None:
    with pytest.raises(JobSpecError) as refused:
        parse_spec(f"run: x\n{text}\n")
    assert refused.value.field.startswith(field), refused.value
