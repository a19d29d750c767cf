"""What a machine brings and makes before ranks start: once for each content, bounded, in nobody's way, checked."""

import contextlib
import errno
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest

from walras.errors import ConfigError, JobSpecError
from walras.job_needs import GitNeed, InputNeed, JobNeeds, PythonNeed
from walras.spec.job_groups import needs_of
from walras.spec.job_spec import parse_spec, spec_mapping
from workers.preparation import inputs
from workers.preparation.environments import bring_commit, bring_python, run_setup
from workers.preparation.folder_cache import CacheBounds, FolderCache, NoRoom
from workers.preparation.inputs import CannotFetch, bring_input, tool_failed
from workers.preparation.launcher import prepare, write_needs

ADA, BOB = "research/ada", "sales/bob"
ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


@pytest.fixture
def cache(tmp_path: Path) -> FolderCache:
    return FolderCache(tmp_path / "cache", CacheBounds(10, 10**9))


def fill(content: str, place: Path) -> None:
    (place / "f").write_text(content)


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


@contextlib.contextmanager
def served(handler: Any) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A folder `web` over HTTP, with the date and size of each file."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    (tmp_path / "web").mkdir()
    with served(partial(Quiet, directory=str(tmp_path / "web"))) as url:
        yield url


def test_a_url_is_fetched_once_for_each_version_and_is_read_only(cache: FolderCache, tmp_path: Path, web: str) -> None:
    """Another hash is refused; what is not there fails for good, what does not answer for now."""
    need = InputNeed(url=f"{web}/d.bin")
    (tmp_path / "web/d.bin").write_bytes(b"first")
    first = bring_input(cache, "data", need, ENV, ADA)
    assert bring_input(cache, "data", need, ENV, ADA) == first
    assert first.stat().st_mode & 0o222 == 0
    (tmp_path / "web/d.bin").write_bytes(b"second one")
    second = bring_input(cache, "data", need, ENV, ADA)
    assert (first.read_bytes(), second.read_bytes()) == (b"first", b"second one")
    right = need.model_copy(update={"sha256": hashlib.sha256(b"second one").hexdigest()})
    for wrong, refused, words in (
        (need.model_copy(update={"sha256": "0" * 64}), ConfigError, "not 0000"),
        (InputNeed(url=f"{web}/none"), ConfigError, "404"),
        (InputNeed(url="http://127.0.0.1:1/none"), CannotFetch, "refused"),
    ):
        with pytest.raises(refused, match=words):
            bring_input(cache, "data", wrong, ENV, ADA)
    assert bring_input(cache, "data", right, ENV, ADA).read_bytes() == b"second one"


