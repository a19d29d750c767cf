"""Validates submitted specs and admits them as jobs, or answers dry runs of them.

A batch may name its own jobs in `depends_on`. A cycle is an error of the jobs on it (and of those that need them); the
others are admitted. A job whose spec is refused leaves no trace. Answers to idempotency keys are remembered here.

What a spec does not state gets a default of the job's project, else of Walras, which never exceeds a cap of the owner;
a stated value beyond a cap is refused. Every answer about the job names the defaults that it got (`DefaultView`).

The answer to a dry run has the job's configurations with speeds and prices, and whether it would start at once. A dry
run has the job in the core's ledger while it asks, and stores nothing: whether a place is free, and why the job would
wait, is what the scheduler itself finds. The configuration that it names is the arrival rule's.
"""

import hashlib
import hmac
import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any
from urllib.parse import quote

import networkx as nx
import numpy as np

from optimizer.policy import Newcomer, best_configuration_at
from scheduler.core.core import SchedulerCore
from scheduler.core.events import JobSubmitted
from scheduler.core.explain.feasibility import infeasibility, pool_limits
from scheduler.core.explain.pending_reasons import PendingReason, first_pending_reason
from scheduler.core.placement.search import find_free_place
from scheduler.core.state.job_classes import gangs_over_pools
from scheduler.core.state.ledger import ActivePolicy, JobRecord, Ledger
from scheduler.core.state.stopping import CANNOT_MOVE, CANNOT_MOVE_FIX
from scheduler.live.auth.access_control import UserCaller, UserRole
from scheduler.live.auth.job_privacy import SecretBox, without_secret_values
from scheduler.live.auth.people import People
from scheduler.live.loop.apply_commands import emit, record_kind_facts, share_speeds
from scheduler.live.loop.event_loop import Clock
from scheduler.live.loop.live_state import JobTarget, LaunchSpec, LiveJob, LiveState
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.checkpoint_records import CheckpointPlaces
from scheduler.live.services.machine_facts import tools_note
from scheduler.live.store.event_journal import dump_json
from scheduler.live.store.table_rows import ANSWER_KEPT_S, AnswerRow, JobRow, SecretRow, SpecRow
from walras.errors import Forbidden, JobSpecError, UserError
from walras.job_needs import JobNeeds
from walras.job_request import JobId, JobRequest, Kind, kind_within, plain_kind
from walras.machines.machine_facts import unmet_need, with_needs
from walras.resources.jobs import DryRun, SubmitResult
from walras.resources.people import DefaultView
from walras.spec.accelerator_names import named_type
from walras.spec.job_groups import global_batch_of, needs_of
from walras.spec.job_spec import JobSpec, spec_mapping
from walras.spec.spec_request import (
    argv_of,
    env_of,
    is_launcher,
    is_unproven,
    kind_of,
    launcher_note,
    program_of,
    to_request,
)
from walras.spec.sweeps import shown_name_of
from walras.states import JobState, Reason


def unsaved_note(core: SchedulerCore, kind: Kind) -> str:
    """Returns a note for kinds that have not yet saved their work; empty where a job of the kind has."""
    return "" if kind in core.ledger.saving_kinds else f"{CANNOT_MOVE}; {CANNOT_MOVE_FIX}"


def dry_run(core: SchedulerCore, request: JobRequest) -> DryRun:
    """Returns the dry run's answer for the ledger as it is. `check_feasible` must have accepted the request."""
    with core.ledger.trying(request) as job:
        return _answer(core, job)


