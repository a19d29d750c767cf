"""The commands about the cluster, its policy and its administration; settings, exit codes, and what gets loaded."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import walras
from scheduler.live.main import ListenOptions
from walras.cli import main
from walras.cli.main import app
from walras.cli.operator_commands import show_first_steps
from walras.cli.session import last_submitted_job, remember_submitted_job
from walras.cli.terminal_output import LogText, safe_text
from walras.errors import ConfigError, UserError
from walras.server_access import server_access

Run = Callable[..., Any]
ROOT = Path(walras.__file__).resolve().parent.parent


def test_nodes_and_prices(run: Run, fake: Any) -> None:
    """Machines with what is free on them, always labelled where emulated; prices beside the market's, certified."""
    nodes = run("nodes").stdout
    assert "a100 (emulated)" in nodes
    assert "1,2" in nodes
    assert "1.5s ago" in nodes
    assert "PROTOCOL" not in nodes
    verbose = run("nodes", "--verbose").stdout
    assert "PROTOCOL" in verbose
    assert "97 3%" in verbose
    assert "250 W" in verbose
    assert json.loads(run("nodes", "-o", "json").stdout)[0]["free"] == 1
    prices = run("prices").stdout
    assert "0.125" in prices
    assert "$0.9000/h" in prices
    assert "solve gap 0.00%" in prices
    assert "whole gangs" not in prices
    assert "vision: one accelerator more than its limit would be worth 0.25 to its jobs (share per accel" in prices
    assert "speech: others would pay 0.125 for an accelerator that its guarantee keeps (share per accel" in prices
    whole = run("prices", "--whole").stdout
    assert "integral bound of the round, for whole gangs: 0.375, 25.0% short of the bound" in whole
    assert json.loads(run("prices", "-o", "json").stdout)["items"][0]["unit"] == "share per accelerator"


def test_versions_of_the_policy_are_listed_compared_and_put_back(run: Run, fake: Any, tmp_path: Path) -> None:
    """A rollback goes to the newest version that is another policy, and only over the version that was looked at."""
    history = run("policy", "show", "--history").stdout
    assert "calm" in history
    assert "fifo" in history
    bare = run("policy", "history", "--no-header").stdout
    assert [line.split() for line in bare.splitlines()] == [line.split() for line in history.splitlines()[1:]]
    assert run("policy", "show", "--no-header").exit_code == 2
    assert "name: fifo" in run("policy", "show", "--version", "7").stdout
    diff = json.loads(run("policy", "diff", "7", "-o", "json").stdout)
    assert {"field": "policy.name", "a": "fifo", "b": "max_min_fairness"} in diff
    assert {"field": "policy.parameters.then", "a": None, "b": "levels"} in diff
    assert "they are the same" in run("policy", "diff", "8", "current").stdout
    file = tmp_path / "p.yaml"
    file.write_text("policy: {name: fifo}\nrules: {round_s: 20}\n")
    (row,) = json.loads(run("policy", "diff", "fifo", str(file), "-o", "json").stdout)
    assert (row["field"], row["b"]) == ("rules.round_s", 20.0)
    assert run("policy", "apply", "--rollback").exit_code == 0
    body = {"policy": {"name": "fifo", "parameters": {}}, "rules": {"round_s": 12.0}}
    assert fake.requests[-1] == ("PUT", "/api/v1/policy?reason=back+to+version+7&if_version=9", body)
    assert run("policy", "apply", "fifo", "--reason", "calm", "--if-version", "9").exit_code == 0
    assert fake.requests[-1] == ("PUT", "/api/v1/policy?reason=calm&if_version=9", {"policy": {"name": "fifo"}})
    refused = run("policy", "apply", "--rollback", "3")
    assert refused.exit_code == 2
    assert "7 to 9" in refused.stderr


def test_policy(run: Run, fake: Any, tmp_path: Path) -> None:
    """The policy is shown as a policy file, checked without effect, set, and refused with the server's advice."""
    shown = run("policy", "show").stdout
    assert "name: max_min_fairness" in shown
    assert "round_s: 12.0" in shown
    file = tmp_path / "p.yaml"
    file.write_text("policy: {name: fifo}\n")
    tried = run("policy", "apply", str(file), "--dry-run").stdout
    assert "nothing was changed" in tried
    assert "in force" not in tried
    assert fake.requests[-1][:2] == ("PUT", "/api/v1/policy?dry_run=true")
    assert json.loads(run("policy", "apply", str(file), "-o", "json").stdout)["name"] == "fifo"
    # Over the version to which it was compared: what another has put in force since is not lost unseen.
    assert fake.requests[-1] == ("PUT", "/api/v1/policy?if_version=2", {"policy": {"name": "fifo"}})
    file.write_text("policy: {name: max_mim}\n")
    refused = run("policy", "apply", str(file))
    assert refused.exit_code == 2
    assert "did you mean max_min_fairness?" in refused.stderr
    assert "policy.name" in refused.stderr