@pytest.mark.parametrize("said", ["Transfer-Encoding: chunked\r\n\r\nff\r\nhalf", "Content-Length: 9\r\n\r\nhalf"])
def test_data_that_a_connection_cut_are_fetched_again(cache: FolderCache, said: str) -> None:
    class Cutting(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nETag: 1\r\n\r\n")

        def do_GET(self) -> None:
            self.wfile.write(f"HTTP/1.1 200 OK\r\n{said}".encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with served(Cutting) as web, pytest.raises(CannotFetch, match=r"input data|was cut"):
        bring_input(cache, "data", InputNeed(url=f"{web}/d.bin"), ENV, ADA)


@pytest.mark.parametrize("status", [403, 405, 501])
def test_a_url_that_is_only_for_reading_is_read(cache: FolderCache, status: int) -> None:
    """A link that a store has signed for GET refuses HEAD; what it refuses altogether stays refused."""
    tags = ["1"]

    class Signed(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(status)

        def do_GET(self) -> None:
            if self.path == "/none":
                self.send_error(403)
                return
            body = f"version {tags[0]}".encode()
            self.send_response(200)
            self.send_header("ETag", tags[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with served(Signed) as web:
        need = InputNeed(url=f"{web}/d.bin?signature=x")
        first = bring_input(cache, "data", need, ENV, ADA)
        assert bring_input(cache, "data", need, ENV, ADA) == first
        tags[0] = "2"
        assert bring_input(cache, "data", need, ENV, ADA).read_bytes() == b"version 2"
        with pytest.raises(ConfigError, match="403"):
            bring_input(cache, "data", InputNeed(url=f"{web}/none"), ENV, ADA)


def test_data_that_a_hash_proves_are_used_while_their_server_is_away(
    cache: FolderCache, tmp_path: Path, web: str
) -> None:
    (tmp_path / "web/d.bin").write_bytes(b"proved")
    digest = hashlib.sha256(b"proved").hexdigest()
    there, away = (InputNeed(url=f"{base}/d.bin", sha256=digest) for base in (web, "http://127.0.0.1:1"))
    first = bring_input(cache, "data", there, ENV, ADA)
    (tmp_path / "web/d.bin").unlink()
    assert bring_input(cache, "data", there, ENV, ADA) == first
    with pytest.raises(CannotFetch):
        bring_input(cache, "data", away, ENV, ADA)


def test_an_index_that_does_not_answer_fails_for_now(cache: FolderCache, tmp_path: Path) -> None:
    env = ENV | {
        "UV_DEFAULT_INDEX": "http://127.0.0.1:1/",
        "UV_HTTP_RETRIES": "0",
        "UV_CACHE_DIR": str(tmp_path / "uv"),
    }
    with pytest.raises(CannotFetch, match="ended with code"):
        bring_python(cache, PythonNeed(packages=["walras-none"]), "", "", ADA, tmp_path, env)


def test_a_full_disk_refuses_data_before_it_comes(
    cache: FolderCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "huge").write_bytes(b"x")
    monkeypatch.setattr(inputs, "FREE_LEAST_BYTES", 2**62)
    with pytest.raises(NoRoom, match="No space left on device: input data"):
        bring_input(cache, "data", InputNeed(url=f"file:{tmp_path}/huge"), ENV, ADA)


def test_a_full_disk_makes_room_of_what_nobody_uses(tmp_path: Path) -> None:
    """In all caches, and of fetches that were killed; a bound in bytes alone would leave a small disk full for ever."""
    caches = tmp_path / "prepared"
    for name, key in (("inputs", "old"), ("python", "idle"), ("inputs", "killed")):
        make = (
            "import sys; from pathlib import Path; from workers.preparation.folder_cache import *\n"
            f"FolderCache(Path(sys.argv[1]), CacheBounds(9, 10**9)).get('{key}', lambda place: None)"
        )
        subprocess.run([sys.executable, "-c", make, str(caches / name)], check=True)
    (caches / "inputs/killed.done").unlink()
    cache, tried = FolderCache(caches / "inputs", CacheBounds(9, 10**9)), [0]
    cache.get("used", partial(fill, "here"))

    def fill_disk(place: Path) -> None:
        tried[0] += 1
        if any((caches / each).exists() for each in ("inputs/old", "inputs/killed", "python/idle")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fill("new", place)

    assert (cache.get("new", fill_disk) / "f").read_text() == "new"
    assert (tried[0], (caches / "inputs/used/f").read_text()) == (2, "here")

    def refuse(place: Path) -> None:
        tried[0] += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        cache.get("other", refuse)
    assert tried[0] == 3  # nothing more could go
    # A program that makes an environment says it in words of its own.
    assert "No space left" in str(
        tool_failed("uv ended with code 2", "error: os error 28: No space left on device", "")
    )


def test_a_folder_is_copied_without_links_and_pipes_and_a_change_is_noticed(cache: FolderCache, tmp_path: Path) -> None:
    source = tmp_path / "data"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "a").write_text("a")
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    need = InputNeed(url=f"file:{source}")
    first = bring_input(cache, "data", need, ENV, ADA)
    assert [path.relative_to(first).as_posix() for path in sorted(first.rglob("*"))] == ["deep", "deep/a"]
    (source / "deep" / "a").write_text("other")
    assert (bring_input(cache, "data", need, ENV, ADA) / "deep/a").read_text() == "other"
    with pytest.raises(ConfigError, match="is no regular file"):
        bring_input(cache, "data", InputNeed(url=f"file:{source}/pipe"), ENV, ADA)


def test_other_stores_are_read_through_fsspec_by_their_versions(cache: FolderCache) -> None:
    store = fsspec.filesystem("memory")
    for path, content in {"/b/d/one": b"1", "/b/d/deep/two": b"2"}.items():
        store.pipe(path, content)
    folder = bring_input(cache, "data", InputNeed(url="memory://b/d"), ENV, ADA)
    assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == {"one": b"1", "two": b"2"}
    store.pipe("/b/d/one", b"changed")
    assert (bring_input(cache, "data", InputNeed(url="memory://b/d"), ENV, ADA) / "one").read_bytes() == b"changed"
    for url, words in (("memory://b/none", "there is nothing"), ("other://b/d", "other")):
        with pytest.raises(ConfigError, match=words):
            bring_input(cache, "data", InputNeed(url=url), ENV, ADA)


def test_a_command_fills_its_folder_once(cache: FolderCache, tmp_path: Path) -> None:
    need = InputNeed(command=f'echo run >> {tmp_path}/runs; echo hi > "$WALRAS_INPUT/f"')
    for _ in range(2):
        assert (bring_input(cache, "data", need, ENV, ADA) / "f").read_text() == "hi\n"
    assert (tmp_path / "runs").read_text() == "run\n"
    with pytest.raises(ConfigError, match="input data: its command ended with code 3"):
        bring_input(cache, "data", InputNeed(command="exit 3"), ENV, ADA)


def test_what_was_fetched_with_anothers_rights_is_neither_read_nor_changed(cache: FolderCache, tmp_path: Path) -> None:
    """Bob states ada's very words: he gets what his own secret opens. What a hash proves is fetched once for both."""
    need = InputNeed(command='echo "$TOKEN" > "$WALRAS_INPUT/f"')
    hers = bring_input(cache, "data", need, ENV | {"TOKEN": "of ada"}, ADA)
    assert (bring_input(cache, "data", need, ENV | {"TOKEN": "of bob"}, BOB) / "f").read_text() == "of bob\n"
    assert (hers / "f").read_text() == "of ada\n"
    (tmp_path / "d").write_bytes(b"public")
    public = InputNeed(url=f"file:{tmp_path}/d", sha256=hashlib.sha256(b"public").hexdigest())
    assert bring_input(cache, "data", public, ENV, ADA) == bring_input(cache, "data", public, ENV, BOB)


def test_setup_is_run_for_each_owner_and_leaves_what_is_only_read(cache: FolderCache, tmp_path: Path) -> None:
    setup, inside = 'echo "$TOKEN" > "$WALRAS_SETUP/f"', lambda argv, told: argv
    made = [run_setup(cache, setup, [owner], tmp_path, ENV | {"TOKEN": owner}, inside) / "f" for owner in (ADA, BOB)]
    assert [path.read_text().strip() for path in made] == [ADA, BOB]
    assert made[0].stat().st_mode & 0o222 == 0


@pytest.mark.parametrize("change", ["rewrite", "add", "remove"])
def test_an_entry_that_was_changed_is_made_anew(cache: FolderCache, change: str) -> None:
    """Even where the size and the date are as before; the bytecode that Python adds is no change."""
    place = cache.get("k", partial(fill, "whole"))
    (place / "__pycache__").mkdir()
    (place / "__pycache__/f.pyc").write_bytes(b"x")
    assert (cache.get("k", partial(fill, "again")) / "f").read_text() == "whole"
    before = (place / "f").stat()
    if change == "remove":
        (place / "f").unlink()
    else:
        (place / ("f" if change == "rewrite" else "g")).write_text("bogus")
        os.utime(place / "f", ns=(before.st_atime_ns, before.st_mtime_ns))
    made = cache.get("k", partial(fill, "again"))
    assert {path.name: path.read_text() for path in made.iterdir()} == {"f": "again"}


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
    bring_commit(cache, GitNeed(url=f"file://{repository}", commit=commit.strip()), ADA, work, env)
    assert (work / "train.py").read_text() == "print(1)"
    with pytest.raises(ConfigError, match="git fetch"):
        bring_commit(cache, GitNeed(url=f"file://{repository}", commit="0" * 40), ADA, work, env)
    with pytest.raises(ConfigError, match="git fetch"):
        bring_commit(cache, GitNeed(url="ext::sh -c touch% /tmp/x", commit="0" * 40), ADA, work, env)


def test_short_forms_are_read_and_written_back() -> None:
    spec = parse_spec(
        "run: x\nworkdir: {git: 'https://h/r', commit: " + "a" * 40 + "}\n"
        "inputs: {data: 's3://b/d', model: {command: hf download x}}\npython: requirements.txt\nsetup: make\n"
    )
    assert parse_spec(spec_mapping(spec)) == spec
    needs = needs_of(spec)
    assert (needs.inputs["data"].url, needs.inputs["model"].command) == ("s3://b/d", "hf download x")
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


@pytest.mark.parametrize(
    ("needs", "name"),
    [
        ({"setup": 'touch "$WALRAS_SETUP/f"'}, "WALRAS_SETUP"),
        ({"python": PythonNeed(requirements="none.txt")}, "VIRTUAL_ENV"),
    ],
)
def test_what_a_job_prepares_is_its_owners(tmp_path: Path, needs: dict[str, Any], name: str) -> None:
    """The same words in a job of another project make another folder; those of the same owner find the first."""
    made = []
    for number, owner in enumerate((ADA, BOB, ADA)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "none.txt").touch()
        write_needs(folder, JobNeeds(owner=owner, **needs))
        made.append(prepare(tmp_path / "caches", folder, folder, ENV)[0][name])
    assert made[0] == made[2] != made[1]
