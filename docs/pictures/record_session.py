"""Records a terminal session as a picture: `python docs/pictures/record_session.py FILE.svg`.

The commands are real and so is what they print: a server in a temporary folder, three machines with emulated
accelerators, and PyTorch jobs. Only paths are shortened, and a blank line is put between commands.
"""

import contextlib
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
WALRAS = Path(sys.executable).with_name("walras")
COLUMNS = 118
#: Steps per second of the example jobs on each emulated type.
SPEEDS = {
    "cnn": {"a100": 16, "v100": 9, "k80": 2},
    "transformer": {"a100": 12, "v100": 5, "k80": 1},
    "mlp": {"a100": 20, "v100": 16, "k80": 9},
}
SUBMITTED = ("example:transformer --set steps=900", "example:cnn --set steps=700", "example:mlp --set steps=900")
LATE = "walras submit example:transformer --name late --set steps=400"


def environment(folder: Path) -> dict[str, str]:
    """A shell of somebody whose home is the folder, on a terminal that is wide enough."""
    path = f"{WALRAS.parent}:/usr/bin:/bin"
    return {
        "PYTHONPATH": str(ROOT),
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "PATH": path,
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
    }


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """A server and a machine of each type; yields the environment of its user."""
    settings = environment(folder)
    (folder / "speeds.yaml").write_text(json.dumps(SPEEDS))
    running = []
    try:
        running.append(start(folder, settings, "server --data data --policy example:demo"))
        about = wait_for(folder / "data/server.json")
        settings |= {"WALRAS_SERVER": about["url"], "WALRAS_TOKEN_FILE": str(folder / "data/admin.token")}
        for name in ("a100", "v100", "k80"):
            join = f"agent --server {about['url']} --join-token-file data/join.token --state {name} --node {name}-1"
            device = f"--accelerator {name} --accelerators 1 --emulated --speeds speeds.yaml --cpus 2 --memory 4GB"
            running.append(start(folder, settings, f"{join} {device}"))
        until = time.monotonic() + 60
        while run(settings, folder, "walras nodes --no-header").count("\n") < 3 and time.monotonic() < until:
            time.sleep(0.5)
        yield settings
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)


def start(folder: Path, settings: dict[str, str], words: str) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([WALRAS, *shlex.split(words)], cwd=folder, env=settings, stdout=log, stderr=log)


def wait_for(path: Path) -> dict[str, str]:
    """The JSON of a file, once it is there. Raises TimeoutError after a minute."""
    until = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{path} did not appear: see the log of the server")
        time.sleep(0.2)
    found: dict[str, str] = json.loads(path.read_text())
    return found


def run(settings: dict[str, str], folder: Path, line: str) -> str:
    """What a command prints on a terminal. Raises CalledProcessError if it fails."""
    terminal, inside = pty.openpty()
    try:
        subprocess.run(["stty", "cols", str(COLUMNS), "rows", "60"], stdin=inside, check=True)
        process = subprocess.Popen(shlex.split(line), cwd=folder, env=settings, stdout=inside, stderr=inside)
        os.close(inside)
        printed = b""
        with contextlib.suppress(OSError):  # the terminal ends with the last who writes to it
            while piece := os.read(terminal, 65536):
                printed += piece
        if process.wait(120):
            raise subprocess.CalledProcessError(process.returncode, line, printed)
    finally:
        os.close(terminal)
    # Colours stay; what moves the cursor or hides it says nothing in a picture.
    return re.sub(r"\x1b(?:\[[0-9;?]*[ -/]*[@-ln-~]|\][^\x07]*\x07)", "", printed.decode(errors="replace")).replace(
        "\r\n", "\n"
    )


def look_at_the_queue(settings: dict[str, str], folder: Path) -> list[tuple[str, str]]:
    """The commands of the picture with what they print; the queue is looked at until it shows who is explained.

    Jobs take turns on the machines, so the one that the queue shows waiting may run a moment later.
    """

    def typed(line: str) -> tuple[str, str]:
        return line, run(settings, folder, line).replace(str(folder), "~").replace(str(ROOT), "~/walras")

    late = typed(LATE)
    for _ in range(20):
        queue = typed("walras queue")
        waiting = re.search(r"^ *(\d+) .*PENDING", re.sub(r"\x1b\[[\d;]*m", "", queue[1]), re.MULTILINE)
        if waiting is not None:
            explained = typed(f"walras explain {waiting[1]}")
            if "is PENDING" in explained[1]:
                return [late, queue, explained, typed("walras cloud prices")]
        time.sleep(1)
    raise TimeoutError("no job waited long enough to be explained: try again on a less busy machine")


def recorded(shown: list[tuple[str, str]]) -> str:
    """The commands and what they printed, as SVG that asks nothing of other servers."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    for line, printed in shown:
        console.print(Text.assemble(("$ ", "bold green"), (line, "bold")))
        console.print(Text.from_ansi(printed.rstrip()), soft_wrap=False)
        console.print()
    bare = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title="walras", code_format=bare, unique_id="session")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with cluster(folder) as settings:
            for words in SUBMITTED:
                run(settings, folder, f"walras submit {words}")
            time.sleep(25)
            shown = look_at_the_queue(settings, folder)
            for job in json.loads(run(settings, folder, "walras queue -o json")):
                run(settings, folder, f"walras cancel {job['id']} -y")
            time.sleep(5)
    Path(sys.argv[1]).write_text(recorded(shown))


if __name__ == "__main__":
    main()