def test_a_policy_that_removes_budgets_is_not_applied_without_a_yes(run: Run, fake: Any, tmp_path: Path) -> None:
    """The difference is shown; where nobody can be asked, `--yes` is needed, and nothing is changed without it."""
    file = tmp_path / "p.yaml"
    file.write_text("policy: {name: fifo}\nrules: {budgets: []}\n")
    fake.policy_rules = {"budgets": [{"project": "lab", "usd": 9.0}], "round_s": 12.0}
    refused = run("policy", "apply", str(file))
    assert refused.exit_code == 2
    assert "this removes 1 budget" in refused.stderr
    assert "rules.budgets: [{'project': 'lab', 'usd': 9.0}] -> []" in refused.stdout
    assert all("dry_run" in path for method, path, *_ in fake.requests if method == "PUT")
    assert run("policy", "apply", str(file), "--yes").exit_code == 0
    assert fake.requests[-1][:2] == ("PUT", "/api/v1/policy?if_version=2")


def test_admin_audit(run: Run, fake: Any) -> None:
    """Who changed what; a length of time becomes an instant, a name a filter."""
    shown = run("admin", "list", "audit", "user=ada", "since=1h", "limit=5").stdout
    assert "PATCH /jobs/{job_id}" in shown
    assert "priority=50" in shown
    assert "priority=80" in shown
    asked = fake.requests[-1][1]
    assert re.search(r"/api/v1/audit\?user=ada&since=20\d\d-.*&limit=5$", asked), asked
    assert json.loads(run("admin", "list", "audit", "-o", "json").stdout)[0]["address"] == "10.0.0.7"
    assert run("admin", "list", "audit", "since=long").exit_code == 2


def test_admin(run: Run, fake: Any) -> None:
    """A token's secret stands alone on standard output; machines are drained and resumed by name."""
    made = run("admin", "add", "token", "ada", "projects=vision", "expires=90d")
    assert made.stdout == "walras_new_secret\n"
    assert fake.requests[-1][2] == {"user": "ada", "role": "user", "projects": ["vision"], "expires_in_s": 7_776_000.0}
    assert run("admin", "drain", "n1").exit_code == 0
    assert run("admin", "drain", "--off", "rack/../1").exit_code == 0
    assert fake.requests[-1][1] == "/api/v1/nodes/rack%2F..%2F1/resume"
    assert run("admin", "add", "token", "ada", "expires=never").exit_code == 2


@pytest.mark.parametrize(
    ("words", "method", "path", "body"),
    [
        ("set user ada role=operator projects=vision,nlp", "PATCH", "users/ada",
         {"role": "operator", "projects": ["vision", "nlp"]}),
        ("user set ada --role operator --project vision -p nlp", "PATCH", "users/ada",
         {"role": "operator", "projects": ["vision", "nlp"]}),
        ("add user ada projects=vision", "POST", "users", {"name": "ada", "settings": {"projects": ["vision"]}}),
        ("set role user max_priority=80 caps.may_pin=true", "PATCH", "roles/user",
         {"caps": {"max_priority": 80, "may_pin": True}}),
        ("set project vision max_priority=50 max_weight=none priority=40 value_usd_per_h=2.5", "PATCH",
         "projects/vision", {"caps": {"max_priority": 50, "max_weight": None},
                             "defaults": {"priority": 40, "value_usd_per_h": 2.5}}),
        ("project set guests --limit fleet=8 --limit a100=none --weight 4 --may-not-pin", "PATCH", "projects/guests",
         {"share": {"limits": {"fleet": 8, "a100": None}, "weight": 4.0}, "caps": {"may_pin": False}}),
        ("set project vision owned.h100=8 owned.a100/owned/default=none", "PATCH", "projects/vision",
         {"share": {"owned": {"h100": 8, "a100/owned/default": None}}}),
        ("set project vision users.a.b.weight=2 users.a.b.limits.g5.xlarge/spot/eu=4", "PATCH", "projects/vision",
         {"users": {"a.b": {"weight": 2.0, "limits": {"g5.xlarge/spot/eu": 4}}}}),
    ],
)  # fmt: skip
def test_fields_of_people_are_sent_in_their_groups(
    run: Run, fake: Any, words: str, method: str, path: str, body: dict[str, Any]
) -> None:
    """By the shortest name that is one field's alone; also as the release before wrote them."""
    run("admin", *words.split())
    assert fake.requests[-1] == (method, f"/api/v1/{path}", body)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("set project vision", "nothing is to be changed"),
        ("set project vision max_prio=5", "did you mean `max_priority`?"),
        ("set project vision max_priority=500", "max_priority: "),
        ("set project vision weight", "is not FIELD=VALUE"),
        ("set project vision caps=5", "caps: unknown field"),
        ("set project vision colour=5", "known fields: guaranteed, limits, "),
        ("set project vision help", "fields: guaranteed, limits, "),
        ("set project vision limits.fleet=many", "limits.fleet: "),
        ("set project vision users.ada.owned.h100=8", "users.ada.owned"),
        ("set token walras_u role=user", "choose from user, project, role, pool"),
        ("add role chef", "choose from user, project, token, pool, reservation, credit"),
        ("add user", "a user has a name"),
        ("list users role=user", "says nothing of it"),
        ("list nodes", "walras nodes"),
        ("token show", "No such command"),
    ],
)
def test_words_that_no_resource_has_are_refused_before_the_server_is_asked(
    run: Run, fake: Any, words: str, told: str
) -> None:
    before = len(fake.requests)
    done = run("admin", *words.split())
    assert (done.exit_code, len(fake.requests)) == (2, before)
    assert told in done.stderr


