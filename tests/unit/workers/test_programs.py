"""Which processes are a job's programs, by what /proc says of them."""

import pytest

from workers.programs import ProcessFacts, find_programs

#: Number, parent and command line of each process (`~` is a space); `+` handles SIGTERM, `&` runs in the background.
TREES = {
    "a program": ("1 0 python train.py", [1]),
    "its workers": ("1 0 python train.py; 2 1 + python train.py; 3 1 python -c from multiprocessing.spawn", [1]),
    "a login shell": ("1 0 -bash -l; 2 1 ./train", [2]),
    "nested shells": ("1 0 sh -c x; 2 1 dash y; 3 2 zsh z; 4 3 ksh w; 5 4 python t.py; 6 5 python t.py", [5]),
    "wrappers": ("1 0 bash x; 2 1 /usr/bin/time -v env; 3 2 timeout 9 x; 4 3 nice x; 5 4 /opt/train", [5]),
    "a wrapper alone": ("1 0 bash x; 2 1 uv pip install torch", [2]),
    "a shell alone": ("1 0 bash x", [1]),
    "busybox": ("1 0 busybox sh x; 2 1 /bin/busybox sleep 9", [2]),
    "torchrun": ("1 0 + /venv/bin/python3.11 /venv/bin/torchrun t.py; 2 1 python -u t.py; 3 2 python -u t.py", [2]),
    "its module": ("1 0 + python -X dev -u -m torch.distributed.run t.py; 2 1 python t.py; 3 1 python t.py", [2, 3]),
    "deepspeed": ("1 0 python /bin/deepspeed t; 2 1 + python -u -m deepspeed.launcher.launch t; 3 2 python t", [3]),
    "accelerate": ("1 0 python /bin/accelerate launch t.py; 2 1 python t.py", [2]),
    "conda run": ("1 0 /c/bin/python /c/bin/conda run -n x t; 2 1 bash /tmp/tmpx; 3 2 python t.py", [3]),
    "bookkeepers": (
        "1 0 python -m torch.distributed.run t; 2 1 python t;"
        " 3 1 python -c from~multiprocessing.resource_tracker~import~main",
        [2],
    ),
    "scripts of a wrapper's name": ("1 0 python script; 2 1 python time; 3 0 python env.py; 4 3 python x", [1, 3]),
    "two commands at once": ("1 0 bash x; 2 1 python a.py; 3 1 & python b.py", [2, 3]),
    "a trap": ("1 0 + bash x; 2 1 python a.py; 3 1 & python b.py; 4 1 + & python c.py", [1, 2, 4]),
    "a trap of a shell that is in the background": ("1 0 + & bash x; 2 1 & python a.py", [1, 2]),
    "no process of that number": ("2 1 python a.py", []),
}


def read(tree: str) -> dict[int, ProcessFacts]:
    known = {}
    for line in tree.split(";"):
        pid, parent, *words = line.split()
        marks = {word for word in words[:2] if word in "+&"}
        own = tuple(word.replace("~", " ") for word in words if word not in marks)
        known[int(pid)] = ProcessFacts(int(pid), int(parent), own, "", "+" in marks, "&" in marks)
    return known


@pytest.mark.parametrize("name", TREES)
def test_programs_are_found(name: str) -> None:
    """What only runs others is looked through, and what a program started is its own affair."""
    tree, expected = TREES[name]
    known = read(tree)
    roots = [1, *(pid for pid, facts in known.items() if facts.parent == 0 and pid != 1)]
    assert find_programs(roots, known) == expected


def test_the_executable_tells_more_than_the_command_line() -> None:
    """A script is run by its interpreter; a process may call itself what it likes."""
    shell = ProcessFacts(1, 0, ("./job.sh",), executable="bash")
    program = ProcessFacts(2, 1, ("bash", "-c"), executable="python3.12")
    assert find_programs([1], {1: shell, 2: program}) == [2]


PIPE, OTHER = (1, 7), (1, 8)


@pytest.mark.parametrize(
    ("writes", "reads", "handles", "expected"),
    [
        (PIPE, PIPE, False, [2]),
        (PIPE, PIPE, True, [2, 3]),
        (PIPE, OTHER, False, [2, 3]),
        (PIPE, None, False, [2, 3]),
    ],
)
def test_a_filter_reads_what_another_process_writes(
    writes: tuple[int, int], reads: tuple[int, int] | None, handles: bool, expected: list[int]
) -> None:
    """Unless it handles the signal, it is left to the end of its input."""
    known = {
        1: ProcessFacts(1, 0, ("bash",)),
        2: ProcessFacts(2, 1, ("python", "a.py"), writes=frozenset({writes})),
        3: ProcessFacts(3, 1, ("tee", "log"), handles_term=handles, reads=reads),
    }
    assert find_programs([1], known) == expected


def test_who_reads_what_it_started_writes_is_no_filter() -> None:
    """A program that talks to itself, or to its children, is a program."""
    known = {
        1: ProcessFacts(1, 0, ("python", "a.py"), reads=PIPE, writes=frozenset({PIPE})),
        2: ProcessFacts(2, 1, ("cat",), writes=frozenset({PIPE})),
    }
    assert find_programs([1], known) == [1]
