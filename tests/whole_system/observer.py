"""What must hold, whatever happens: judged by what really ran, not by what tables say.

Each broken promise is an entry of `Observer.broken`: (virtual instant, rule, words). The rules:

    twice         two attempts of one job are alive, or one rank of an attempt is started twice
    devices       two attempts hold one accelerator, or one that is over holds it
    again         a job that is over runs again, or changes its end
    rerun         a script that succeeded is run again although its machine was never lost, nor it told to stop before
    checkpoint    an attempt resumes before a checkpoint whose recording its job was told of
    fence         an attempt is stopped by its fence, or by its lease, though its machine was heard in time
    late          an attempt goes on from a checkpoint that was told of after the end of its attempt there
    false_lost    a machine or an attempt is declared lost without a cause
    lease         a process outlives its lease
    stop          a machine that is heard goes on with a job that the server wants to stop, or whose gang has broken
    closed        a part of an attempt begins after its machine was told that the attempt is over
    parent        a job begins before the end of one that it waits for
    secret        a job begins without its secret
    actor         somebody's call is answered otherwise than the API promises (`actors.py`)
    told          an agent does not tell a restored server of an end that it told before
    protocol      an agent of the release before is sent what it does not know
    gang          a job is running before ranks have begun on each of its machines
    holders       what is counted of a holder is not what it has
    held          a job is held though nobody asked for it, or starts although somebody holds it
    drained       a job starts on a machine that an administrator has drained and not resumed
    unaccounted   a process that no agent and no lease accounts for
    phantom       the server waits for an attempt that the machine, which is heard, does not have
    back          after healing, a machine does not come back, or a command for it stays; or one is paid for that the
                  server does not have
    missed        a rented machine that was taken away stays one of the fleet though the cloud does not list it
    server        the server ends by itself; an agent does; a call of the server raises
    supervisor    a supervisor raises
    core          an invariant of the core
    acknowledged  an acknowledged job is missing, or has another's number
    durable       what somebody was told is done is not in the database: a job, a recorded checkpoint
    money         charges are not attempt time x price, or a rented machine's time x price, or for time to come
    retention     something of a job that has not ended is deleted, or the row of a later one
    log           what a rank wrote is not what the server keeps
    replay        the journal does not replay
    result        a job's end is not what its ranks did
    endless       a job is started again and again
    liveness      after healing, a job does not end within the bound
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from scheduler.live.store.sql_store import Store
from scheduler.live.store.store_interface import WriteBatch
from scheduler.live.store.table_rows import AttemptRow, JobRow, NodeRow, PartRow
from tests.support.core_invariants import check_invariants
from tests.whole_system.fake_machine import Hooks, Machine, SimSupervisor
from tests.whole_system.played_ranks import Run, Script
from tests.whole_system.virtual_loop import VirtualLoop
from walras.contract import EXIT_CHECKPOINTED
from walras.job_request import JobId
from walras.states import AttemptState, JobState, Reason
from walras.wire import AnyReport, EndedReport, RefusedReport
from workers.supervisor_protocol import AttemptPlan

AttemptKey = tuple[int, int]
#: A job that needs more attempts than this is not getting anywhere.
MOST_ATTEMPTS = 25
#: An answer that is late arrives within this.
ANSWERS_ARRIVE_S = 20.0
#: A machine whose newest answered call is older than this may not know what the server wants.
HEARD_S = 6.0
#: What is over holds no devices after this.
RELEASED_WITHIN_S = 2.0
#: Looks, every two seconds, that may find an attempt with the server and not on its machine.
MOST_LOOKS_MISSING = 7


@dataclass
class Observer(Hooks):
    """Hears of everything that really happens."""

    loop: VirtualLoop
    scripts: dict[str, Script]
    lease_s: float
    machines: list[Machine] = field(default_factory=list)
    broken: list[tuple[float, str, str]] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    runs: dict[int, list[Run]] = field(default_factory=lambda: defaultdict(list))
    final: dict[int, JobState] = field(default_factory=dict)
    final_at: dict[int, float] = field(default_factory=dict)
    #: Newest step of each job and attempt whose recording a rank was told of.
    recorded_step: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    #: Machine -> when the server last answered a heartbeat of it; when something happened that loses attempts there.
    heard_at: dict[str, float] = field(default_factory=dict)
    #: Machine -> when the newest heartbeat was sent whose answer its agent has.
    renewed_at: dict[str, float] = field(default_factory=dict)
    lost_at: dict[str, float] = field(default_factory=dict)
    #: Machine -> when its agent was started last.
    agent_began_at: dict[str, float] = field(default_factory=dict)
    #: Machines whose disk is full now.
    full_disks: set[str] = field(default_factory=set)
    #: (machine, job, attempt) of ends that their agents may not have written down, for their disks were full.
    ended_on_full_disk: set[tuple[str, int, int]] = field(default_factory=set)
    killed: set[AttemptKey] = field(default_factory=set)
    leased_at: dict[AttemptKey, float] = field(default_factory=dict)
    seen_lost: dict[str, str] = field(default_factory=dict)
    stopped_on_purpose: set[int] = field(default_factory=set)
    #: Job -> since when the server has wanted it to stop; (machine, job) -> heartbeats answered in that time.
    stopping_since: dict[int, float] = field(default_factory=dict)
    beats_unstopped: dict[tuple[str, int], int] = field(default_factory=dict)
    #: Jobs that somebody asked to hold, and those that are held: when that was answered.
    asked_to_hold: set[int] = field(default_factory=set)
    held_since: dict[int, float] = field(default_factory=dict)
    #: Machines that an administrator has drained: when that was answered. When it was last asked to resume each.
    drained_since: dict[str, float] = field(default_factory=dict)
    resumed_at: dict[str, float] = field(default_factory=dict)
    #: (machine, job, attempt) -> looks in a row that found it with the server and not on the machine.
    looks_missing: dict[tuple[str, int, int], int] = field(default_factory=dict)
    #: (machine, job, attempt) -> when its agent wrote down that it is over there.
    over_at: dict[tuple[str, int, int], float] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    acknowledged_at: dict[str, float] = field(default_factory=dict)
    #: Jobs whose rows were deleted, long ended.
    forgotten: set[int] = field(default_factory=set)
    #: When a backup was restored last; two incarnations of the cluster live beside each other until some time later.
    restored_at: float = -inf
    split_until: float = 0.0
    #: The server's records; None while there is no server.
    written: Callable[[], Store | None] = lambda: None
    #: Jobs that wait for another to end: that one; jobs with a secret: its value.
    parents: dict[int, int] = field(default_factory=dict)
    secrets: dict[int, str] = field(default_factory=dict)
    #: When the server wrote down that an attempt is over.
    closed_at: dict[AttemptKey, float] = field(default_factory=dict)
    #: When the server wrote down that a part of an attempt has failed; the machines of each attempt.
    broken_at: dict[AttemptKey, float] = field(default_factory=dict)
    places: dict[AttemptKey, set[str]] = field(default_factory=dict)
    #: (job, step) of checkpoints that machines told of after the end of the attempt there.
    told_late: set[tuple[int, float]] = field(default_factory=set)
    #: From an instant in a transaction until it is written.
    commit_may_take_s: float = 8.0

    def tell(self, words: str) -> None:
        self.story.append(f"{self.loop.time() - 1000.0:9.3f}  {words}")

    def violate(self, rule: str, words: str) -> None:
        self.tell(f"BROKEN {rule}: {words}")
        self.broken.append((self.loop.time() - 1000.0, rule, words))
        # What comes after a broken promise means little.
        self.loop.stop()

    def acknowledge(self, name: str, job_id: int) -> None:
        """A user was told the number of the job. An answer from before a restore may come after it: it counts for
        nothing then."""
        if job_id in self.forgotten:  # it ended before its user was told
            return
        if self.loop.time() > self.restored_at + ANSWERS_ARRIVE_S:
            self.acknowledged[name], self.acknowledged_at[name] = job_id, self.loop.time()
            store = self.written()
            if store is not None and store.job(JobId(job_id)) is None:
                self.violate("durable", f"{name} was acknowledged as job {job_id}, which is not written")

    def forget(self, job_id: int) -> None:
        """The row of a job that has ended was deleted; its number is not given out again."""
        self.forgotten.add(job_id)
        for name in [name for name, known in self.acknowledged.items() if known == job_id]:
            del self.acknowledged[name]

    def hold(self, job_id: int) -> None:
        """A user was told that the job is held; an answer from before a restore counts for nothing."""
        if self.loop.time() > self.restored_at + ANSWERS_ARRIVE_S:
            self.held_since[job_id] = self.loop.time()

    def drain(self, name: str, asked_at: float) -> None:
        """An administrator was told that the machine is drained; a copy of an earlier request may still end that."""
        is_sure = asked_at > max(self.restored_at, self.resumed_at.get(name, -inf)) + ANSWERS_ARRIVE_S
        if is_sure and not self.is_healed:
            self.drained_since[name] = self.loop.time()

    def resume(self, name: str) -> None:
        """An administrator asks for the machine to take jobs again."""
        self.drained_since.pop(name, None)
        self.resumed_at[name] = self.loop.time()

    def restored(self, taken_at: float) -> None:
        """What happened after the backup was taken may have been forgotten, for as long as machines have not told."""
        now = self.loop.time()
        self.restored_at, self.split_until = now, now + 2 * self.lease_s
        for name in [name for name, at in self.acknowledged_at.items() if at > taken_at]:
            self.acknowledged.pop(name, None)
        for job_id in [job_id for job_id, at in self.final_at.items() if at > taken_at]:
            self.final.pop(job_id, None)
            del self.final_at[job_id]
        self.recorded_step.clear()
        self.closed_at.clear()
        self.broken_at.clear()
        self.forgotten.clear()
        for told in (self.parents, self.secrets):  # their numbers may be given out again
            for job_id in told.keys() - self.acknowledged.values():
                del told[job_id]
        self.stopping_since.clear()
        self.seen_lost.clear()
        self.over_at.clear()
        self.held_since.clear()
        self.drained_since = {name: at for name, at in self.drained_since.items() if at <= taken_at}

    # ---------------------------------------------------------------- what machines say

    def script_of(self, argv: list[str]) -> Script:
        return self.scripts[argv[-1]]

    def began(self, run: Run, plan: AttemptPlan) -> None:
        now, where = self.loop.time(), f"job {run.job_id} attempt {run.attempt} on {run.machine}"
        self.tell(f"{where}: rank {run.rank} starts, resumes at {run.resumed_s:g}")
        is_split = now < self.split_until
        for machine in self.machines:
            for other in machine.live:
                if other.plan.job_id == run.job_id and other.plan.attempt != run.attempt and not is_split:
                    self.violate("twice", f"{where} beside attempt {other.plan.attempt} on {machine.name}")
                shared = set(other.plan.devices) & set(plan.devices)
                is_other = (other.plan.job_id, other.plan.attempt) != (run.job_id, run.attempt)
                if machine.name == run.machine and is_other and shared:
                    self.violate("devices", f"{where}: {sorted(shared)} are held by job {other.plan.job_id}")
        # It may have ended elsewhere while this machine was starting its part, and not have heard of it yet.
        has_heard = self.renewed_at.get(run.machine, 0.0) > self.final_at.get(run.job_id, inf)
        if run.job_id in self.final and has_heard and not is_split:
            self.violate("again", f"{where} after {self.final[run.job_id]}")
        parent = self.parents.get(run.job_id)
        if parent is not None and parent not in self.final and not is_split:
            self.violate("parent", f"{where} before the end of job {parent}")
        secret = self.secrets.get(run.job_id)
        if secret is not None and secret != plan.env.get("TOKEN"):
            self.violate("secret", f"{where} has not its secret")
        closed_at = self.closed_at.get((run.job_id, run.attempt), inf)
        if self.renewed_at.get(run.machine, 0.0) > closed_at + 1.0 and not is_split:
            self.violate("closed", f"{where}, over since {closed_at - 1000.0:.1f}, and its machine was told")
        if any(each.name == run.name for each in self.runs[run.job_id]):
            self.violate("twice", f"{where}: rank {run.rank} of this attempt was started before")
        for before in self.runs[run.job_id]:
            is_lost = max(self.lost_at.get(before.machine, 0.0), self.split_until) >= before.began_at
            has_succeeded = before.how == "exit 0" and not before.is_unfinished
            if before.attempt < run.attempt and has_succeeded and not is_lost and plan.world_size == 1:
                self.violate("rerun", f"{where}: attempt {before.attempt} had succeeded on {before.machine}")
        # A part of a gang may come up after others of it have saved.
        earlier = (step for attempt, step in self.recorded_step[run.job_id].items() if attempt < run.attempt)
        known = max(earlier, default=0.0)
        if run.resumed_s < known and now >= self.split_until:
            self.violate("checkpoint", f"{where} resumes at {run.resumed_s:g}, recorded was {known:g}")
        if (run.job_id, run.resumed_s) in self.told_late and self.restored_at < 0:  # a restored server believes it
            self.violate("late", f"{where} resumes at {run.resumed_s:g}, which was told after the end of its attempt")
        self.runs[run.job_id].append(run)
        if run.attempt > MOST_ATTEMPTS:
            self.violate("endless", f"{where}: {MOST_ATTEMPTS} attempts and no end")

    def ended(self, run: Run) -> None:
        self.tell(f"job {run.job_id} attempt {run.attempt} on {run.machine}: rank {run.rank} ends, {run.how}")

    def recorded(self, run: Run, digest: str) -> None:
        step, store = float(int(digest[40:], 16)), self.written()
        steps, is_split = self.recorded_step[run.job_id], self.loop.time() < self.split_until
        if store is not None and not is_split:
            kept = store.checkpoint(JobId(run.job_id))
            alive = any(each.attempt == run.attempt and each.ended_at is None for each in store.attempts(run.job_id))
            if kept is None or kept.step < step:
                if not alive:
                    return  # of an attempt that is over nothing counts, and its agent is answered all the same
                self.violate(
                    "durable", f"job {run.job_id} was told that step {step:g} is recorded, which is not written"
                )
        steps[run.attempt] = max(step, steps.get(run.attempt, 0.0))

    def asked_to_end(self, supervisor: SimSupervisor, reason: str) -> None:
        plan, now, name = supervisor.plan, self.loop.time(), supervisor.machine.name
        self.tell(f"job {plan.job_id} attempt {plan.attempt} on {name}: asked to end, {reason}")
        for rank in supervisor.ranks.all:
            rank.run.is_unfinished |= not rank.has_ended and rank.run.script.saves_every_s is None
        silent_s = now - self.renewed_at.get(name, supervisor.launched_at)
        is_known_over = plan.job_id in self.final or plan.job_id in self.stopped_on_purpose
        is_lost = self.lost_at.get(name, 0.0) >= supervisor.launched_at or now < self.split_until
        if reason.startswith("lease") and silent_s < 0.6 * self.lease_s and not is_lost and not is_known_over:
            self.violate("fence", f"job {plan.job_id} on {name}: {reason}, heard {silent_s:.1f} s ago")
        if reason == "its fence is old" and not is_known_over and not is_lost and plan.world_size == 1:
            self.violate("fence", f"job {plan.job_id} attempt {plan.attempt} on {name} is fenced without a cause")

    def gone(self, supervisor: SimSupervisor) -> None:
        if any(rank.run.how == "supervisor killed" for rank in supervisor.ranks.all):
            self.killed.add((supervisor.plan.job_id, supervisor.plan.attempt))

    def reported(self, name: str, report: AnyReport, *, is_written: bool) -> None:
        """An agent tells the end of an attempt, or that it does not start one, and wrote so if its disk let it."""
        now = self.loop.time()
        if isinstance(report, EndedReport | RefusedReport):
            self.over_at.setdefault((name, report.job_id, report.attempt), now)
            if name in self.full_disks or not is_written:
                self.ended_on_full_disk.add((name, report.job_id, report.attempt))
        held = re.search(r"held by job (\d+), attempt (\d+)", getattr(report, "detail", ""))
        key = (name, int(held[1]), int(held[2])) if held is not None else None
        if key is None or name in self.full_disks or key in self.ended_on_full_disk:
            return  # on a full disk nothing starts anyway, and an agent that began anew forgot what it could not write
        if max(self.over_at.get(key, now), self.agent_began_at.get(name, 0.0)) < now - RELEASED_WITHIN_S:
            self.violate("devices", f"job {report.job_id} is refused on {name}: {report.detail}, which is over")

    # ---------------------------------------------------------------- what the server writes

    def heard(self, source: str, path: str, status: int) -> None:
        if path.endswith("heartbeat") and status == 200:
            self.heard_at[source] = self.loop.time()

    def renewed(self, source: str, path: str, status: int, sent_at: float) -> None:
        if path.endswith("heartbeat") and status == 200:
            self.renewed_at[source] = sent_at
            self._check_stops(source, sent_at)

    def _check_stops(self, source: str, sent_at: float) -> None:
        """An agent that is answered hears of a stop with the first answer, and its supervisor soon after."""
        for machine in self.machines:
            for each in machine.live if machine.name == source else ():
                key = (source, each.plan.job_id)
                broken_at = self.broken_at.get((each.plan.job_id, each.plan.attempt), inf)
                since = min(self.stopping_since.get(each.plan.job_id, inf), broken_at)
                # While the server cannot write it renews leases, and gives no command.
                if each.reasons or sent_at < max(since, each.launched_at) + 3.0 + self.commit_may_take_s:
                    self.beats_unstopped.pop(key, None)
                    continue
                self.beats_unstopped[key] = self.beats_unstopped.get(key, 0) + 1
                if self.beats_unstopped[key] > 4:
                    self.violate("stop", f"job {key[1]} on {source} is not asked to end, wanted since {since:.1f}")

    def committed(self, batch: WriteBatch) -> None:
        now = self.loop.time()
        for node in batch.rows(NodeRow):
            # A rented machine that is lost is given back at once.
            is_given_up = node.state == "lost" or (node.state == "released" and node.detail == Reason.INFRA_NODE_LOST)
            if is_given_up and self.seen_lost.get(node.node_id) not in ("lost", "released"):
                self.tell(f"the server declares {node.node_id} lost")
                silent_s = now - self.heard_at.get(node.node_id, 0.0)
                was_lost = self.lost_at.get(node.node_id, 0.0) > now - 10 * self.lease_s
                if silent_s < self.lease_s and not was_lost and "SPOT" not in node.detail and now >= self.split_until:
                    self.violate("false_lost", f"{node.node_id}, heard {silent_s:.1f} s ago")
                self.lost_at[node.node_id] = max(now, self.lost_at.get(node.node_id, 0.0))
            self.seen_lost[node.node_id] = node.state
        for row in batch.rows(JobRow):
            before = self.final.get(row.job_id)
            if before is not None and before is not row.state and now >= self.split_until:
                self.violate("again", f"job {row.job_id} was {before} and is {row.state}")
            if row.state.is_final and before is None:
                self.final[row.job_id], self.final_at[row.job_id] = row.state, now
                self.tell(f"job {row.job_id} is {row.state} {row.reason or ''}")
                self._judge_end(int(row.job_id), row.state)
            by_people = row.state is JobState.HELD and row.reason in (Reason.HOLD_USER, Reason.HOLD_ADMIN)
            # What a restored server cannot know of finished jobs, it asks people by a hold.
            if by_people and row.job_id not in self.asked_to_hold and self.restored_at < 0:
                self.violate("held", f"job {row.job_id} is held ({row.reason}), which nobody asked for")
            if row.state in (JobState.CANCELLING, JobState.PREEMPTING) or row.state.is_final:
                self.stopped_on_purpose.add(row.job_id)
                self.stopping_since.setdefault(row.job_id, now)
            elif row.state is JobState.RUNNING:
                self.stopped_on_purpose.discard(row.job_id)
                self._check_gang(int(row.job_id), row.attempts)
            if row.state not in (JobState.CANCELLING, JobState.PREEMPTING):
                self.stopping_since.pop(row.job_id, None)
        for part in batch.rows(PartRow):
            if part.ended and (part.cause != "exited" or part.exit_code not in (0, EXIT_CHECKPOINTED)):
                self.broken_at.setdefault((int(part.job_id), part.attempt), now)
        for attempt in batch.rows(AttemptRow):
            key = (int(attempt.job_id), attempt.attempt)
            if key not in self.leased_at and key[0] in self.held_since:
                self.violate("held", f"job {key[0]} starts, held since {self.held_since[key[0]] - 1000.0:.1f}")
            drained = self.drained_since.keys() & attempt.placement.split('"') if key not in self.leased_at else ()
            if drained and not self.is_healed:
                self.violate("drained", f"job {key[0]} attempt {key[1]} starts on {sorted(drained)}, which are drained")
            began = self.leased_at.setdefault(key, now)
            self.places[key] = {str(part[0]) for part in json.loads(attempt.placement)}
            if attempt.ended_at is None:
                continue
            self.closed_at.setdefault(key, now)
            held_s = attempt.ended_at - attempt.leased_at
            if held_s > now - began + self.commit_may_take_s:
                self.violate("money", f"job {key[0]} attempt {key[1]} held {held_s:.1f} s, {now - began:.1f} s passed")
            if attempt.state is AttemptState.NODE_LOST and key not in self.killed:
                places = {run.machine for run in self.runs[key[0]] if run.attempt == key[1]}
                places |= {word for word in attempt.placement.split('"') if word in self.seen_lost}
                known_from = began - self.commit_may_take_s
                is_lost = any(self.lost_at.get(place, 0.0) >= known_from for place in places)
                # What a machine holds for a gang that has not started yet goes with its agent.
                has_run = any(run.attempt == key[1] for run in self.runs[key[0]])
                is_unheld = len(places) > 1 and not has_run
                is_lost |= is_unheld and any(self.agent_began_at.get(place, 0.0) >= known_from for place in places)
                if not is_lost and now >= self.split_until:
                    where = f"job {key[0]} attempt {key[1]} at {attempt.placement}"
                    self.violate("false_lost", f"{where}: {attempt.reason}")

    def _check_gang(self, job_id: int, attempt: int) -> None:
        """A job runs once ranks of it have begun on each of its machines."""
        missing = self.places.get((job_id, attempt), set()) - {
            run.machine for run in self.runs[job_id] if run.attempt == attempt
        }
        if missing and self.loop.time() >= self.split_until:
            self.violate("gang", f"job {job_id} attempt {attempt} is RUNNING, and nothing began on {sorted(missing)}")

    def _judge_end(self, job_id: int, state: JobState) -> None:
        """An end says what the ranks of the last attempt did."""
        runs = self.runs.get(job_id, [])
        last = [run for run in runs if run.name[:3] == runs[-1].name[:3]] if runs else []
        have_succeeded = bool(last) and all(run.how == "exit 0" for run in last)
        if self.restored_at >= 0:  # the end of an attempt that the backup did not know may have come after all
            by_attempt = [[run for run in runs if run.attempt == each] for each in {run.attempt for run in runs}]
            have_succeeded |= any(all(run.how == "exit 0" for run in each) for each in by_attempt)
        have_failed = any(run.how.startswith("exit") and run.how != "exit 0" for run in last)
        was_killed = any(run.was_killed_alone for run in last)
        if state is JobState.SUCCEEDED and not have_succeeded:
            self.violate("result", f"job {job_id} is {state}, its ranks: {[run.how for run in last]}")
        if state is JobState.FAILED and not have_failed and not was_killed:
            self.violate("result", f"job {job_id} is {state}, its ranks: {[run.how for run in last]}")
        if state is JobState.TIMEOUT:
            self.violate("result", f"job {job_id} is {state} long before its time")

    # ---------------------------------------------------------------- looks around

    def look(self, agents: dict[str, Any], server: Any, *, can_write: bool) -> None:
        """Now and then: processes and leases, followers, the core. `can_write`: the server can take reports."""
        now = self.loop.time()
        for machine in self.machines:
            for each in machine.live:
                key = (each.plan.job_id, each.plan.attempt)
                granted_at = max(self.renewed_at.get(machine.name, now), each.launched_at)
                if now > min(each.lease_until, granted_at + self.lease_s) + 1.0:
                    self.violate("lease", f"job {key[0]} attempt {key[1]} on {machine.name} outlives its lease")
                life = agents.get(machine.name)
                agent = None if life is None or life.process.is_dead else life.agent
                is_settled = agent is not None and now > life.began_at + 15.0 and now > each.launched_at + 15.0
                is_lost = self.lost_at.get(machine.name, 0.0) >= each.launched_at
                if is_settled and key not in {each[:2] for each in agent._followers} and not is_lost:
                    self.violate("unaccounted", f"job {key[0]} attempt {key[1]} on {machine.name}: nobody follows it")
        names = {machine.name for machine in self.machines}
        for where, error in self.loop.uncaught:
            if where.startswith("/") and isinstance(error, Exception):
                self.violate("server", f"a call of {where} raised {error!r}")
            elif where in names:
                self.violate("supervisor", f"one on {where} raised {error!r}")
        if server is not None:
            self._check_phantoms(agents, server if can_write else None)
            state = server.loop.state
            have = Counter(job.row.user for job in state.jobs.values())
            if state.job_shares.held != have:
                self.violate("holders", f"jobs are counted as {state.job_shares.held}, and there are {dict(have)}")
            try:
                check_invariants(server.loop.core)
            except AssertionError as error:
                self.violate("core", str(error))

    def _check_phantoms(self, agents: dict[str, Any], server: Any) -> None:
        """What the server waits for on a machine that is heard is there, or is on its way there or back."""
        now, before, self.looks_missing = self.loop.time(), self.looks_missing, {}
        nodes = {} if server is None else server.loop.state.nodes
        for name, node in nodes.items():
            life = agents.get(name)
            is_heard = now - self.renewed_at.get(name, 0.0) < HEARD_S
            if life is None or life.process.is_dead or life.agent is None or not is_heard or node.row.state != "up":
                continue
            there = {each[:2] for each in life.agent._here()}
            for key in node.expected - there:
                place = (name, int(key[0]), key[1])
                self.looks_missing[place] = before.get(place, 0) + 1
                if self.looks_missing[place] > MOST_LOOKS_MISSING:
                    self.violate("phantom", f"job {key[0]} attempt {key[1]} is not on {name}, which is heard")

    def check_back(self, server: Any, drained: set[str]) -> list[str]:
        """Machines that are not up though nothing is wrong any more."""
        nodes = {} if server is None else server.loop.state.nodes
        up = {name for name, node in nodes.items() if node.row.state == "up"}
        return [machine.name for machine in self.machines if machine.name not in up | drained]
