"""The documents stay true: links lead somewhere, commands exist, every command is written about."""

import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer.main

from tests.support.api_page import PAGE, written
from tests.support.house_measures import PACKAGES, sources
from walras.cli.main import app, current_words

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: Commands for people who know what they are asking for need no prose of their own.
UNDOCUMENTED: set[str] = set()


ARCHITECTURE = ROOT / "ARCHITECTURE.md"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def command_tree() -> dict[str, set[str]]:
    """Each command of the CLI (`policy apply` for one of a group) with its options."""
    found: dict[str, set[str]] = {}

    def walk(command: object, words: tuple[str, ...]) -> None:
        children = getattr(command, "commands", None)
        if children:
            for name, child in children.items():
                if not getattr(child, "hidden", False):
                    walk(child, (*words, name))
        else:
            parameters = getattr(command, "params", [])
            options = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}
            found[" ".join(words)] = options | {"-h", "--help"}

    walk(typer.main.get_command(app), ())
    return found


def written_commands(text: str) -> list[list[str]]:
    """Every `walras ...` in code: whole lines of code blocks, and code spans."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    lines += [line.strip() for line in re.findall(r"^    (.+)$", text, re.MULTILINE)]
    lines += re.findall(r"`(walras [^`]+)`", text)
    commands = []
    for line in lines:
        bare = line.removeprefix("$ ").split("#")[0].split(" | ")[0].strip()
        if bare.startswith(("walras ", ".venv/bin/walras ")):
            commands.append(shlex.split(bare, posix=True))
    return commands


def matching(words: list[str], commands: dict[str, set[str]]) -> str | None:
    """The longest command that the words begin with."""
    for length in (3, 2, 1):
        if " ".join(words[1 : 1 + length]) in commands:
            return " ".join(words[1 : 1 + length])
    return None


def is_group(words: list[str], commands: dict[str, set[str]]) -> bool:
    """Whether a group is written, alone or with a placeholder for its commands: `walras admin`, `walras VERB`."""
    named = [word for word in words[1:] if re.fullmatch(r"[a-z][a-z-]*", word)]
    return not named or any(name.startswith(f"{' '.join(named)} ") for name in commands)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link names a file that exists, and every `#section` a heading in it."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, section = target.partition("#")
        path = (document.parent / file).resolve() if file else document
        if not path.exists() or (section and section not in anchors(path)):
            broken.append(target)
    assert broken == []


def anchors(path: Path) -> set[str]:
    """Headings as the names that links use."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_written_commands_exist(document: Path) -> None:
    """Every `walras` command in a document exists, with every option that it is written with."""
    commands = command_tree()
    wrong = []
    for words in written_commands(document.read_text()):
        if document.name == "CHANGELOG.md":  # entries name commands as they were
            words = ["walras", *current_words(words[1:])[0]]
        command = matching(words, commands)
        if command is None:
            if not is_group(words, commands):
                wrong.append(" ".join(words))
            continue
        # What comes after `--` is the job's own command.
        ours = words[: words.index("--")] if "--" in words else words
        options = {word.split("=")[0] for word in ours if re.match(r"--?[a-z]", word)}
        wrong += [f"{command} {option}" for option in sorted(options - commands[command])]
    assert wrong == []


def test_commands_that_answers_name_exist() -> None:
    """What the product tells people to type can be typed: every `walras ...` in its texts, with its options."""
    commands, wrong, seen = command_tree(), [], 0
    for path in sources(*PACKAGES):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(each.value if _is_text(each) else "X" for each in parts)  # type: ignore[attr-defined]
            for named, rest in re.findall(r"\bwalras ((?:[a-z][a-z-]* ?)+)([^`\n.;]*)", text):
                words = ["walras", *named.split()]
                command = matching(words, commands)
                if command is None:
                    wrong += [] if is_group(words, commands) or words[1] == "command" else [text[:80]]
                    continue
                seen += 1
                options = re.findall(r"(?<!\S)--[a-z-]+", f"{named}{rest}".split(" -- ")[0])
                wrong += [f"{command} {option}" for option in options if option not in commands[command]]
    assert (wrong, seen > 150) == ([], True)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_every_command_is_written_about() -> None:
    """Each command of the CLI occurs in the README or below docs/."""
    text = "\n".join(document.read_text() for document in DOCUMENTS if document.name != "CHANGELOG.md")
    missing = [name for name in command_tree() if not re.search(rf"walras {re.escape(name)}\b", text)]
    assert sorted(set(missing) - UNDOCUMENTED) == []


