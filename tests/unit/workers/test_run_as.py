"""Ranks as users: who may run as whom is said in words, and root's hands touch nothing that a rank may not."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.agent_commands import a_start
from tests.support.attempts import SupervisedAttempt
from walras.contract import EXIT_NOT_PREPARED
from walras.errors import ConfigError, UserError
from walras.job_needs import InputNeed, JobNeeds
from walras.storage.content import ContentTree
from walras.training.checkpoint import MANIFEST, TornCheckpoint, _digest
from walras.wire import Manifest, StartCommand
from workers import accounts
from workers.accounts import become, files_as, find_account
from workers.agent import run_as as run_as_module
from workers.agent.checkpoints import _described, localized
from workers.agent.launch import AgentMachine, SupervisorStarter, make_attempt_plan
from workers.agent.outputs import copy_outputs
from workers.agent.remote_sessions import AttemptPlace
from workers.agent.run_as import OWN_FOLDER, RunAs, account_caches, load_run_as, open_the_way
from workers.devices import Accelerators, Host
from workers.preparation.launcher import ENVIRONMENT_FILE, prepared_argv

NOBODY = pwd.getpwnam("nobody")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can lend and give up its rights")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every account can reach, as pytest's own are not."""
    with TemporaryDirectory(prefix="walras-run-as-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def start_command(**changes: Any) -> StartCommand:
    return a_start(Path("/nonexistent"), "pass", **changes)


def words(run_as: RunAs, user: str) -> str:
    with pytest.raises(UserError) as caught:
        run_as.account_of(user)
    return str(caught.value)


def test_a_user_runs_as_the_account_that_the_machine_gives_him(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its groups and what a login sets; who has none, or root's by any name, is refused in words."""
    account = RunAs({"ada@x": "nobody"}, "users.yaml").account_of("ada@x")
    assert (account.uid, account.gid) == (NOBODY.pw_uid, NOBODY.pw_gid)
    assert NOBODY.pw_gid in account.groups
    assert account.environment["HOME"] == NOBODY.pw_dir
    assert account.environment["USER"] == account.environment["LOGNAME"] == "nobody"
    run_as = RunAs({"bob": "no-such-account", "eve": "root"}, "/etc/users.yaml")
    assert words(run_as, "ada") == "/etc/users.yaml on this machine gives user 'ada' no account to run as"
    assert words(run_as, "bob") == "user 'bob' is to run as 'no-such-account', which is no account of this machine"
    assert "which is root" in words(run_as, "eve")
    assert "the server does not say who submitted the job" in words(run_as, "")
    root = replace(find_account("root"), name="toor")
    monkeypatch.setattr(run_as_module, "find_account", lambda _: root)
    assert "which is root" in words(RunAs({"ada": "toor"}, "f"), "ada")


@needs_root
def test_a_job_that_the_account_cannot_prepare_is_refused(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks prepare themselves, by the agent's own Python, which may be closed to them."""
    run_as = RunAs({"ada": "nobody"}, "f")
    assert run_as.refusal(start_command(user="ada")) == ""
    assert "no account" in run_as.refusal(start_command(user="bob"))
    needs = JobNeeds(image="docker.io/library/python:3.11")
    python = open_path / "python"
    python.touch(mode=0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    assert f"prepared by {python}, which nobody cannot read" in run_as.refusal(start_command(user="ada", needs=needs))
    python.chmod(0o755)
    assert run_as.refusal(start_command(user="ada", needs=needs)) == ""


def prepared_rank(whole: Path, name: str, needs: JobNeeds, argv: list[str]) -> subprocess.CompletedProcess[str]:
    """A rank of a job that is prepared first, started as the account as its supervisor would."""
    run_as, command = RunAs({"ada": name}, "f"), start_command(user="ada", needs=needs)
    account, folder = run_as.account_of("ada"), whole / "attempts" / f"{name}-{len(list(whole.glob('attempts/*')))}"
    (folder / "work").mkdir(parents=True)
    for place in (whole, whole / "attempts", whole / "accounts"):
        place.mkdir(exist_ok=True)
        place.chmod(0o711)
    run_as.hand_over(command, folder, whole)
    return subprocess.run(
        prepared_argv(folder / OWN_FOLDER, account_caches(whole, account), needs, argv),
        cwd=folder / "work", env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: become(account.uid, account.gid, account.groups),
    )  # fmt: skip


@pytest.fixture
def open_python(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python that accounts can run, with the packages of this one; tests may run by one in root's home."""
    if not Path("/usr/bin/python3").exists():
        pytest.skip("NOT RUN: no Python that every account can reach")
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", open_path / "venv"], check=True)
    (inner,) = open_path.glob("venv/lib/python3*/site-packages")
    (inner / "ours.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    monkeypatch.setattr(sys, "executable", str(open_path / "venv" / "bin" / "python"))
    return open_path


@needs_root
@pytest.mark.slow
def test_a_job_is_prepared_with_the_rights_of_its_account(open_python: Path) -> None:
    """Once for each account of a machine, in folders that are its own; what it cannot read it does not get."""
    whole, data, secret = open_python / "agent", open_python / "data.txt", open_python / "secret.txt"
    data.write_text("numbers")
    secret.write_text("root's")
    secret.chmod(0o600)
    needs = JobNeeds(
        inputs={"d": InputNeed(url=f"file://{data}")},
        setup='echo "made by $(id -un)" > "$WALRAS_SETUP/f"; echo setup runs >&2',
    )
    show = ["bash", "-c", 'cat "$WALRAS_SETUP/f" "$WALRAS_INPUTS/d"']
    for name, is_first in (("nobody", True), ("nobody", False), ("daemon", True)):
        done = prepared_rank(whole, name, needs, show)
        assert (done.stdout, done.returncode) == (f"made by {name}\nnumbers", 0), done.stderr
        assert ("\nsetup runs" in done.stderr) == is_first
    for name in ("nobody", "daemon"):
        uid, caches = pwd.getpwnam(name).pw_uid, whole / "accounts" / str(pwd.getpwnam(name).pw_uid)
        assert {path.lstat().st_uid for path in (caches, *caches.rglob("*"))} == {uid}
        assert caches.stat().st_mode & 0o777 == 0o700
    refused = prepared_rank(whole, "nobody", JobNeeds(inputs={"s": InputNeed(url=f"file://{secret}")}), ["true"])
    assert refused.returncode == EXIT_NOT_PREPARED
    assert "Permission denied" in refused.stderr


@needs_root
def test_a_hostile_job_reaches_nothing_through_what_it_prepared(open_path: Path) -> None:
    """A link in the place of what root reads gives nothing, and caches that are not the account's are not taken."""
    run_as, needs, secret = RunAs({"ada": "nobody"}, "f"), JobNeeds(setup="true"), open_path / "secret.json"
    secret.write_text('{"SECRET": "root\'s"}')
    secret.chmod(0o600)
    folder, accounts_here = open_path / "7-1", open_path / "accounts"
    (folder / "work").mkdir(parents=True)
    accounts_here.mkdir(mode=0o711)
    command = start_command(user="ada", needs=needs)
    run_as.hand_over(command, folder, open_path)
    own = folder / OWN_FOLDER
    assert {path.lstat().st_uid for path in (own, *own.iterdir())} == {NOBODY.pw_uid}
    plan = SimpleNamespace(uid=NOBODY.pw_uid, gid=NOBODY.pw_gid, env={}, first_rank=0, master_port=1)
    place = AttemptPlace(folder, plan)  # type: ignore[arg-type]
    with files_as(NOBODY.pw_uid, NOBODY.pw_gid):
        (own / ENVIRONMENT_FILE).write_text('{"A": "b"}')
    assert place.environment()["A"] == "b"
    (own / ENVIRONMENT_FILE).unlink()
    for lay in (os.symlink, os.link):
        lay(secret, own / ENVIRONMENT_FILE)
        assert "SECRET" not in place.environment()
        (own / ENVIRONMENT_FILE).unlink()

    caches = accounts_here / str(NOBODY.pw_uid)
    caches.rmdir()
    for make in (lambda: caches.symlink_to("/etc"), lambda: caches.mkdir()):
        make()
        shutil.rmtree(own)
        with pytest.raises(UserError, match="is no folder of nobody"):
            run_as.hand_over(command, folder, open_path)
        _ = caches.unlink() if caches.is_symlink() else caches.rmdir()
    assert Path("/etc").stat().st_uid == 0


def test_only_an_agent_of_root_can_run_ranks_as_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="only an agent that runs as root") as caught:
        load_run_as(tmp_path / "users.yaml")
    assert caught.value.field == "--runs-as"


@needs_root
@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("ada: nobody", 0o666, "can be written by others than root"),
        ("ada: [nobody]", 0o600, "ada: "),
        ("- ada", 0o600, "the file: "),
        ("ada: ../etc", 0o600, "ada: "),
        ("{", 0o600, "users.yaml: "),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str, mode: int, says: str) -> None:
    """It names what is wrong; and a file that others can write would let them choose their account."""
    path = tmp_path / "users.yaml"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=says):
        load_run_as(path)


@needs_root
def test_a_file_of_root_is_read(tmp_path: Path) -> None:
    path = tmp_path / "users.yaml"
    path.write_text("ada@x.org: nobody\nbob: bob.jones\n")
    path.chmod(0o644)
    assert dict(load_run_as(path).accounts) == {"ada@x.org": "nobody", "bob": "bob.jones"}


@needs_root
def test_a_thread_sees_the_disk_as_the_account_and_no_other_thread_does(open_path: Path) -> None:
    """It reads and writes no more than the account may, what it makes is the account's, and afterwards it is root."""
    secret = open_path / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    (open_path / "theirs").mkdir()
    os.chown(open_path / "theirs", NOBODY.pw_uid, NOBODY.pw_gid)
    others, may_read = list[str](), threading.Event()
    beside = threading.Thread(target=lambda: (may_read.wait(), others.append(secret.read_text())))
    beside.start()
    with files_as(NOBODY.pw_uid, NOBODY.pw_gid):
        with pytest.raises(PermissionError):
            secret.read_text()
        with pytest.raises(PermissionError):
            (open_path / "more").mkdir()
        (open_path / "theirs" / "file").write_text("x")
        may_read.set()
        beside.join()
    assert others == ["root's"]
    assert secret.read_text() == "root's"
    assert (open_path / "theirs" / "file").stat().st_uid == NOBODY.pw_uid


def test_rights_of_others_are_not_lent_by_who_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel does not lend them, nothing is done with those of the process."""
    monkeypatch.setattr(accounts, "_set_ids", lambda uid, gid: (1000, 1000))
    with pytest.raises(PermissionError), files_as(NOBODY.pw_uid, NOBODY.pw_gid):
        raise AssertionError("nothing may be done here")


@needs_root
def test_the_outputs_of_a_job_are_what_its_account_can_read(open_path: Path, tmp_path: Path) -> None:
    """A working folder that the job chose leads to no file of root's, nor to names in a folder that is closed."""
    work = open_path / "work"
    (work / "closed").mkdir(parents=True)
    for name in ("open.txt", "secret.txt", "closed/inner.txt"):
        (work / name).write_text(name)
    (work / "secret.txt").chmod(0o600)
    (work / "closed").chmod(0o700)
    account = (NOBODY.pw_uid, NOBODY.pw_gid)
    copied = copy_outputs(work, ["open.txt", "secret.txt", "closed"], tmp_path / "copy", account=account)
    assert copied.paths == ["open.txt"]
    assert "secret.txt" in copied.problem
    assert "inner" not in copied.problem
    assert [path.name for path in (tmp_path / "copy").rglob("*")] == ["open.txt"]


@needs_root
def test_a_checkpoint_of_somebody_else_is_not_sent_as_ones_own(open_path: Path) -> None:
    """A link in the place of a checkpoint leads to one that the job's account cannot read."""
    private = open_path / "private"
    private.mkdir()
    (private / "model.bin").write_bytes(b"x")
    files = [{"name": "model.bin", "size": 1, "sha256": "0" * 64}]
    (private / MANIFEST).write_text(json.dumps({"files": files, "step": 1, "digest": _digest(files)}))
    (open_path / "step-1").symlink_to(private)
    as_nobody = SimpleNamespace(uid=NOBODY.pw_uid, gid=NOBODY.pw_gid)
    assert len(_described(open_path / "step-1", as_nobody).files) == 2  # type: ignore[arg-type]
    private.chmod(0o700)
    with pytest.raises(TornCheckpoint, match="Permission denied"):
        _described(open_path / "step-1", as_nobody)  # type: ignore[arg-type]


@needs_root
def test_the_way_is_open_and_all_else_is_closed(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts pass through to attempts, copies and sockets; where they could not reach the folder it is named."""
    monkeypatch.setattr(os, "umask", lambda mask: 0)
    monkeypatch.setattr(os, "setgroups", lambda groups: None)
    state = open_path / "agent"
    (state / "s").mkdir(parents=True)
    (state / "code").mkdir(mode=0o755)
    (state / "credential").write_text("secret")
    open_the_way(state, [state], [state / "s"])
    modes = {path.name: path.stat().st_mode & 0o777 for path in (state, *state.iterdir())}
    through = dict.fromkeys(("accounts", "agent", "attempts", "checkpoints", "client", "s"), 0o711)
    assert modes == {**through, "code": 0o700, "credential": 0o600}
    (open_path / "closed").mkdir(mode=0o700)
    (open_path / "closed" / "agent").mkdir()
    with pytest.raises(ConfigError, match=r"closed is closed to the accounts") as caught:
        open_the_way(open_path / "closed" / "agent", [], [])
    assert caught.value.field == "--state"


@needs_root
def test_what_an_attempt_works_in_is_handed_over_and_its_records_are_not(open_path: Path) -> None:
    """The links in its code are, and what they point to is not."""
    run_as = RunAs({"ada": "nobody"}, "f")
    folder, outside = open_path / "7-1", open_path / "outside"
    (folder / "work" / "deep").mkdir(parents=True)
    outside.write_text("root's")
    (folder / "work" / "deep" / "file").write_text("x")
    (folder / "work" / "link").symlink_to(outside)
    (folder / "plan.json").write_text("{}")
    run_as.hand_over(start_command(user="ada"), folder, open_path)
    owners = {path.name: path.lstat().st_uid for path in (folder, *folder.rglob("*"), outside)}
    theirs = dict.fromkeys(("work", "deep", "file", "link"), NOBODY.pw_uid)
    assert owners == {**theirs, "7-1": 0, "plan.json": 0, "outside": 0}


@needs_root
def test_copies_of_another_account_are_not_handed_over(open_path: Path) -> None:
    """A job number that somebody else had, on a machine that kept his files."""
    run_as = RunAs({"ada": "nobody"}, "f")
    folder, copies = open_path / "7-1", open_path / "copies"
    (folder / "work").mkdir(parents=True)
    copies.mkdir()
    os.chown(copies, 1, 1)
    with pytest.raises(UserError, match="belongs to another account"):
        run_as.hand_over(start_command(user="ada", store="server", checkpoint_dir=str(copies)), folder, open_path)


def test_what_is_fetched_lies_apart_from_what_ranks_write(tmp_path: Path) -> None:
    """So that no link of theirs is in the way of an agent that writes as root."""
    resume = Manifest(step=5, path="/srv/jobs/7/attempt-0001/step-5", digest="0" * 64, content=ContentTree().name)
    command = start_command(store="server", checkpoint_dir="/srv/jobs/7", resume=resume)
    together, apart = (localized(tmp_path, command, apart=apart) for apart in (False, True))
    assert together.checkpoint_dir == apart.checkpoint_dir
    assert Path(together.resume.path).is_relative_to(together.checkpoint_dir)
    assert not Path(apart.resume.path).is_relative_to(apart.checkpoint_dir)
    assert Path(apart.resume.path).parent.name == "attempt-0001"


def test_the_plan_of_an_attempt_names_its_account_and_prepares_in_that_ones_caches(tmp_path: Path) -> None:
    run_as = RunAs({"ada": "nobody"}, "f")
    machine = AgentMachine(tmp_path, Accelerators("a", 1), Host(8.0, 1 << 30), False, {}, {}, run_as=run_as)
    plan = make_attempt_plan(machine, start_command(user="ada", needs=JobNeeds(setup="true")), 0.0)
    account = run_as.account_of("ada")
    assert (plan.uid, plan.gid, plan.groups) == (account.uid, account.gid, list(account.groups))
    assert str(account_caches(tmp_path, account)) in plan.argv
    assert str(tmp_path / "prepared") not in plan.argv


@needs_root
@pytest.mark.parametrize("has_scopes", [False, True])
async def test_attempts_of_one_starter_have_nothing_of_each_others_accounts(open_path: Path, has_scopes: bool) -> None:
    """One runs as ada, the next as root, the next as bob: identity, groups, home and output are each one's own."""
    systemd_run = open_path / "systemd-run"
    systemd_run.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    systemd_run.chmod(0o755)
    starter = SupervisorStarter(str(systemd_run) if has_scopes else "")
    says = 'echo "$(id -u) $(id -g) $(id -G) $(umask) $HOME"; cat "$OTHER" 2>&1; echo x > "$0"'
    attempts = []
    try:
        for number, name in enumerate(("nobody", "root", "daemon")):
            entry = pwd.getpwnam(name)
            work = open_path / f"work-{number}"
            work.mkdir(mode=0o700)
            os.chown(work, entry.pw_uid, entry.pw_gid)
            attempt = SupervisedAttempt(
                open_path / str(number), ["sh", "-c", says, str(work / "mine")], workdir=str(work), uid=entry.pw_uid,
                gid=entry.pw_gid, groups=os.getgrouplist(name, entry.pw_gid) if entry.pw_uid else [],
                env={"HOME": entry.pw_dir, "OTHER": str(open_path / f"work-{number - 1}" / "mine")},
            )  # fmt: skip
            os.chmod(attempt.plan.rank_socket.rpartition("/")[0], 0o711)
            attempts.append(attempt)
            attempt.folder.mkdir(mode=0o700)
            assert await starter.start(attempt.folder, attempt.plan) == ""
            attempt.wait_event("ended", 30.0)
            told, read = attempt.output().splitlines()
            groups = " ".join(map(str, os.getgrouplist(name, entry.pw_gid) if entry.pw_uid else os.getgroups() or [0]))
            assert told == f"{entry.pw_uid} {entry.pw_gid} {groups} 0022 {entry.pw_dir}"
            assert (read == "x") is (name == "root"), read
            assert (work / "mine").stat().st_uid == entry.pw_uid
    finally:
        await starter.close()
        for attempt in attempts:
            attempt.close()
