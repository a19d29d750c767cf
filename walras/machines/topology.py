"""How far machines are apart: the switches above them, and the slowest link between any of them.

Switches form a tree, whose tops are joined by a root. Machines are level 0, and a switch is one level above the highest
of what is below it. All uplinks of a level have one speed. A machine in no switch hangs from the root.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

#: Maximum of names in a topology.
NAMES_MAX = 100_000
_ROOT = "the root"  # no name has a blank
_WORD = re.compile(r"(?:\[[^][]*\]|[^][,\s])+")
_BRACKET = re.compile(r"\[([^][]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}", re.ASCII)
_EXAMPLE = "write such as `gpu[01-08],gpu12`"


def host_names(text: str) -> list[str]:
    """Returns the names of a list as Slurm writes it: `gpu[01-03,7],login`. Raises ValueError."""
    found: list[str] = []
    for word in _WORD.findall(text):
        choices, many = list[list[str]](), 1
        for at, piece in enumerate(_BRACKET.split(word)):
            # Between brackets the pieces stand alone, so every second one is a list of numbers.
            choices.append(_numbers(piece) if at % 2 else [piece])
            many *= len(choices[-1])
            if len(found) + many > NAMES_MAX:
                raise ValueError(f"{word[:60]!r} stands for too many names; at most {NAMES_MAX:,} machines")
        found += map("".join, product(*choices))
    wrong = [name for name in found if _NAME.fullmatch(name) is None]
    if wrong or not found or not _WORD.sub("", text).strip(", \t\n") == "":
        raise ValueError(f"{(wrong or [text])[0][:60]!r} is no list of machines; {_EXAMPLE}")
    return found


def _numbers(text: str) -> list[str]:
    """Returns the numbers of `01-03,7`, with their zeros."""
    found: list[str] = []
    for part in text.split(","):
        known = _RANGE.fullmatch(part.strip())
        first, last = (known[1], known[2] or known[1]) if known else ("1", "0")
        if not 0 <= int(last) - int(first) < NAMES_MAX - len(found):
            raise ValueError(f"{text[:60]!r} is no range of numbers; {_EXAMPLE}")
        found += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return found


@dataclass(frozen=True)
class Topology:
    """The switches above machines, and the speeds of their links."""

    #: Name of each level and bytes per second of one of its uplinks, from the machines up.
    uplinks: tuple[tuple[str, float], ...]
    #: Name of each switch, and the machines or switches below it as Slurm lists them.
    switches: tuple[tuple[str, str], ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return Topology, (self.uplinks, self.switches)  # the graph is made again where it is needed

    @cached_property
    def links(self) -> "LinkGraph":
        """The graph. Raises ValueError as `LinkGraph`."""
        return LinkGraph(self)


#: Words of a line of Slurm's file, in small letters. It carries link speeds in no unit, and does not use them.
_SLURM = frozenset({"switchname", "blockname", "nodes", "switches", "linkspeed", "blocksizes"})


def slurm_switches(text: str) -> dict[str, str]:
    """Returns what is below each switch, or block, of a `topology.conf`. Raises ValueError that names the line."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        fields = {word.partition("=")[0].lower(): word.partition("=")[2] for word in line.partition("#")[0].split()}
        name = fields.get("switchname") or fields.get("blockname") or ""
        below = ",".join(filter(None, (fields.get("nodes"), fields.get("switches"))))
        if not fields.keys() <= _SLURM or (name == "") != (below == "") or name in found:
            fix = "write `SwitchName=NAME` with `Nodes=` or `Switches=`, each name once"
            raise ValueError(f"line {number}, {line.strip()[:60]!r}, is no switch; {fix}")
        if name:
            found[name] = below
    return found


class FreeMachine(NamedTuple):
    """A machine that a gang may use."""

    row: int
    #: Accelerators that it may have there.
    free: int
    #: Of machines with as many free, the smallest is taken.
    rank: int
    #: Blocks in which the machine is, by level (`LinkGraph.path`).
    path: tuple[str, ...]