def test_every_command_has_help() -> None:
    """No command and no option is without a line that says what it does."""
    import walras.cli.main as cli

    silent = []

    def walk(command: object, words: tuple[str, ...]) -> None:
        if not getattr(command, "help", None):
            silent.append(" ".join(words))
        for parameter in getattr(command, "params", []):
            if getattr(parameter, "help", "-") in (None, ""):
                silent.append(f"{' '.join(words)} {parameter.name}")
        for name, child in getattr(command, "commands", {}).items():
            walk(child, (*words, name))

    walk(typer.main.get_command(cli.app), ("walras",))
    assert silent == []


def test_make_targets_in_documents_exist() -> None:
    """Every `make ...` that a document names is a target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for document in DOCUMENTS
        for target in re.findall(r"(?:^    |`|^\$ )make ([a-z-]+)", document.read_text(), re.MULTILINE)
    }
    assert named - targets == set()


def test_commands_of_the_results_name_files_that_exist() -> None:
    """Every file in a command column of docs/results.md is there, so that its figure can be measured again."""
    missing = []
    for row in re.findall(r"^\|(.+)\|$", (ROOT / "docs/results.md").read_text(), re.MULTILINE)[2:]:
        for command in re.findall(r"`([^`]+)`", row):
            paths = [word for word in shlex.split(command) if re.search(r"\.(py|yaml|sh)$", word)]
            missing += [path for path in paths if not (ROOT / path).exists()]
    assert missing == []


def test_documents_name_files_that_exist() -> None:
    """Paths in code spans of the documents exist (patterns with * match something)."""
    roots = (
        "walras/", "optimizer/", "scheduler/", "workers/", "simulator/", "configs/", "docs/", "tests/", "benchmarks/",
    )  # fmt: skip
    missing = []
    for document in DOCUMENTS:
        for span in re.findall(r"`([\w./*-]+)`", document.read_text()):
            found = list(ROOT.glob(span)) if "*" in span else [ROOT / span] * (ROOT / span).exists()
            if span.startswith(roots) and not found:
                missing.append(f"{name_of(document)}: {span}")
    assert missing == []


def test_every_room_is_on_the_map() -> None:
    """Each folder of the packages, two deep, is named in ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = [ROOT / name for name in ("walras", "optimizer", "scheduler", "workers", "simulator")]
    rooms = [path.parent for package in packages for path in (*package.glob("*/__init__.py"),)]
    rooms += [path.parent for path in (ROOT / "scheduler").glob("*/*/__init__.py")]
    assert [name_of(room) for room in rooms if f"`{room.name}/`" not in text and f"/{room.name}/`" not in text] == []


def ways() -> dict[str, list[list[tuple[str, list[str]]]]]:
    """The ways of ARCHITECTURE.md: title -> stretches between borders -> (file, names it is to hold), in order."""
    found: dict[str, list[list[tuple[str, list[str]]]]] = {}
    for title, body in re.findall(r"^## (The way of [^\n]+)\n(.*?)(?=^## )", ARCHITECTURE.read_text(), re.M | re.S):
        stretches = [
            re.findall(r"^\d+\. `([\w/]+\.py)`(.*)$", part, re.M) for part in re.split(r"^ +\*.+\*$", body, flags=re.M)
        ]
        found[title] = [[(file, re.findall(r"`([\w.]+)`", text)) for file, text in part] for part in stretches]
    return found