def test_version_and_help() -> None:
    """The version is printed, and every command explains itself."""
    assert CliRunner().invoke(app, ["--version"]).stdout == f"{walras.__version__}\n"
    assert CliRunner().invoke(app, ["submit", "-h"]).exit_code == 0


# ----------------------------------------------------------------------------------------------- settings and errors


def test_no_server_answers() -> None:
    """75 and how to start one; a server that is named nowhere is the user's to mend."""
    result = CliRunner().invoke(app, ["queue"], env={"WALRAS_SERVER": "http://127.0.0.1:9", "WALRAS_TOKEN": "t"})
    assert result.exit_code == 75
    assert "http://127.0.0.1:9" in result.stderr
    assert "walras server --data DIR" in result.stderr


def test_settings_come_from_variables_then_from_the_file(tmp_path: Path) -> None:
    """Variables win over the file; a token file is read; nothing at all is a user error that says what to set."""
    with pytest.raises(UserError, match="no server is named"):
        server_access({}, tmp_path)
    token = tmp_path / "t"
    token.write_text("secret\n")
    settings = tmp_path / ".config" / "walras" / "config.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"server: http://a:1\ntoken_file: {token}\n")
    assert (server_access({}, tmp_path).url, server_access({}, tmp_path).token) == ("http://a:1", "secret")
    assert server_access({"WALRAS_SERVER": "http://b:2", "WALRAS_TOKEN": "mine"}, tmp_path).token == "mine"
    settings.write_text("servr: http://a:1")
    with pytest.raises(ConfigError) as refusal:
        server_access({}, tmp_path)
    assert "`server`" in refusal.value.fix


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff\xfe", b"a\nb\n", b"x" * 10_000])
def test_token_files_hold_one_token(tmp_path: Path, content: bytes) -> None:
    """Anything else in a token file is refused, without printing it."""
    file = tmp_path / "t"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="does not hold one token") as refusal:
        server_access({"WALRAS_SERVER": "http://a:1", "WALRAS_TOKEN_FILE": str(file)}, tmp_path)
    assert "two words" not in str(refusal.value)
    with pytest.raises(ConfigError, match="No such file"):
        server_access({"WALRAS_SERVER": "http://a:1", "WALRAS_TOKEN_FILE": str(tmp_path / "none")}, tmp_path)


def test_the_last_job_belongs_to_its_server(tmp_path: Path) -> None:
    """`last` never means a job of another server."""
    remember_submitted_job("http://a:1", 12, tmp_path)
    assert last_submitted_job("http://a:1", tmp_path) == 12
    with pytest.raises(UserError, match="no job was submitted from here"):
        last_submitted_job("http://b:2", tmp_path)
    (tmp_path / "file").write_text("")
    remember_submitted_job("http://a:1", 13, tmp_path / "file")  # a home that cannot be written is no harm


# ------------------------------------------------------------------------------------------------- what is printed


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain", "plain"), ("\x1b[31mred\x1b[0m", "red"), ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1$r0m\x1b\\x", "x"), ("a\x07b\x00c", "a\ufffdb\ufffdc"), ("\u202eabc\u2066", "\ufffdabc\ufffd"),
        ("two\nlines\t", "two lines "), ("\x1b", "\ufffd"), ("naïve 💥 ✔", "naïve 💥 ✔"),
    ],
)  # fmt: skip
def test_text_from_jobs_is_made_safe(given: str, shown: str) -> None:
    """Escape sequences go, other control characters are replaced, ordinary text of any script stays."""
    assert safe_text(given) == shown


