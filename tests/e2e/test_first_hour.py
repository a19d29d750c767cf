"""The README's commands, by the README alone: the built wheel, installed, in empty folders and on two machines.

The machines are two network namespaces with nothing shared but the file system, each with a home of its own. Where
namespaces may not be made they are two homes on loopback. Both have the test's dependencies, so that `pip install`
itself is counted and not repeated.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installed import ROOT, clean_environment
from tests.support.newcomer import NewcomersMachines, unused_port, wait_for_text

pytestmark = pytest.mark.slow
README = (ROOT / "README.md").read_text()
MOST_COMMANDS = 6


def code_lines(text: str) -> list[str]:
    """The lines of a text's code blocks."""
    return [line.strip() for line in re.findall(r"^    (\S.*)$", text, re.MULTILINE)]


CLUSTER = README.split("## A cluster of your own")[1].split("\n## ")[0]
LOCAL = [line for line in code_lines(README.split("## Trying policies")[1]) if line.startswith("walras ")]


def test_the_installed_package_is_not_the_checkout(program: Path, tmp_path: Path) -> None:
    """Else the tests below would prove nothing."""
    code = "import walras, simulator, scheduler; print(walras.__file__, simulator.__file__, scheduler.__file__)"
    done = subprocess.run(
        [program / "python", "-c", code], cwd=tmp_path, env=clean_environment(tmp_path), capture_output=True, text=True
    )
    assert [Path(file).is_relative_to(program.parent) for file in done.stdout.split()] == [True] * 3, done


@pytest.mark.parametrize("line", LOCAL)
def test_commands_without_a_server_run_in_an_empty_folder(program: Path, tmp_path: Path, line: str) -> None:
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=clean_environment(tmp_path, program), capture_output=True, text=True,
        timeout=390,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_readme_has_commands_of_every_kind() -> None:
    kinds = {tuple(line.split()[1:3]) for line in LOCAL}
    assert kinds >= {("simulate", "compare"), ("policy", "solve"), ("cloud", "profile"), ("cloud", "recommend")}


def namespaces(names: dict[str, str], address: dict[str, str]) -> bool:
    """Make two network namespaces with a cable between them; False where this is not permitted."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    link = dict(zip(names, ("wfhs", "wfhm"), strict=True))
    steps = [["netns", "add", name] for name in names.values()]
    steps.append(["link", "add", link["S"], "netns", names["S"], "type", "veth", "peer", "name", link["M"]])
    steps[-1] += ["netns", names["M"]]
    for machine, name in names.items():
        steps.append(["-n", name, "addr", "add", f"{address[machine]}/24", "dev", link[machine]])
        steps += [["-n", name, "link", "set", device, "up"] for device in ("lo", link[machine])]
    return all(subprocess.run(["ip", *step], capture_output=True).returncode == 0 for step in steps)


@pytest.fixture
def machines(program: Path, tmp_path: Path) -> Iterator[NewcomersMachines]:
    names = {machine: f"walras-{machine}-{os.getpid()}" for machine in "SM"}
    address = {"S": "10.231.7.1", "M": "10.231.7.2"}
    port = unused_port()
    try:
        apart = namespaces(names, address)
        enter = {machine: ["ip", "netns", "exec", names[machine]] if apart else [] for machine in "SM"}
        here = address["S"] if apart else "127.0.0.1"

        def rename(line: str) -> str:
            """A line of the README with our names: the address of S, a free port, the number of our job."""
            named = line.replace("https://S:", f"https://{here}:").replace("8080", str(port))
            return re.sub(r"\b12\b", "2", named)

        two = NewcomersMachines(tmp_path, program, rename, enter)
        yield two
        two.close()
    finally:
        for name in names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def test_an_own_script_runs_on_another_machine_in_six_commands(machines: NewcomersMachines) -> None:
    """The README's section, line by line, from `pip install` to the end of a script of one's own."""
    lines = code_lines(CLUSTER)
    first = lines[: lines.index("walras submit train.py") + 1]
    assert len(first) <= MOST_COMMANDS
    server, agent, access = (next(line for line in first if word in line) for word in ("server --", "agent", "export"))
    assert [line for line in first if line not in (server, agent, access)][-1] == "walras submit train.py"

    told = machines.start("S", server)
    wait_for_text(told, "join.token")
    for printed in (
        machines.rename("export WALRAS_SERVER=https://localhost:8080"),
        "export WALRAS_TOKEN_FILE=",
        agent[:12],
    ):
        assert printed in told.read_text()
    # The line for machines holds the way to the token, never the token.
    assert (machines.home("S") / "walras/join.token").read_text().strip() not in told.read_text()
    joined = machines.start("M", agent)
    wait_for_text(joined, "has joined")
    script = machines.home("S") / "train.py"
    script.write_text("import os; print('ran at', os.environ['HOME'])\n")
    assert "job 1" in machines.run("S", access, first[-1])
    assert f"ran at {machines.home('M')}" in machines.run("S", access, "walras logs -f 1")

    # What else the section says, and what the words in its text say.
    others = lines[len(first) :]
    assert others[0] == "walras submit example:cnn"
    machines.run("S", access, *others[:2], "walras wait 12 --timeout 3m")
    machines.run("S", access, *(line for line in others[2:] if "fetch" not in line))
    for command in (
        "walras admin init",
        "walras admin slurm-links links",
        "walras admin add token ada projects=vision",
    ):
        assert command.removesuffix(" links") in README
        machines.run("S", access, command)
    assert "COMPLETED" in machines.run("S", access, "links/sacct")


def test_the_server_starts_without_pytorch(tmp_path: Path) -> None:
    """`walras[server]` does not bring it: nothing that the server loads asks for it."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import scheduler.live.main, simulator.simulate_actions, optimizer.registry\n"
        "print([name for name in sys.modules if name.startswith('torch.')])"
    )
    environment = clean_environment(tmp_path) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