def test_the_ways_through_the_code_lead_somewhere() -> None:
    """On each way of ARCHITECTURE.md the files exist, hold the names that are said of them, and follow each other's
    imports, except across a border that is named."""
    wrong, steps = [], 0
    for title, stretches in ways().items():
        for stretch in stretches:
            for number, (file, names) in enumerate(stretch):
                steps += 1
                text = (ROOT / file).read_text()
                words = [name.split(".")[-1] for name in names]
                wrong += [f"{title}: {file} holds no {word}" for word in words if not re.search(rf"\b{word}\b", text)]
                before = [earlier for earlier, _ in stretch[:number]]
                if before and not any(imports(a, b) for other in before for a, b in ((other, file), (file, other))):
                    wrong.append(f"{title}: no import leads to {file}")
    assert wrong == []
    assert len(ways()) == 3
    assert steps > 30


def imports(importer: str, imported: str) -> bool:
    """Whether one file imports the other, at its top or inside a function."""
    module = imported[:-3].replace("/", ".")
    nodes = [node for node in ast.walk(ast.parse((ROOT / importer).read_text())) if isinstance(node, ast.ImportFrom)]
    return any(module in {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)} for node in nodes)


def test_the_files_to_read_first_exist() -> None:
    """ARCHITECTURE.md names twelve files for the first reading."""
    section = ARCHITECTURE.read_text().split("## Read these files first")[1].split("## ")[0]
    files = re.findall(r"^\d+\. `([^`]+)`", section, re.M)
    assert len(files) == 12
    assert [file for file in files if not (ROOT / file).is_file()] == []


KINDS_OF_FILES = ("jobs", "clusters", "workloads")


def test_example_jobs_and_files_parse() -> None:
    """Every job, cluster and workload file below configs/ is accepted as it stands."""
    from walras.spec.cluster_file import ClusterConfig
    from walras.spec.file_model import load_yaml
    from walras.spec.job_spec import parse_spec
    from walras.spec.workload_file import WorkloadFile

    jobs, clusters, workloads = (sorted((ROOT / "configs" / name).glob("*.yaml")) for name in KINDS_OF_FILES)
    assert all((jobs, clusters, workloads)), "a folder of examples is empty"
    for path in jobs:
        parse_spec(path.read_bytes(), source=path.name)
    for path in clusters:
        load_yaml(path, ClusterConfig)
    for path in workloads:
        load_yaml(path, WorkloadFile)


def test_the_repository_speaks_of_the_software_alone() -> None:
    """No absolute path of a machine stands in a tracked text file."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.decode().split("\0") if name.endswith((".md", ".py", ".yaml", ".toml"))]
    machine_path = re.compile(r"/(?:work" r"|home/[a-z]+|root)/[a-z]")
    found = [name for name in names if (ROOT / name).exists() and machine_path.search((ROOT / name).read_text())]
    assert found == []


def test_every_promise_names_a_test_that_is_there() -> None:
    """docs/reliability.md: each row of a promise ends with files of tests that exist."""
    text = (ROOT / "docs" / "reliability.md").read_text()
    promises = [row for row in re.findall(r"^\| (.+) \|$", text, re.MULTILINE) if "tests/" in row]
    assert len(promises) >= 25
    named = {name for row in promises for name in re.findall(r"`(tests/[\w/]+\.py)`", row.rsplit("|", 1)[1])}
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
    assert [row for row in promises if "`tests/" not in row.rsplit("|", 1)[1]] == []


def test_the_page_of_the_api_names_every_error() -> None:
    """Each code of an answer stands in docs/api.md beside its status."""
    from scheduler.live.http.requests import _PROBLEM_KINDS, problem_detail_of
    from walras.errors import ClusterError

    codes = {(status, code) for _, status, code, _ in _PROBLEM_KINDS}
    unknown = problem_detail_of(ClusterError("it failed"))
    rows = dict(re.findall(r"^\| (\d{3}) \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    assert [each for each in {*codes, (unknown.status, unknown.code)} if f"`{each[1]}`" not in rows[str(each[0])]] == []


def test_the_page_of_the_api_says_what_the_endpoints_declare() -> None:
    """Its tables are written by `python -m tests.support.api_page`."""
    assert PAGE.read_text() == written(PAGE.read_text())