def test_logs_are_safe_wherever_the_pieces_end() -> None:
    """Cut at every place, inside characters and escapes, the text is the same."""
    content = "é\x1b[31m2\x1b[0m\r\nx\x1b]0;title\x07y\ry\U0001f4a5\x1b(B".encode() + b"\xff\x1b"
    whole = LogText()
    expected = whole.feed(content) + whole.feed(b"", final=True)
    assert expected == "é2\nxy\ny\U0001f4a5\ufffd\ufffd"
    for cut in range(len(content)):
        text = LogText()
        assert text.feed(content[:cut]) + text.feed(content[cut:]) + text.feed(b"", final=True) == expected


def test_a_line_that_is_written_over_counts_once(tmp_path: Path) -> None:
    """Of a progress bar what a terminal shows in the end, wherever the pieces are cut; a line without an end, too."""
    bar = "".join(f"\r{done:3d}%|{'#' * done}|" for done in range(101))
    content = f"begin\r\n{bar}\nend\n\r 1%\r 2%\r".encode()
    expected = f"begin\n100%|{'#' * 100}|\nend\n 2%"
    for cut in (0, 7, 8, 9, 500, len(content) - 6, len(content) - 1, len(content)):
        text = LogText(as_shown=True)
        assert text.feed(content[:cut]) + text.feed(content[cut:]) + text.feed(b"", final=True) == expected
    text = LogText(as_shown=True)
    assert len(text.feed(b"x" * 100_000)) > 30_000


def test_an_endless_escape_is_not_waited_for() -> None:
    """A sequence that never ends does not hold the log back, nor fill the memory."""
    text = LogText()
    shown = text.feed(b"a\x1b]0;" + b"x" * 5000)
    assert shown.startswith("a")
    assert len(shown) > 4000


# ------------------------------------------------------------------------------------------------ what gets loaded