def _answer(core: SchedulerCore, job: JobRecord) -> DryRun:
    """Returns where the job would start; else why it would wait, as `explain` says it of a job that was submitted."""
    ledger, request = core.ledger, job.request
    configurations = _configurations(core, job)
    counts = [int(each["accelerators"]) for each in configurations]
    value, by = ledger.policy.rules.value_of(request)
    answer: dict[str, Any] = {
        "kind": plain_kind(request.kind),
        "accelerators": min(counts, default=min(demand.count for demand in request.demands)),
        "configurations": configurations,
        "value_usd_per_h": value,
        "value_by": by,
        "note": unsaved_note(core, request.kind) if request.unproven and request.preemptible else "",
    }
    best = _chosen_on_arrival(ledger, ledger.policy, request, configurations) if configurations else None
    may_start = job.waits and job.ready_at <= ledger.now and core.cycle.spending.closed_to(job) is None
    chosen = None if best is None else configurations[best]
    if chosen is not None and chosen["is_free"] and may_start:
        return DryRun(**answer, chosen=chosen, detail=f"would start at once on {chosen['pool']}")
    why = first_pending_reason(core, job.job_id)
    if why is None:
        return DryRun(**answer, reason=Reason.WAIT_CAPACITY, detail="no machine has joined this cluster yet")
    no_pool_holds_it = all(each["accelerators"] > each["capacity"] for each in configurations)
    is_too_large = why.reason is Reason.WAIT_CAPACITY and no_pool_holds_it
    together = _together(ledger, request, configurations) if is_too_large else ""
    detail = together or "; ".join(filter(None, (why.detail, why.fix)))
    return DryRun(**answer, reason=why.reason, detail=detail)


def _together(ledger: Ledger, request: JobRequest, configurations: list[dict[str, Any]]) -> str:
    """Returns the fastest gang over several pools, of what is free if there is one, that a plan may give the job; empty
    if there is none.
    """
    pools, speeds = ledger.fleet.pools, {str(each["pool"]): float(each["steps_per_s"]) for each in configurations}
    gangs = [request.mixes_on(state.pool) if ledger.policy.places_over_pools else 0 for state in pools]
    alone = [speeds.get(state.name, 0.0) if gang else 0.0 for state, gang in zip(pools, gangs, strict=True)]
    for most, told in (([state.free for state in pools], "free now"), ([state.capacity for state in pools], "taken")):
        mixes = gangs_over_pools(max(gangs, default=0), alone, most)
        speeds_of = {parts: [(alone[row], count / gangs[row]) for row, count in parts] for parts in mixes}
        if request.shares:
            part = ledger.table.mixing_part(request.kind, ledger.classes.nominal)
            rate_of = {parts: part * sum(speed * own for speed, own in each) for parts, each in speeds_of.items()}
        else:
            rate_of = {parts: min(speed for speed, _ in each) for parts, each in speeds_of.items()}
        if rate_of:
            parts = max(rate_of, key=lambda each: rate_of[each])
            named = " + ".join(f"{count} x {pools[row].pool.shape.accelerator}" for row, count in parts)
            return f"no pool holds it alone; the next plan may give it {named} ({told}): {rate_of[parts]:.3g} steps/s"
    return ""


def _configurations(core: SchedulerCore, job: JobRecord) -> list[dict[str, Any]]:
    ledger, request = core.ledger, job.request
    nominal = {state.pool.shape.accelerator: state.pool.shape.nominal_speed for state in ledger.fleet.pools}
    declared = dict(request.declared)
    quote = ledger.policy.quote
    found = []
    for state in ledger.fleet.pools:
        accelerator = state.pool.shape.accelerator
        count = ledger.count_on(job, state.row)
        if not count:
            continue
        speed = ledger.table.speed(request.kind, accelerator, count, nominal)
        source, steps_per_s = speed.source.name.lower(), speed.steps_per_s * state.pace
        stated = named_type(declared, accelerator)
        if stated is not None and source != "measured":
            source, steps_per_s = "declared", declared[stated] * state.pace
        price = 0.0 if quote is None or state.row >= len(quote.prices) else float(quote.prices[state.row])
        usd_per_h = state.pool.usd_per_h * count / state.pool.shape.accelerators
        found.append(
            {
                "pool": state.name,
                "accelerator": accelerator,
                "accelerators": count,
                "steps_per_s": steps_per_s,
                "source": source,
                "price": price * count,
                "unit": "" if quote is None else quote.unit,
                "usd_per_h": usd_per_h,
                "capacity": max(state.capacity, state.pool.quota * state.pool.shape.accelerators),
                "free": state.free,
                "is_free": find_free_place(core.cycle, job, state.row) is not None,
            }
        )
    return found


