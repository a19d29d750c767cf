"""The commands that put a rank into an image, by a pure function, and a launch through a stand-in for a runtime.

The stand-in is a script named podman that writes down its words and runs the command on the machine itself: what is
tested is everything up to the runtime.
"""

import contextlib
import hashlib
import json
import subprocess
from pathlib import Path
from resource import RLIMIT_NOFILE, setrlimit

import pytest

from tests.support.attempts import SupervisedAttempt
from walras.contract import EXIT_MACHINE_UNABLE, EXIT_NOT_PREPARED
from walras.errors import ConfigError, JobSpecError
from walras.job_needs import InputNeed, JobNeeds
from walras.spec.job_groups import needs_of
from walras.spec.job_spec import parse_spec
from workers.preparation.environments import tools_here
from workers.preparation.folder_cache import CacheBounds, FolderCache
from workers.preparation.inputs import CannotFetch, MachineUnable
from workers.preparation.launcher import (
    ContainerPlace,
    bring_image,
    container_argv,
    find_runtime,
    prepared_argv,
    write_needs,
)
from workers.processes import COOKIE_VARIABLE
from workers.ranks import found_in_containers

PLACE = ContainerPlace(
    work="/a/work", writable=("/a/work", "/ck"), readable=("/a", "/client"), uid=7, gid=8, has_nvidia=True
)
NAMES = ("WALRAS_TOKEN", "PATH", "HOME", "CUDA_VISIBLE_DEVICES")


def test_apptainer_binds_the_folders_and_brings_the_devices() -> None:
    found = container_argv("apptainer", "/bin/apptainer", "/c/image.sif", PLACE, NAMES, ["python", "-V"])
    assert found[:2] == ["/bin/apptainer", "exec"]
    assert found[-5:] == ["--pwd", "/a/work", "/c/image.sif", "python", "-V"]
    assert "--nv" in found
    bound = [found[at + 1] for at, word in enumerate(found) if word == "--bind"]
    assert bound == ["/a:/a:ro", "/client:/client:ro", "/a/work:/a/work", "/ck:/ck"]


@pytest.mark.parametrize(("runtime", "gpu"), [("podman", "nvidia.com/gpu=all"), ("docker", "all")])
def test_podman_and_docker_keep_user_network_and_folders(runtime: str, gpu: str) -> None:
    """No value of a variable stands in the command, and PATH and HOME are the image's."""
    found = container_argv(runtime, f"/bin/{runtime}", "docker://org/image:1", PLACE, NAMES, ["python", "-V"])
    assert found[-3:] == ["org/image:1", "python", "-V"]
    options = {(word, found[at + 1]) for at, word in enumerate(found[:-1])}
    for pair in (("--user", "7:8"), ("--network", "host"), ("--ipc", "host"), ("--workdir", "/a/work")):
        assert pair in options
    assert ("--mount", "type=bind,source=/a,target=/a,readonly") in options
    assert ("--mount", "type=bind,source=/ck,target=/ck") in options
    assert gpu in found
    told = [found[at + 1] for at, word in enumerate(found) if word == "--env"]
    assert told == ["WALRAS_IN_CONTAINER=1", "CUDA_VISIBLE_DEVICES", "WALRAS_TOKEN"]
    assert ("--userns" in found) == (runtime == "podman")
    plain = ContainerPlace(work="/w", writable=(), readable=(), uid=0, gid=0)
    assert "--userns" not in container_argv(runtime, "x", "i", plain, (), ["y"])
    assert not {"--gpus", "--device"} & set(container_argv(runtime, "x", "i", plain, (), ["y"]))


STAND_IN = """#!/bin/bash
printf '%s\\n' "$@" >> "$TOLD"
case "$1" in
  image) exit 1;;
  ps) cat "${TOLD%told}kept"; exit;;
  rm) exit;;
  pull) [ "$3" = org/there ] && exit 0; echo "manifest unknown" >&2; exit 125;;
esac
while [ "$1" != org/there ]; do shift; done
shift; exec "$@"
"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "podman").write_text(STAND_IN)
    (folder / "podman").chmod(0o755)
    return folder


def launch(
    tmp_path: Path, path: str, needs: JobNeeds, argv: list[str], most_files: int = 100
) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "state" / "attempts" / "1-1"
    (folder / "work").mkdir(parents=True)
    write_needs(folder, needs)
    env = {"PATH": path, "TOLD": str(tmp_path / "told"), "WALRAS_TOKEN": "very secret"}
    command = prepared_argv(folder, tmp_path / "state" / "prepared", needs, argv)
    return subprocess.run(
        command, cwd=folder / "work", env=env, capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: setrlimit(RLIMIT_NOFILE, (most_files, most_files)),
    )  # fmt: skip


def test_a_rank_and_its_setup_run_inside_and_its_code_survives(tmp_path: Path, tools: Path) -> None:
    needs = JobNeeds(image="docker://org/there", setup='echo made > "$WALRAS_SETUP/f"')
    done = launch(tmp_path, f"{tools}:/usr/bin:/bin", needs, ["bash", "-c", 'cat "$WALRAS_SETUP/f"; exit 9'])
    assert (done.stdout, done.returncode) == ("made\n", 9), done.stderr
    told = (tmp_path / "told").read_text()
    assert told.split().count("run") == 2
    assert "very secret" not in told


def test_what_podman_kept_of_an_attempt_that_is_gone_is_removed(tmp_path: Path, tools: Path) -> None:
    """What killed it killed the process that would have removed its container; a living attempt's stays."""
    labels = {"gone": "ad21e2b1d62a1a5c", "living": hashlib.sha256(b"a-cookie").hexdigest()[:16]}
    kept = [{"Id": name, "Labels": {"walras.attempt": label}} for name, label in labels.items()]
    (tmp_path / "kept").write_text(json.dumps(kept))
    with subprocess.Popen(["sleep", "300"], env={COOKIE_VARIABLE: "a-cookie", "PATH": "/usr/bin:/bin"}) as living:
        launch(tmp_path, f"{tools}:/usr/bin:/bin", JobNeeds(image="docker://org/there"), ["true"])
        living.kill()
    told = (tmp_path / "told").read_text().split()
    assert told[told.index("rm") :][:3] == ["rm", "--force", "gone"]
    assert "living" not in told