class LinkGraph:
    """The tree of links. A *block* is what one switch joins; the root joins all."""

    def __init__(self, topology: Topology) -> None:
        """Raises ValueError, with how to mend it, if the switches are no tree or are on levels without a speed."""
        import networkx as nx  # most fleets have no topology

        graph: nx.DiGraph[str] = nx.DiGraph()
        many = 0
        if not topology.switches:
            raise ValueError('no switch is named; write `switches: {r1: "gpu[01-08]"}`, or the path of `slurm`')
        for name, below in topology.switches:
            named = host_names(below)
            many += len(named)
            if many > NAMES_MAX:
                raise ValueError(f"{name!r} makes more than {NAMES_MAX:,} names; is it one cluster?")
            graph.add_edges_from((name, each) for each in named)
        twice = next((name for name, above in graph.in_degree() if above > 1), None)
        if twice is not None:
            raise ValueError(f"{twice!r} is below {' and '.join(map(repr, graph.predecessors(twice)))}; name it once")
        if not nx.is_directed_acyclic_graph(graph):
            ring = [name for name, _ in nx.find_cycle(graph)]
            raise ValueError(f"{' above '.join(map(repr, ring[:5]))} is a ring; switches are a tree")
        level: dict[str, int] = {}
        for name in reversed(list(nx.topological_sort(graph))):
            level[name] = max((level[each] + 1 for each in graph.successors(name)), default=0)
        tops = [name for name in graph if not graph.in_degree(name)]
        highest = max(tops, key=level.__getitem__)
        if level[highest] + (len(tops) > 1) > len(topology.uplinks):
            fix = f"name {level[highest] + (len(tops) > 1)} levels in `uplinks`"
            raise ValueError(f"{highest!r} is {level[highest]} levels above machines; {fix}")
        self._uplinks = topology.uplinks
        self._root_level = level[highest] + 1
        self._paths = {name: self._blocks(graph, level, name) for name in graph if not level[name]}

    def _blocks(self, graph: Any, level: Mapping[str, int], machine: str) -> tuple[str, ...]:
        path, at = [machine] * (self._root_level - 1), machine
        while graph.in_degree(at):
            (at,) = graph.predecessors(at)
            # On levels that are left out above a switch, it is the block itself.
            path[level[at] - 1 :] = [at] * (self._root_level - level[at])
        return (*path, _ROOT)

    def path(self, machine: str) -> tuple[str, ...]:
        """Returns the block of a machine at each level from 1 on. Its name may have a domain that is left out here."""
        found = self._paths.get(machine) or self._paths.get(machine.partition(".")[0])
        return found or (*[machine] * (self._root_level - 1), _ROOT)

    def knows(self, machine: str) -> bool:
        """Returns whether the machine is below a switch."""
        return self.path(machine)[-2] != machine

    def level(self, machines: Iterable[str]) -> int:
        """Returns the level of the lowest switch that joins these machines; 0 for one machine."""
        paths = list({each: self.path(each) for each in machines}.values())
        levels = enumerate(zip(*paths, strict=True), 1)
        return 0 if len(paths) < 2 else next(level for level, blocks in levels if len({*blocks}) == 1)

    def closest_level(self, parts: Sequence[int], machines: Iterable[tuple[str, int]]) -> int:
        """Returns the lowest level of a switch below which such a gang fits if all of these machines are free.

        `machines`: name and accelerators of each; the root's level if they cannot hold it.
        """
        if len(parts) == 1:
            return 0
        able = [FreeMachine(0, size, 0, self.path(name)) for name, size in machines]
        levels = range(1, self._root_level)
        fits = (at for at in levels if any(holds(parts, block) for block in blocks_of(able, at).values()))
        return next(fits, self._root_level)

    def slowest(self, machines: Iterable[str]) -> float:
        """Returns the slowest link between these machines (two at least), bytes per second."""
        return self._slowest_at(self.level(machines))

    def slowest_at_best(self, parts: Sequence[int], machines: Iterable[tuple[str, int]]) -> float:
        """Returns the same for a gang of these parts, largest first, in the closest place if all of these are free."""
        return self._slowest_at(self.closest_level(parts, machines))

    def _slowest_at(self, level: int) -> float:
        return min(speed for _, speed in self._uplinks[:level])

    def crossed(self, machines: Iterable[str]) -> str:
        """Returns over what the slowest path between these machines leads, such as `2 racks`."""
        named = list(machines)
        below = max(self.level(named) - 1, 0)
        blocks = {each if not below else self.path(each)[below - 1] for each in named}
        return f"{len(blocks)} {self._uplinks[min(below, len(self._uplinks) - 1)][0]}s"


def blocks_of(machines: Iterable[FreeMachine], level: int) -> dict[str, list[FreeMachine]]:
    """Returns the machines by their block at this level, in the order in which the blocks come first."""
    found: dict[str, list[FreeMachine]] = {}
    for machine in machines:
        found.setdefault(machine.path[level - 1], []).append(machine)
    return found


def holds(parts: Sequence[int], machines: Iterable[FreeMachine]) -> bool:
    """Returns whether each of the parts, largest first, has a machine of its own."""
    return len(_held(parts, machines)) == len(parts)


def _held(parts: Sequence[int], machines: Iterable[FreeMachine]) -> list[int]:
    """Returns which of the parts, largest first, these machines can hold: as many as possible, the largest."""
    free, held = sorted((machine.free for machine in machines), reverse=True), list[int]()
    for part in parts:
        if len(held) < len(free) and free[len(held)] >= part:
            held.append(part)
    return held


def tightest_machines(parts: Sequence[int], machines: Sequence[FreeMachine]) -> list[tuple[int, int]] | None:
    """Returns (row, part) of machines for two parts of a gang or more, largest first; None if there are not enough.

    They are below one switch of the lowest level that holds the gang: the one with the fewest accelerators free. Of
    switches below that one the fewest are crossed. A machine has the fewest accelerators free that suffice.
    """
    for level in range(1, len(machines[0].path) + 1) if machines else ():
        able_blocks = [block for block in blocks_of(machines, level).values() if holds(parts, block)]
        if able_blocks:
            return _taken(parts, min(able_blocks, key=_tightness), level)
    return None


def _tightness(block: Sequence[FreeMachine]) -> tuple[int, int]:
    return sum(machine.free for machine in block), block[0].row


def _taken(parts: Sequence[int], block: list[FreeMachine], level: int) -> list[tuple[int, int]]:
    """Returns (row, part) on machines of a block that holds the parts."""
    left, chosen = list(parts), list[tuple[int, int]]()
    if level == 1:
        for part in parts:
            best = min((each for each in block if each.free >= part), key=lambda each: (each.free, each.rank, each.row))
            block = [each for each in block if each is not best]
            chosen.append((best.row, part))
        return chosen
    below = list(blocks_of(block, level - 1).values())
    while left:
        able = [each for each in below if holds(left, each)]
        if able:
            return chosen + _taken(left, min(able, key=_tightness), level - 1)
        most = max(below, key=lambda each: (len(_held(left, each)), [-cost for cost in _tightness(each)]))
        below.remove(most)
        taken = _held(left, most)
        chosen += _taken(taken, most, level - 1)
        for part in taken:
            left.remove(part)
    return chosen