def _chosen_on_arrival(
    ledger: Ledger, standing: ActivePolicy | None, request: JobRequest, configurations: list[dict[str, Any]]
) -> int | None:
    """Returns the arrival rule's choice, None for none; without prices, the fastest free configuration."""
    rows = {state.name: state.row for state in ledger.fleet.pools}
    speeds = np.array([each["steps_per_s"] for each in configurations], float)
    if standing is None or standing.quote is None or standing.pricing is None:
        free = np.array([each["is_free"] for each in configurations])
        return int(np.argmax(np.where(free, speeds, -1.0)))
    pool = np.array([rows[each["pool"]] for each in configurations])
    priced = pool < len(standing.quote.prices)
    if not priced.all():
        return None
    newcomer = Newcomer(
        steps_per_s=speeds,
        pool=pool,
        count=np.array([each["accelerators"] for each in configurations], float),
        weight=request.weight,
        capacity=np.array([float(state.capacity) for state in ledger.fleet.pools]),
        usd_per_h=np.array([state.pool.usd_per_h / state.pool.shape.accelerators for state in ledger.fleet.pools]),
        remaining_steps=inf if request.steps is None else request.steps,
        length_s=inf if request.duration_s is None else request.duration_s,
        restart_s=ledger.costs.restart_s(request.kind, standing.rules.restart_default_s),
        priority_class=request.priority_class,
    )
    best, _ = best_configuration_at(standing, newcomer, standing.quote)
    return best


@dataclass(frozen=True, slots=True)
class SweepPlace:
    """The sweep that a new job belongs to."""

    #: The first job of the sweep; None: this one is the first.
    first: JobId | None
    #: How many jobs of the sweep may run at once; 0: all.
    at_most: int


@dataclass(frozen=True, slots=True)
class JobDraft:
    """A validated spec, with the jobs that it refers to."""

    spec: JobSpec
    project: str
    #: Values of its secrets, which the spec does not hold any more.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Numbers of earlier jobs that it depends on (stated by number, or by name in the store).
    earlier: tuple[JobId, ...] = ()
    #: Positions in the same batch that it depends on.
    siblings: tuple[int, ...] = ()
    #: The spec as it was given, if defaults were filled in; None: `spec` is as given.
    written: JobSpec | None = None
    defaults: tuple[DefaultView, ...] = ()


def draft_job(spec: JobSpec, caller: UserCaller) -> JobDraft:
    """Returns a draft of a checked spec. Raises JobSpecError, or Forbidden for a project that the caller does not
    have.
    """
    env_of(spec)
    project = paying_project(spec.project, caller)
    spec, secrets = without_secret_values(spec)
    return JobDraft(spec, project, secrets)


def with_server_facts(request: JobRequest, spec: JobSpec) -> JobRequest:
    """Returns the request as this server schedules it: with its needs and program, and as a kind of its project."""
    needs = needs_of(spec)
    kind, program = kind_within(request.project, request.kind), program_of(spec, needs)
    return with_needs(replace(request, unproven=is_unproven(spec), kind=kind, program=program), needs)


def paying_project(named: str | None, caller: UserCaller) -> str:
    """Returns the project that pays: the named one, else the token's first, else "default". Raises Forbidden."""
    if named is not None:
        if not caller.sees(named):
            raise Forbidden(
                f"your token has no project {named!r}",
                field="project",
                fix=f"choose one of {', '.join(caller.projects)}",
            )
        return named
    return caller.default_project


# ------------------------------------------------------------------------------------------ order inside a batch


def sibling_positions(specs: Sequence[JobSpec | None]) -> list[tuple[int, ...]]:
    """Returns for each spec the positions of its dependencies in the batch; of equal names, the last before it."""
    places: dict[str, list[int]] = {}
    for position, spec in enumerate(specs):
        if spec is not None:
            places.setdefault(spec.name, []).append(position)
    found: list[tuple[int, ...]] = []
    for position, spec in enumerate(specs):
        names = [] if spec is None else [name for name in spec.depends_on if name in places]
        found.append(tuple(dict.fromkeys(_position_of(places[str(name)], position) for name in names)))
    return found


def _position_of(places: list[int], position: int) -> int:
    """Returns the last place before the position, else the first of all."""
    return places[max(0, bisect_left(places, position) - 1)]


