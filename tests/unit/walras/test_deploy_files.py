"""The files of configs/deploy: parsed, and their command lines are ours. Nothing here starts systemd or a cluster."""

import configparser
import json
import shlex
import tomllib
from typing import Any

import typer
import yaml
from click import Command

from tests.support.attempts import ROOT
from walras.cli.main import app

DEPLOY = ROOT / "configs" / "deploy"


def check_command_line(words: list[str]) -> None:
    """A sub-command that exists, with all its required options and none that it does not have."""
    command: Command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    options = {option: each for each in command.params for option in each.opts}
    given = {word for word in words[1:] if word.startswith("--")}
    assert given <= set(options), given - set(options)
    required = {each.opts[0] for each in command.params if each.required}
    assert required <= given, required - given


def test_units_start_commands_of_ours_and_spare_the_jobs() -> None:
    """systemd's files: valid sections, command lines that the command takes, and an agent whose jobs outlive it."""
    for name, verb in (("walras-server.service", "server"), ("walras-agent.service", "agent")):
        unit = configparser.RawConfigParser(strict=True)
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read_string((DEPLOY / name).read_text())
        assert unit.sections() == ["Unit", "Service", "Install"]
        program, *words = shlex.split(unit["Service"]["ExecStart"])
        assert (program, words[0]) == ("/opt/walras/bin/walras", verb)
        check_command_line(words)
        assert unit["Service"]["User"] == "walras"
        if verb == "agent":
            assert unit["Service"]["KillMode"] == "process"


def test_the_image_is_built_of_files_that_are_here() -> None:
    """Known instructions, sources that exist, every package that the project installs, and not root."""
    lines = [line for line in (DEPLOY / "Containerfile").read_text().splitlines() if line and line[0] not in "#"]
    instructions = [line.split(maxsplit=1) for line in lines]
    assert {name for name, _ in instructions} <= {"FROM", "COPY", "RUN", "USER", "VOLUME", "ENTRYPOINT"}
    copied = [word for name, rest in instructions if name == "COPY" for word in rest.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name for name in packages if not name.endswith("*")} <= set(copied)
    assert json.loads(instructions[-1][1]) == ["walras"]
    # `walras server` needs what its extra brings.
    (install,) = [rest for name, rest in instructions if name == "RUN" and "pip install" in rest]
    assert "/src[server]" in install
    assert ["USER", "walras"] in instructions


def test_the_manifests_hold_together() -> None:
    """Labels meet their selectors, mounts their volumes; command lines are ours; there is one server."""
    documents = [each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()) if each]
    by_kind = {each["kind"]: each for each in documents}
    assert set(by_kind) == {"Service", "PersistentVolumeClaim", "StatefulSet", "DaemonSet"}
    for kind in ("StatefulSet", "DaemonSet"):
        spec = by_kind[kind]["spec"]
        pod: dict[str, Any] = spec["template"]
        assert spec["selector"]["matchLabels"] == pod["metadata"]["labels"]
        (container,) = pod["spec"]["containers"]
        check_command_line(container["args"])
        volumes = {each["name"] for each in pod["spec"]["volumes"]}
        assert {each["name"] for each in container["volumeMounts"]} <= volumes
    server = by_kind["StatefulSet"]["spec"]
    assert server["replicas"] == 1
    assert by_kind["Service"]["spec"]["selector"] == server["template"]["metadata"]["labels"]
    claim = server["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim == by_kind["PersistentVolumeClaim"]["metadata"]["name"]
