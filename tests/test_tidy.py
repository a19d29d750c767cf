"""Rules of this repository that a machine can check. Each failure names the place and says what to do."""

import ast
import gc
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("walras", "optimizer", "scheduler", "workers", "simulator")
#: Decisions read no clock and draw no chance; the cloud models are handed a `Random`.
PURE = ("optimizer", "scheduler/core")

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70
MAX_FILE_BYTES = 200_000

#: "path" or "path:function" -> why it may be longer than the limits. An entry that is no longer needed is an error.
LONG_WITH_REASON: dict[str, str] = {}

#: Public classes and functions whose name stands in several modules: why each has to.
SHARED_NAMES_WITH_REASON: dict[str, str] = {}

#: Where text for a person is written to standard output on purpose.
MAY_PRINT = ("walras/cli/", "walras/demo/", "simulator/simulate_actions.py", "benchmarks/", "configs/jobs/")

#: Modules that nobody imports because something outside Python names them.
ENTRY_POINTS = {
    "walras.__main__": "the console script of pyproject.toml",
    "walras.training.roles": "the command of a job with roles (walras/spec/roles.py)",
    "workers.pilot": "the first process of an allocation of Slurm, started by its batch script",
}


@cache
def tracked(*suffixes: str) -> list[Path]:
    """Files of the repository with one of the suffixes: tracked ones, and new ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = (ROOT / name for name in listed.stdout.decode().split("\0") if name)
    return sorted(path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def forget() -> Iterator[None]:
    """Other tests of the process need not carry the trees; nor does the collector walk them while they grow."""
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()


def package_sources() -> list[Path]:
    return [path for path in tracked(".py") if name_of(path).split("/")[0] in PACKAGES]


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def too_long(path: Path) -> Iterator[tuple[str, int]]:
    text = path.read_text()
    if text.count("\n") > MAX_FILE_LINES:
        yield name_of(path), text.count("\n")
    for function in functions(tree_of(path)):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > MAX_FUNCTION_LINES:
            yield f"{name_of(path)}:{function.name}", length


def test_files_and_functions_stay_short() -> None:
    """No file is longer than 800 lines and no function than 70, except where a reason is written down here."""
    found = dict(entry for path in tracked(".py") for entry in too_long(path))
    assert {name: lines for name, lines in found.items() if name not in LONG_WITH_REASON} == {}
    assert set(LONG_WITH_REASON) - set(found) == set(), "waivers that nothing needs any more"


def modules_of_the_product() -> list[Path]:
    return [path for path in package_sources() if path.name not in ("__init__.py", "__main__.py")]


def test_a_public_name_lives_in_one_module() -> None:
    """A public class or function has a name that no other module of the product gives to another one."""
    homes: dict[str, set[str]] = defaultdict(set)
    for path in modules_of_the_product():
        for node in tree_of(path).body:
            is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if is_definition and not node.name.startswith("_"):
                homes[node.name].add(name_of(path))
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    assert {name: places for name, places in shared.items() if name not in SHARED_NAMES_WITH_REASON} == {}
    assert set(SHARED_NAMES_WITH_REASON) - set(shared) == set(), "waivers that nothing needs any more"
    assert sum(map(len, shared.values())) <= 0.04 * sum(map(len, homes.values()))


def private_names(tree: ast.Module) -> Iterator[str]:
    """Functions, classes and constants of a module that begin with one underscore, but for what a decorator takes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.decorator_list:
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def test_what_is_private_is_used_where_it_stands() -> None:
    """A helper or constant that its own file does not name again is left over, or was never called."""
    places = [
        f"{name_of(path)}:{name}"
        for path in package_sources()
        for words in [Counter(re.findall(r"\w+", path.read_text()))]
        for name in private_names(tree_of(path))
        if re.fullmatch(r"_[^_].*", name) and words[name] < 2
    ]
    assert places == []