def submission_order(siblings: Sequence[tuple[int, ...]]) -> tuple[list[int], set[int]]:
    """Returns positions in an order in which dependencies come first, and the positions that are on a cycle."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(siblings)))
    graph.add_edges_from((needed, position) for position, needs in enumerate(siblings) for needed in needs)
    cyclic = {
        position
        for component in nx.strongly_connected_components(graph)
        for position in component
        if len(component) > 1 or graph.has_edge(position, position)
    }
    graph.remove_nodes_from(cyclic)
    return list(nx.lexicographical_topological_sort(graph)), cyclic


# ------------------------------------------------------------------------------------------ admission


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Jobs that a job depends on, and the final states of those that have ended."""

    jobs: Sequence[JobId] = ()
    ended: Mapping[JobId, JobState] = field(default_factory=dict)


class JobAdmission:
    """Turns drafts into jobs inside a transaction."""

    def __init__(self, clock: Clock, checkpoints: CheckpointPlaces, box: SecretBox) -> None:
        self._clock = clock
        self._box = box
        self.checkpoints = checkpoints

    def admit(
        self, transaction: Transaction, draft: JobDraft, needs: Dependencies, user: str, sweep: SweepPlace | None = None
    ) -> JobId:
        """Make the draft a job, of a sweep if that is given; returns its number.

        Raises JobSpecError where a dependency does not exist or can never be met, or the fleet could never run the
        job, and ShareTaken where the user has as many jobs as it may.
        """
        state, spec = transaction.state, draft.spec
        for name in sorted(spec.secrets.keys() - draft.secrets.keys()):
            field, fix = f"secrets.{name}", "submit with `walras submit`, or send `{value: ...}`"
            raise JobSpecError(f"{field}: its value was not sent", field=field, fix=fix)
        waits_for = self._unmet(transaction, spec, needs)
        job_id = JobId(state.next_job_id)
        request = to_request(
            spec,
            job_id,
            user=user,
            project=draft.project,
            at=transaction.at,
            now_wall=self._clock.unix(transaction.at),
            depends_on=waits_for,
        )
        request = with_server_facts(request, spec)
        if sweep is not None:
            request = replace(request, sweep=sweep.first or job_id, sweep_limit=sweep.at_most)
        check_feasible(transaction.core, state, request, needs_of(spec))
        state.job_shares.take(user)
        state.next_job_id += 1
        row = JobRow(
            job_id=job_id,
            name=shown_name_of(spec),
            project=draft.project,
            user=user,
            kind=kind_of(spec),
            state=JobState.PENDING,
            priority=spec.priority,
            accelerators=min(demand.count for demand in request.demands),
            submitted_at=transaction.at,
            steps_total=spec.steps,
            labels=json.dumps(spec.labels),
            incarnation=state.identity.incarnation,
            sweep=request.sweep,
            sweep_index=None if sweep is None else spec.array_index,
            defaults=dump_defaults(draft.defaults),
        )
        job = LiveJob(row, self.launch(job_id, draft.project, spec, request.sweep))
        if spec.target is not None:
            job.target = JobTarget(spec.target.value, spec.target.at_most)
        state.jobs[job_id] = job
        transaction.job_changed(job)
        transaction.target_changed(job)
        transaction.batch.put(SpecRow(job_id, json.dumps(spec_mapping(draft.written or spec)), dump_json(request)))
        if draft.secrets:
            state.secrets[job_id] = self._box.seal(job_id, draft.secrets)
            transaction.batch.put(SecretRow(job_id, state.secrets[job_id]))
        if spec.facts is not None:
            record_kind_facts(transaction, request.kind, spec.facts.facts(global_batch_of(spec.batch)), user)
        emit(transaction, JobSubmitted(transaction.at, request))
        share_speeds(transaction, request.program)
        return job_id

    def launch(self, job_id: JobId, project: str, spec: JobSpec, sweep: JobId | None = None) -> LaunchSpec:
        """Returns what the job's ranks are started with; `sweep` is the first job of its sweep."""
        if spec.checkpoint.dir is None:
            folder = self.checkpoints.folder / "jobs" / str(job_id)
        else:
            # Quoting makes the project's name one safe path component.
            folder = self.checkpoints.folder / "projects" / f"project-{quote(project, safe='')}" / spec.checkpoint.dir
            if spec.array_index is not None:  # each job of a sweep trains a model of its own
                folder /= str(spec.array_index)
        return LaunchSpec(
            name=shown_name_of(spec),
            kind=kind_of(spec),
            argv=argv_of(spec),
            env=env_of(spec) | ({} if sweep is None else {"WALRAS_ARRAY_ID": str(sweep)}),
            workdir=spec.workdir or "",
            code="" if spec.code is None else spec.code.tree,
            is_launcher=is_launcher(spec),
            needs=needs_of(spec),
            checkpoint_dir=str(folder),
            steps=spec.steps,
            grace_s=spec.grace_period,
            store=self.checkpoints.store_of(folder),
            memory_bytes=spec.resources.memory,
            notify=spec.notify,
        )

    @staticmethod
    def _unmet(transaction: Transaction, spec: JobSpec, needs: Dependencies) -> tuple[JobId, ...]:
        """Returns the dependencies that have not ended. Raises JobSpecError for one that can never be met."""
        waits_for = []
        for job_id in dict.fromkeys(needs.jobs):
            if job_id in transaction.state.jobs:
                waits_for.append(job_id)
                continue
            state = transaction.state.ended.get(job_id) or needs.ended.get(job_id)
            if state is None:
                raise JobSpecError(f"no job {job_id} to depend on", field="depends_on", fix="check `walras queue`")
            if state is not JobState.SUCCEEDED and spec.condition == "succeeded":
                raise JobSpecError(
                    f"job {job_id} that this one depends on has ended {state}",
                    field="depends_on",
                    fix="depend on another job, or set `condition: finished`",
                )
        return tuple(waits_for)