def python(code: str, folder: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    """A fresh interpreter in another folder with our packages on its path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WALRAS_")}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        env=kept | {"PYTHONPATH": str(ROOT), "HOME": str(folder)} | env,
    )  # fmt: skip


def test_the_queue_loads_nothing_heavy(fake: Any, tmp_path: Path) -> None:
    """`walras queue` loads no solver, no arrays, no torch and none of the packages above `walras`; help loads less."""
    code = (
        "import sys\nfrom walras.cli.main import main\nsys.argv = ['walras', *{args}]\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        "print('LOADED', *sorted({{name.split('.')[0] for name in sys.modules}}))"
    )
    heavy = {"cvxpy", "numpy", "scipy", "torch", "networkx", "matplotlib", "numba", "sqlite_utils", "psutil"}
    ours = {"scheduler", "optimizer", "workers", "simulator"}
    for args, unwanted in ((["queue"], heavy | ours), (["--help"], heavy | ours | {"aiohttp", "pydantic", "yaml"})):
        done = python(code.format(args=args), tmp_path, WALRAS_SERVER=fake.url, WALRAS_TOKEN="walras_user_secret")
        assert done.returncode == 0, done.stderr
        assert unwanted & set(done.stdout.split("LOADED")[1].split()) == set()


@pytest.mark.parametrize("name", main.GENERIC_NAMES)
def test_a_file_that_hides_ours_is_named(tmp_path: Path, name: str) -> None:
    """With a user's module of a generic name first on the path, a daemon does not start and says which file it is."""
    (tmp_path / f"{name}.py").write_text("raise SystemExit('the user\\'s file ran')")
    code = "import sys; from walras.cli.main import main; sys.argv = ['walras', 'server', '--data', 'd']; main()"
    done = python(code, tmp_path, PYTHONPATH=os.pathsep.join([".", str(ROOT)]))
    assert done.returncode == 2
    assert f"{name!r} would be {tmp_path / name}.py" in done.stderr
    assert "unset PYTHONPATH" in done.stderr
    assert "ran" not in done.stderr + done.stdout
    assert not (tmp_path / "d").exists()


def test_a_package_that_is_not_installed_is_named() -> None:
    """A missing part or a missing library is a message with a command, not a traceback."""
    with pytest.raises(UserError, match=r"no scheduler\.nothing"), main.own_packages():
        importlib.import_module("scheduler.nothing")


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says who needs it, and how to install it."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.delitem(sys.modules, "walras.demo.main", raising=False)
    monkeypatch.delitem(sys.modules, "walras.demo.local_cluster", raising=False)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 2
    assert "walras.demo.main needs psutil, which is not installed" in result.stderr
    assert "fix: pip install 'walras[all]'" in result.stderr


class Recorder:
    """Stands in for a daemon's module: notes what it is started with."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.started: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def start(self, *args: Any, **options: Any) -> int:
        self.started.append((args, options))
        return self.code


@pytest.mark.parametrize(
    ("url", "told", "not_told"),
    [
        ("http://127.0.0.1:80", ["WALRAS_SERVER=http://127.0.0.1:80\n", "file '/d x/join.token'", "--tls self"], "ssh"),
        (
            "https://0.0.0.0:80",
            ["WALRAS_SERVER=https://localhost:80\n", "<(ssh ", " cat '/d x/join.token')"],
            "tls self",
        ),
        ("https://10.0.0.5:80", ["WALRAS_SERVER=https://10.0.0.5:80\n", "--server https://10.0.0.5:80"], "tls self"),
    ],
)
def test_a_first_start_prints_what_to_type_next(
    capsys: pytest.CaptureFixture[str], url: str, told: list[str], not_told: str
) -> None:
    """Both exports and the line for machines, with paths that a shell takes as they are."""
    show_first_steps(Path("/d x"), url)
    printed = capsys.readouterr().err
    assert [text for text in [*told, "WALRAS_TOKEN_FILE='/d x/admin.token'"] if text not in printed] == []
    assert not_told not in printed


def test_daemons_get_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flag arrives in the right unit, and the daemon's exit code is the command's."""
    daemon = Recorder(code=3)
    for name in ("scheduler.live.main.run_server", "workers.agent.startup.run_agent", "walras.demo.main.run_demo"):
        monkeypatch.setattr(name, daemon.start)
    runner = CliRunner()
    assert runner.invoke(app, ["server", "--data", "d", "--port", "80"]).exit_code == 3
    agent = "agent --server http://h:1 --join-token-file j --state s --node n --shape a100x2 --accelerator A100"
    agent += " --accelerators 2 --cpus 2 --memory 4GB --emulated --speeds f --nominal-speed 4 --market spot"
    assert runner.invoke(app, agent.split()).exit_code == 3
    assert runner.invoke(app, ["demo", "--keep", "--no-live"]).exit_code == 3
    (_, server), ((options,), _), (_, demo) = daemon.started
    assert server["listen"] == ListenOptions("127.0.0.1", 80)
    rest = {name: value for name, value in server.items() if name not in ("listen", "greet")}
    assert rest == {"data": Path("d"), "cluster": None, "policy": None, "store": "", "new_cluster": False}
    assert (options.node_id, options.join_token_file) == ("n", Path("j"))
    assert (options.accelerator, options.memory_bytes, options.market) == ("a100", 4 * 10**9, "spot")
    assert demo == {"data": None, "keep": True, "live": False}


@pytest.mark.parametrize(
    "more", ["--memory lots", "--accelerator a/b", "--speeds f", "--accelerators 0", "--market none"]
)
def test_an_agent_with_bad_options_does_not_start(monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    """Exit code 2 and the option's name, and no agent."""
    monkeypatch.setattr("workers.agent.startup.run_agent", lambda options: pytest.fail("started"))
    agent = f"agent --server http://h:1 --join-token-file j --state s --node n --shape x {more}"
    result = CliRunner().invoke(app, agent.split())
    assert result.exit_code == 2
    assert more.split()[0] in result.stderr


def test_a_folder_that_cannot_be_made_is_an_error_of_the_users(tmp_path: Path) -> None:
    """It names the path and what the system said, not the lines of our code that met it."""
    (tmp_path / "file").write_text("")
    words = ("agent", "--server", "http://127.0.0.1:9", "--node", "n1", "--shape", "s", "--state")
    answer = CliRunner().invoke(app, [*words, str(tmp_path / "file" / "below")])
    assert answer.exit_code == 2
    assert answer.stderr.startswith(f"walras: {tmp_path / 'file'}")
    assert "Not a directory" in answer.stderr
    assert "fix: " in answer.stderr


@pytest.mark.parametrize("command", ["cloud prices", "policy show", "policy show --history", "admin audit"])
def test_an_instant_is_shown_in_local_time(run: Run, command: str) -> None:
    """One form in every command, that of `walras show`; a program reads RFC 3339 with `-o json`."""
    shown = " ".join(run(*command.split()).stdout.split())
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+", shown), shown
    assert not re.search(r"\d{4}-\d\d-\d\dT", shown), shown