def test_only_faces_print() -> None:
    """Libraries and daemons log or return; only commands, the demo, benchmarks and example scripts print."""
    places = [
        f"{name_of(path)}:{node.lineno}"
        for path in tracked(".py")
        if not name_of(path).startswith((*MAY_PRINT, "tests/"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        # The in-job client has no logging of its own: it may tell a person through standard error.
        if not any(keyword.arg == "file" for keyword in node.keywords)
    ]
    assert places == []


def test_decisions_read_no_clock_and_draw_no_chance() -> None:
    """`optimizer` and `scheduler.core` never name a clock or a source of randomness, however imported."""
    clocks = re.compile(r"\b(time\.(time|monotonic|perf_counter|sleep)|datetime\.now|np\.random|numpy\.random)\b")
    places = [
        f"{name_of(path)}:{number}"
        for path in package_sources()
        if name_of(path).startswith(PURE)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if clocks.search(line)
    ]
    assert places == []


#: Shells whose clocks and chance are arguments, but for these files: they run outside of what is simulated.
SHELLS = ("scheduler/live/", "workers/agent/")
REAL_CLOCKS_WITH_REASON = {
    "scheduler/live/providers/local_provider.py": "starts real processes and waits for them",
    "scheduler/live/auth/job_privacy.py": "a nonce that could be guessed would be none",
    "workers/agent/follower.py": "the clock of supervisors, `processes.boottime`, which a simulation replaces",
    "workers/agent/report_store.py": "the same clock",
}


def test_shells_are_given_their_clocks_and_chance() -> None:
    """Server and agents name neither `time` nor `random` nor `secrets` to call them: a whole system runs in virtual
    time from one seed."""
    calls = re.compile(
        r"\b(time\.(time|monotonic|sleep|time_ns|monotonic_ns|clock_gettime)|secrets\.token_\w+|os\.urandom"
        r"|random\.(random|uniform|choice|randint|randrange|shuffle|sample)|uuid\.uuid\d|processes\.boottime)\("
    )
    found = {
        name_of(path)
        for path in package_sources()
        if name_of(path).startswith(SHELLS) and calls.search(path.read_text())
    }
    assert found == set(REAL_CLOCKS_WITH_REASON)


def test_nothing_asks_whether_it_is_simulated() -> None:
    """Live and simulated runs differ in their neighbours, never by a flag."""
    asks = re.compile(r"\b(_simulate|is_simulat\w+|simulation_mode|if simulated)\b")
    places = [name_of(path) for path in package_sources() if asks.search(path.read_text())]
    assert places == []


def test_no_unfinished_business() -> None:
    """Notes to self belong in issues: none in code, configuration or documents."""
    marks = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
    places = [
        f"{name_of(path)}:{number}"
        for path in tracked(".py", ".yaml", ".yml", ".toml", ".md", ".sql", ".sh")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert places == []


def test_no_big_files() -> None:
    """Nothing above 200 kB is committed."""
    assert [name_of(path) for path in tracked() if path.stat().st_size > MAX_FILE_BYTES] == []


def test_package_files_hold_a_docstring_only() -> None:
    """An `__init__.py` re-exports nothing (`walras` itself excepted): imports name the exact module."""
    places = []
    for path in package_sources():
        if path.name != "__init__.py" or name_of(path) == "walras/__init__.py":
            continue
        body = tree_of(path).body
        if len(body) != 1 or ast.get_docstring(tree_of(path)) is None:
            places.append(name_of(path))
    # Users import from `walras.training` and from `walras.lab`: those two gather their public names.
    gathering = {"walras/training/__init__.py", "walras/lab/__init__.py"}
    assert [place for place in places if place not in gathering] == []


def test_every_module_says_what_it_is() -> None:
    """Every module and example script begins with a docstring (a test's names and docstrings speak for its file)."""
    silent = [path for path in tracked(".py") if ast.get_docstring(tree_of(path)) is None]
    assert [name_of(path) for path in silent if not name_of(path).startswith("tests/")] == []


def test_no_dead_modules() -> None:
    """Every module of the packages is imported by another one, or listed with whoever loads it by name."""
    sources = [path for path in package_sources() if path.name not in ("__init__.py", "__main__.py")]
    modules = {name_of(path)[:-3].replace("/", ".") for path in sources}
    used: set[str] = set()
    for path in package_sources():
        text = path.read_text()
        used |= imported_modules(tree_of(path), name_of(path))
        # Loaded by name: "scheduler.live.server" as a string, alone or before a colon.
        used |= set(re.findall(r"""["']([a-z_]+(?:\.[a-z_0-9]+)+)(?=["':])""", text))
    assert sorted(modules - used - set(ENTRY_POINTS)) == []
    assert sorted(used & set(ENTRY_POINTS)) == [], "imported, so no exception"


@cache
def imports_of_modules() -> dict[str, set[str]]:
    """What each of our modules imports of ours, for types alone and inside functions too; its own package left out."""
    modules = {name_of(path)[:-3].replace("/", ".").removesuffix(".__init__"): path for path in package_sources()}
    imports: dict[str, set[str]] = {}
    for module, path in modules.items():
        found = imported_modules(tree_of(path), name_of(path)) & modules.keys()
        imports[module] = {other for other in found if not f"{module}.".startswith(f"{other}.")}
    return imports


def ring(imports: dict[str, set[str]]) -> str:
    """One that the imports form, spelt out; empty where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return " <- ".join(error.args[1])
    return ""


def test_no_two_modules_import_each_other() -> None:
    """Modules form no rings: what two of them share has a home of its own."""
    assert ring(imports_of_modules()) == ""


@pytest.mark.parametrize("depth", [2, 3])
def test_no_two_rooms_import_each_other(depth: int) -> None:
    """Nor do the folders of a package, each with all that is below it, nor the folders in those; what lies beside them
    belongs to none."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, found in imports_of_modules().items():
        room, others = room_of(module, depth), {room_of(other, depth) for other in found}
        if room:
            rooms[room] |= others - {room, ""}
    assert ring(rooms) == ""


def room_of(module: str, depth: int) -> str:
    parts = module.split(".")
    return ".".join(parts[:depth]) if len(parts) > depth else ""


def imported_modules(tree: ast.Module, name: str) -> set[str]:
    """Names that the imports of one file may stand for: `from a import b` is `a` and `a.b`."""
    package = name.rsplit("/", 1)[0].replace("/", ".")
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.rsplit(".", node.level - 1)[0]
                base = f"{parent}.{base}" if base else parent
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found
