"""Agents on hosts of one's own, over OpenSSH: started, asked after and stopped.

Nothing is copied but the join token, which travels as standard input and never on a command line. Everything may be
repeated: a host whose agent runs is left as it is. OpenSSH's client does what it is good at (keys, jump hosts, known
hosts); no password is ever asked for.
"""

import shlex
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from walras.spec.hosts_file import HostEntry

_CONNECT_S = 10
#: Seconds for connecting, starting, and checking that the agent stays up.
_CALL_S = 60.0
_AT_ONCE = 16
_MOST_BYTES = 4096

#: Shell text that sets `state`, and `pid` to that of the running agent, or to nothing.
_LOOK = """set -eu
umask 077
state={state}
pid=$(cat "$state/agent.pid" 2>/dev/null || true)
case "$pid" in ''|*[!0-9]*) pid= ;; esac
if [ -n "$pid" ] && ! tr '\\0' '\\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -qxF "$state/agent"; then pid=; fi
"""
_START = """if [ -n "$pid" ]; then cat >/dev/null; echo "running $pid"; exit 0; fi
mkdir -p "$state"
cat >"$state/join.token"
nohup setsid {line} --state "$state/agent" --join-token-file "$state/join.token" >>"$state/agent.log" 2>&1 </dev/null &
pid=$!
echo "$pid" >"$state/agent.pid"
i=0
while [ $i -lt 20 ]; do
  [ -s "$state/agent/credential.json" ] && break
  kill -0 "$pid" 2>/dev/null || {{ echo "ended: $(tail -n 1 "$state/agent.log" | cut -c1-300)"; exit 1; }}
  sleep 0.5
  i=$((i + 1))
done
echo "started $pid"
"""
_STATUS = """if [ -n "$pid" ]; then echo "running $pid"; else echo stopped; fi
"""
_STOP = """if [ -z "$pid" ]; then echo stopped; exit 0; fi
kill -TERM "$pid"
i=0
while [ $i -lt 40 ] && kill -0 "$pid" 2>/dev/null; do sleep 0.25; i=$((i + 1)); done
kill -0 "$pid" 2>/dev/null && {{ echo "still running $pid"; exit 1; }}
rm -f "$state/agent.pid"
echo "stopped $pid"
"""


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """The outcome on one host."""

    host: HostEntry
    #: Whether the host is now as was asked.
    is_well: bool
    #: In the host's words: `running 4711`, or what went wrong.
    detail: str


def start_agent_over_ssh(host: HostEntry, servers: Sequence[str], join_token: str) -> HostAnswer:
    """Start the agent of a host unless it runs."""
    line = [host.walras, "agent"]
    for server in servers:
        line += ["--server", server]
    line += ["--node", host.node_id, "--shape", host.shape, "--zone", host.zone]
    if host.accelerator is not None:
        line += ["--accelerator", host.accelerator]
    if host.accelerators is not None:
        line += ["--accelerators", str(host.accelerators)]
    if host.emulated:
        line.append("--emulated")
    return _run(host, _START.format(line=shlex.join(line)), join_token)


def ask_agent_over_ssh(host: HostEntry) -> HostAnswer:
    """Returns whether the agent of a host runs, in the host's words."""
    return _run(host, _STATUS.format())


def stop_agent_over_ssh(host: HostEntry) -> HostAnswer:
    """Stop the agent of a host. Jobs that run there go on until their lease ends."""
    return _run(host, _STOP.format())


def on_all_hosts(hosts: Sequence[HostEntry], work: Callable[[HostEntry], HostAnswer]) -> list[HostAnswer]:
    """Runs `work` on all hosts, several at a time; the answers are in the order of the hosts."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(work, hosts))


def _run(host: HostEntry, script: str, stdin: str = "") -> HostAnswer:
    where = host.state if host.state.startswith("/") else f"$HOME/{host.state.removeprefix('~/')}"
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", "-T"]
    if host.port is not None:
        options += ["-p", str(host.port)]
    look = _LOOK.format(state=f'"{where}"')
    remote = f"exec /bin/sh -c {shlex.quote(look + script)}"
    try:
        ran = subprocess.run(
            ["ssh", *options, "--", host.host, remote],
            input=stdin.encode(), capture_output=True, timeout=_CALL_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return HostAnswer(host, is_well=False, detail=f"no answer within {_CALL_S:g} s")
    except OSError as error:
        return HostAnswer(host, is_well=False, detail=f"ssh: {error.strerror or error}")
    told = (ran.stdout if ran.stdout.strip() else ran.stderr)[-_MOST_BYTES:].decode(errors="replace").strip()
    last = told.splitlines()[-1] if told else f"exit code {ran.returncode}"
    return HostAnswer(host, is_well=ran.returncode == 0, detail="".join(filter(str.isprintable, last)))