def check_feasible(core: SchedulerCore, state: LiveState, request: JobRequest, needs: JobNeeds) -> None:
    """Raise JobSpecError for a job that could never start here. A fleet without any pool yet refuses nothing."""
    limits = pool_limits(core.ledger.fleet, state.expected_machines)
    found = infeasibility(request, limits, over_pools=core.ledger.policy.places_over_pools)
    if found is not None:
        raise JobSpecError(found.detail, field=found.field, fix=found.fix)
    if lacking := unmet_need(needs, state.tools_in_pools(request)):
        what = " or ".join(lacking.any_of)
        raise JobSpecError(f"{lacking.field}: no machine that it fits has {what}", field=lacking.field, fix=lacking.fix)


# ------------------------------------------------------------------------------------------ remembered answers

_PRUNE_EVERY_S = 3600.0


def body_digest(body: bytes, secret: bytes) -> str:
    """Returns the digest that is stored of a body; keyed if it may hold secrets, so that these cannot be guessed."""
    keyed = b'"secrets"' in body
    return hmac.new(secret, body, hashlib.sha256).hexdigest() if keyed else hashlib.sha256(body).hexdigest()


def recall_answer(known: AnswerRow | None, digest: str, now: float) -> str | None:
    """Returns the first answer to this key and body, else None. Raises UserError (422) for another body."""
    if known is None or known.at < now - ANSWER_KEPT_S:
        return None
    if known.body_sha256 != digest:
        raise KeyReused(
            f"the idempotency key {known.key!r} was used with another body",
            field="Idempotency-Key",
            fix="use a new key for a new request",
        )
    return known.answer


class KeyReused(UserError):
    """The idempotency key was used with another body."""


def remember_answer(transaction: Transaction, user: str, key: str, digest: str, answer: str) -> None:
    row = AnswerRow(user, key, digest, answer, transaction.at)
    transaction.batch.put(row)
    transaction.state.remember(row)
    if transaction.at >= transaction.state.answers_pruned_at + _PRUNE_EVERY_S:
        transaction.state.answers_pruned_at = transaction.at
        transaction.batch.expire(AnswerRow, transaction.at)


def submit_result(core: SchedulerCore, job_id: JobId, draft: JobDraft) -> SubmitResult:
    """Returns the answer to a submission, with what its owner should know of the job now."""
    spec = draft.spec
    kind = kind_within(draft.project, kind_of(spec))
    unsaved = unsaved_note(core, kind) if is_unproven(spec) and spec.preemptible else ""
    note = "; it ".join(filter(None, (launcher_note(spec), unsaved, tools_note(core, job_id))))
    return SubmitResult(id=job_id, name=shown_name_of(spec), note=note, defaults=list(draft.defaults))