def test_an_image_that_does_not_exist_ends_the_job_by_its_name(tmp_path: Path, tools: Path) -> None:
    done = launch(tmp_path, f"{tools}:/usr/bin:/bin", JobNeeds(image="org/none"), ["true"])
    assert done.returncode == EXIT_NOT_PREPARED
    assert "the image org/none cannot be had: manifest unknown" in done.stderr


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ('Get "https://registry/v2/": net/http: TLS handshake timeout', CannotFetch),
        ("toomanyrequests: You have reached your pull rate limit", CannotFetch),
        ("write /var/lib/docker/tmp/layer: no space left on device", MachineUnable),
        ("pull access denied for org/none", ConfigError),
    ],
)
def test_an_image_that_may_come_later_or_elsewhere_ends_no_job(
    tmp_path: Path, tools: Path, said: str, refused: type[Exception]
) -> None:
    (tools / "podman").write_text(f"#!/bin/bash\necho '{said}' >&2; exit 125")
    cache = FolderCache(tmp_path / "cache", CacheBounds(1, 1))
    with pytest.raises(refused, match=said[:20]):
        bring_image(cache, "podman", str(tools / "podman"), "org/none", {})


def test_a_machine_that_is_not_in_order_ends_no_job(tmp_path: Path) -> None:
    """As a disk without room: here it has no more file descriptors."""
    (tmp_path / "data").touch()
    needs = JobNeeds(inputs={"data": InputNeed(url=f"file:{tmp_path}/data")})
    assert launch(tmp_path / "well", "/usr/bin:/bin", needs, ["true"]).returncode == 0
    done = launch(tmp_path / "not", "/usr/bin:/bin", needs, ["true"], most_files=5)
    assert done.returncode == EXIT_MACHINE_UNABLE, done.stderr
    assert "Too many open files" in done.stderr


def test_a_machine_without_a_runtime_says_so(tmp_path: Path) -> None:
    done = launch(tmp_path, str(tmp_path), JobNeeds(image="org/there"), ["true"])
    assert done.returncode == EXIT_MACHINE_UNABLE
    assert "none of apptainer, podman, docker" in done.stderr
    assert "goes to another machine" in done.stderr


def test_a_client_without_its_daemon_is_no_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine reports docker only while its daemon answers: one that is refused, or hangs, is as good as none."""
    client = tmp_path / "docker"
    monkeypatch.setenv("PATH", str(tmp_path))
    for script, works in (("echo 27.1", True), ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", False)):
        client.write_text(f"#!/bin/sh\n{script}\n")
        client.chmod(0o755)
        assert ("docker" in tools_here()) == works
    with pytest.raises(MachineUnable, match="none of apptainer, podman, docker"):
        find_runtime()


def test_a_file_is_for_apptainer_alone_and_has_to_be_there(tmp_path: Path) -> None:
    cache = FolderCache(tmp_path / "cache", CacheBounds(1, 1))
    with pytest.raises(ConfigError, match="there is no image"):
        bring_image(cache, "apptainer", "x", "/none.sif", {})
    (tmp_path / "i.sif").touch()
    assert bring_image(cache, "apptainer", "x", str(tmp_path / "i.sif"), {}) == str(tmp_path / "i.sif")
    with pytest.raises(ConfigError, match="podman takes no image from a file"):
        bring_image(cache, "podman", "x", str(tmp_path / "i.sif"), {})


def test_the_field(tmp_path: Path) -> None:
    assert needs_of(parse_spec("run: x\nimage: docker://pytorch/pytorch:2.4\n")).image == "docker://pytorch/pytorch:2.4"
    for text in ("image: --privileged", "image: 'a b'", "image: x\npython: {packages: numpy}"):
        with pytest.raises(JobSpecError):
            parse_spec(f"run: x\n{text}\n")


@pytest.mark.parametrize("has_image", [True, False])
def test_what_a_daemon_started_is_sought_for_an_image_alone(has_image: bool, tmp_path: Path) -> None:
    """Every process of the machine is read for that."""
    attempt = SupervisedAttempt(tmp_path, [], has_image=has_image)
    env = {COOKIE_VARIABLE: attempt.plan.cookie, "WALRAS_IN_CONTAINER": "1"}
    with contextlib.closing(attempt), subprocess.Popen(["sleep", "300"], env=env) as started:
        found = found_in_containers(attempt.plan)
        started.kill()
    assert found == [started.pid] * has_image