# ------------------------------------------------------------------------------------------ defaults and caps


#: How answers name a default of Walras itself.
BUILT_IN = "default"
#: The option in suggestions of `explain` that asks for a priority, and that priority's number.
_HIGH, _HIGH_PRIORITY = "--priority high", 80
_OR = "; or "


def with_standing(draft: JobDraft, caller: UserCaller, people: People) -> JobDraft:
    """Returns the draft with its defaults. Raises Forbidden naming the field, the cap, and who may raise it."""
    spec, project = draft.spec, draft.project
    stated = {name: getattr(spec, name) for name in ("priority", "weight", "value_usd_per_h", "preemptible")}
    people.check(caller, project, {name: value for name, value in stated.items() if name in spec.model_fields_set})
    taken: list[DefaultView] = []
    if spec.project is None:
        taken.append(DefaultView(field="project", value=project, by="your token"))
    caps, defaults = people.caps(caller, project), people.settings_of(project).defaults
    changes: dict[str, Any] = {}
    if "priority" not in spec.model_fields_set:
        by = BUILT_IN if defaults.priority is None else f"project {project}"
        value = spec.priority if defaults.priority is None else defaults.priority
        if caps.max_priority is not None and value > caps.max_priority:
            value, by = caps.max_priority, "your cap"
        changes["priority"] = value
        taken.append(DefaultView(field="priority", value=value, by=by))
    if "weight" not in spec.model_fields_set and caps.max_weight is not None and spec.weight > caps.max_weight:
        changes["weight"] = caps.max_weight
        taken.append(DefaultView(field="weight", value=caps.max_weight, by="your cap"))
    if spec.value_usd_per_h is None and (worth := default_worth(caller, project, people)) is not None:
        changes["value_usd_per_h"] = worth.value
        taken.append(worth)
    filled: JobSpec = spec.model_copy(update=changes)
    return replace(draft, spec=filled, written=spec, defaults=tuple(taken))


def default_worth(caller: UserCaller, project: str, people: People) -> DefaultView | None:
    """Returns the value of an hour, USD, that a job of the project gets within the caller's cap if it states none; None
    where the project has none.
    """
    value, cap = people.settings_of(project).defaults.value_usd_per_h, people.caps(caller, project).max_value_usd_per_h
    if value is None:
        return None
    worth = value if cap is None else min(value, cap)
    by = "your cap" if worth < value else f"project {project}"
    return DefaultView(field="value_usd_per_h", value=worth, by=by)


def dump_defaults(defaults: Iterable[DefaultView]) -> str:
    """Returns the defaults as a job's row keeps them."""
    return json.dumps({each.field: [each.value, each.by] for each in defaults})


def parse_defaults(text: str) -> list[DefaultView]:
    """Returns the defaults in a job's row."""
    return [DefaultView(field=name, value=value, by=by) for name, (value, by) in json.loads(text).items()]


def followable(reason: PendingReason, caller: UserCaller, people: People, project: str) -> str:
    """Returns the fix with each option that exceeds the caller's caps replaced by the role to ask for it."""
    if _HIGH not in reason.fix or people.may_user(caller, project, "priority", _HIGH_PRIORITY):
        return reason.fix
    others = [each for each in reason.fix.split(_OR) if _HIGH not in each]
    able = [role for role in (UserRole.OPERATOR, UserRole.ADMIN) if _role_may(people, role, project)]
    return _OR.join([*others, f"ask an {able[0].word} of {project} for a high priority: it is above your cap"])


def _role_may(people: People, role: UserRole, project: str) -> bool:
    return people.may_user(UserCaller("", role, (project,)), project, "priority", _HIGH_PRIORITY)


def value_owner(said_by: str, defaults: Iterable[DefaultView]) -> str:
    """Returns who states what an hour of the job is worth: the project, where the job got that value by default."""
    return "project" if said_by == "job" and any(each.field == "value_usd_per_h" for each in defaults) else said_by
