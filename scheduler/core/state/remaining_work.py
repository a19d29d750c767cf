"""How much work a job has left: one function for each estimate that the core needs, and what it assumes.

    function                     steps counted as done          speed                unknown  used for
    remaining_here_s             reported, and made since then  of its attempt       guess    is it too near its end to
    remaining_here_of_all_s      (the same of many jobs)                                      be moved or displaced?
    expected_end_at              at the start of its attempt    of its attempt       guess    reservations: reports must
    expected_ends_on, ready_at   (the same, by machine)                                       not move them
    end_if_started_at            reported                       on the given pool    guess    may it borrow a place?
    from_checkpoint_s            at its newest checkpoint       as given             -        deadlines: the safe bound
    unreported_on_best_s         reported                       on the fastest pool  1 hour   is enough work left for a
    unreported_on_best_of_all_s  (the same of many jobs)                                      profiling lease?
    remaining_on_best_s          reported, and made since then  on the fastest pool  guess    orders of jobs by length
    worked_on_best_s             its time on accelerators       of each attempt      -        what is left of a guess
    steps_made                   reported, and made since then  -                    -        policies: of active jobs
    unreported_steps             reported                       -                    inf      policies: of an arrival

Speeds are those of the job's kind, measured or predicted; 0 steps per second counts as unknown. "Unknown" is the result
for a job that states no steps; a guess is its submitter's, inf without one. Stated lengths are corrected by the record
of the user's former statements (`statement_records`; `stated_by_record`), except in `from_checkpoint_s`: a deadline is
its user's own risk. `expected_end_at`, `end_if_started_at` and `ready_at` return instants, include the cost of a
restart, are no later than the job's limit of run time, and assume that no job is stopped; all other results in seconds
are time of work alone. `fetching_s` is the additional time of a start where inputs are not cached. Nothing here changes
the ledger, except that ends are cached on jobs and machines.
"""

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from optimizer.problem import FloatArray, IntArray, Problem
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import FleetMachine, Place
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.statement_records import KEPT
from scheduler.core.state.tools_and_data import FetchTime
from walras.job_request import JobId

#: A job that has made this many times the steps it stated is treated as of unknown length. Otherwise it would keep its
#: place for ever, because it would always seem about to end.
OVERDUE = 1.1
#: Seconds of work assumed for a job of unknown length where a number is needed.
UNKNOWN_LENGTH_S = 3600.0


# ------------------------------------------------------------------------------------------------ what it states


def stated_by_record(ledger: Ledger, job: JobRecord) -> float:
    """Returns the steps that the job states, times the correction from its user's record; inf if it states none."""
    stated = job.request.steps
    return inf if stated is None else stated * ledger.lengths.factor(job.request.owners[-1])


def _stated_by_records(ledger: Ledger, rows: IntArray | slice) -> FloatArray:
    """Returns `stated_by_record` of the jobs in these slots (n,)."""
    columns = ledger.columns
    total: FloatArray = columns.steps_total[rows] * ledger.lengths.factors(ledger.entities, columns.entity[rows])
    return total


def guesses_by_record(ledger: Ledger, rows: IntArray | slice) -> FloatArray:
    """Returns the submitters' guesses of whole runs, seconds, corrected by their records; inf without one (n,)."""
    columns = ledger.columns
    guess: FloatArray = columns.duration_s[rows] * ledger.lengths.factors(ledger.entities, columns.entity[rows])
    return guess


def note_length(ledger: Ledger, job: JobRecord, *, succeeded: bool) -> None:
    """Records an ending job's true over stated length; if it did not succeed, only if it exceeded its statement."""
    columns, slot = ledger.columns, job.slot
    ratio = float(_come_to(ledger, np.array([slot]))[0])
    if succeeded or ratio > KEPT:
        ledger.lengths.ended(job.request.owners[-1], columns.attained_s.item(slot), ratio, ledger.now)


def note_lengths_exceeded(ledger: Ledger) -> None:
    """Records which active jobs have exceeded their stated lengths, and by which ratio."""
    columns = ledger.columns
    rows = columns.active.nonzero()[0]
    ratio = _come_to(ledger, rows)
    beyond, names = dict[str, list[tuple[float, float]]](), list(ledger.entities)
    for at in (ratio > KEPT).nonzero()[0].tolist():
        row = int(rows[at])
        name = names[columns.entity.item(row)]
        beyond.setdefault(name, []).append((columns.attained_s.item(row), float(ratio[at])))
    ledger.lengths.running(beyond, ledger.now)


def _come_to(ledger: Ledger, rows: IntArray) -> FloatArray:
    """Returns true over stated length of these jobs so far, by steps or by time; 0 if unknown (n,)."""
    columns = ledger.columns
    total, has_steps = columns.steps_total[rows], np.isfinite(columns.steps_total[rows])
    stated = np.where(has_steps, total, columns.duration_s[rows])
    came_to = columns.steps[rows]
    if np.isfinite(stated[~has_steps]).any():
        came_to = np.where(has_steps, came_to, worked_on_best_s(ledger, rows))
    found: FloatArray = np.divide(came_to, stated, out=np.zeros(len(rows)), where=stated > 0)
    return found


# ------------------------------------------------------------------------------------------------ where it runs


def remaining_here_s(ledger: Ledger, job: JobRecord) -> float:
    """Returns the seconds that a running job has left where it runs; inf if unknown or overdue."""
    total, rate = stated_by_record(ledger, job), ledger.rate_of(job)
    if rate <= 0:
        return inf
    if total == inf:
        return _guessed_left_s(ledger, job, rate, ledger.now - job.leased_at)
    done = job.steps + rate * max(0.0, ledger.now - float(ledger.columns.steps_at[job.slot]))
    if done > OVERDUE * total:
        return inf  # the job did not state its true length
    return max(0.0, total - done) / rate


def remaining_here_of_all_s(ledger: Ledger, rows: IntArray) -> FloatArray:
    """Returns `remaining_here_s` of the running jobs in these slots (n,)."""
    rate, total = _rates_here(ledger, rows), _stated_by_records(ledger, rows)
    done = _steps_at_rate(ledger, rows, rate)
    is_known = (rate > 0) & (done <= OVERDUE * total)
    steps = np.maximum(0.0, total - done)
    left: FloatArray = np.divide(steps, rate, out=np.full(len(rows), inf), where=is_known)
    columns = ledger.columns
    for at in np.flatnonzero((rate > 0) & np.isinf(total) & np.isfinite(columns.duration_s[rows])).tolist():
        job = ledger.jobs[JobId(columns.job_id.item(rows[at]))]
        left[at] = _guessed_left_s(ledger, job, rate.item(at), ledger.now - job.leased_at)
    return left


def _guessed_left_s(ledger: Ledger, job: JobRecord, rate: float, here_s: float = 0.0) -> float:
    """Returns the seconds left at `rate` > 0 by the submitter's guess, which is of the best pool; inf if it was wrong.

    `here_s`: how long the attempt has run at this speed.
    """
    columns, slot, best = ledger.columns, job.slot, max(rate, _best_alone(ledger, job))
    guess = columns.duration_s.item(slot) * ledger.lengths.factor(job.request.owners[-1])
    done_s = columns.worked_s.item(slot) + _on_best_s(here_s, rate, best)
    if job.place:
        done_s += job.ahead_steps / best
    if guess == inf or done_s > OVERDUE * guess:
        return inf
    return max(0.0, guess - done_s) * best / rate


def _best_alone(ledger: Ledger, job: JobRecord) -> float:
    """Returns the job's speed on its best pool; while it shares an accelerator, what it would be alone."""
    row = job.class_row
    machine = ledger.fleet.machines[job.place[0][0]] if len(job.place) == 1 else None
    if machine is not None and machine.holders.get(job.job_id) in machine.shared:
        row = ledger.classes.of_kind(row, job.request.kind)
    return ledger.classes.classes[row].best_rate


def _on_best_s(seconds: float, rate: float, best: float) -> float:
    """Returns the seconds on the fastest pool that `seconds` at this speed are worth; as many while it is unknown."""
    return max(seconds, 0.0) * (rate / best if 0 < rate < best else 1.0)


def worked_on_best_s(ledger: Ledger, rows: IntArray | slice) -> FloatArray:
    """Returns the seconds on the fastest pool that the time on accelerators of these jobs is worth (n,)."""
    columns = ledger.columns
    worked_s: FloatArray = columns.worked_s[rows]
    holds = columns.pool[rows] >= 0
    if not holds.any():
        return worked_s
    best = ledger.classes.rates[columns.class_row[rows]].max(axis=1, initial=0.0)
    rate = _rates_here(ledger, rows)
    part = np.divide(rate, best, out=np.ones(len(best)), where=(rate > 0) & (rate < best))
    return worked_s + np.where(holds, np.maximum(ledger.now - columns.since_at[rows], 0.0) * part, 0.0)


def note_worked(ledger: Ledger, job: JobRecord) -> None:
    """Records what the attempt that ends now was worth (`worked_on_best_s`)."""
    rate = ledger.rate_of(job)
    best = max(rate, _best_alone(ledger, job))
    here_s = _on_best_s(ledger.now - job.leased_at, rate, best) + (job.ahead_steps / best if best > 0 else 0.0)
    ledger.columns.worked_s[job.slot] += max(here_s, 0.0)


def _rates_here(ledger: Ledger, rows: IntArray | slice) -> FloatArray:
    """Returns steps per second of the attempts of the jobs in these slots (n,); meaningless for a waiting job."""
    columns = ledger.columns
    rates: FloatArray = ledger.classes.rates[columns.runs_as[rows], columns.pool[rows]]
    return rates


def _steps_at_rate(ledger: Ledger, rows: IntArray | slice, rate: FloatArray) -> FloatArray:
    """Returns the steps reported by the jobs in these slots, plus those made at this speed since then (n,)."""
    columns = ledger.columns
    # `steps_at` of a waiting job is inf, so it adds no steps.
    done: FloatArray = columns.steps[rows] + rate * np.maximum(ledger.now - columns.steps_at[rows], 0.0)
    return done


# ------------------------------------------------------------------------------------------------ when places are free


def expected_end_at(ledger: Ledger, job: JobRecord, rules: RoundRules) -> float:
    """Returns the instant at which a running job ends if no one stops it but its limit of run time; inf if unknown."""
    ran_from = job.running_at if job.running_at < inf else job.leased_at + ledger.restart_s(job, rules)
    return min(work_ends_at(ledger, job, rules), ran_from + _limit_left_s(job))


def _limit_left_s(job: JobRecord) -> float:
    """Returns the seconds that attempts from the present one on may run."""
    return max(job.request.max_runtime_s - job.held_s, 0.0)


def work_ends_at(ledger: Ledger, job: JobRecord, rules: RoundRules) -> float:
    """Returns the instant at which a running job's work is done if no one stops it; inf if unknown.

    The instant stays the same while the attempt lasts and no speed or restart cost changes, so it is computed once.
    """
    known = _version(ledger)
    if job.ends_version != known:
        total, rate = stated_by_record(ledger, job), ledger.rate_of(job)
        job.ends_version, job.ends_at = known, inf
        if rate > 0:
            known_length = total < inf
            made = job.start_steps + job.ahead_steps
            left_s = max(0.0, total - made) / rate if known_length else _guessed_left_s(ledger, job, rate)
            job.ends_at = job.leased_at + ledger.restart_s(job, rules) + left_s
    return job.ends_at


def _version(ledger: Ledger) -> int:
    """Returns the version of the data behind expected ends; its parts only grow."""
    return ledger.classes.version + ledger.costs.version + ledger.lengths.version


def expected_ends_on(ledger: Ledger, machine: FleetMachine, rules: RoundRules) -> list[float]:
    """Returns the instants at which the machine's held accelerators are free if no job is stopped; ascending."""
    known = _version(ledger)
    if machine.ends_version != known:
        machine.ends, shared = [], dict[tuple[int, ...], float]()
        for job_id, held in machine.holders.items():
            end_at = expected_end_at(ledger, ledger.jobs[job_id], rules)
            if held in machine.shared:  # free when the later of the two has ended
                shared[held] = max(shared.get(held, end_at), end_at)
            else:
                machine.ends.extend([end_at] * len(held))
        machine.ends.extend(end_at for held, end_at in shared.items() for _ in held)
        machine.ends.sort()
        machine.ends_version = known
    return machine.ends


def freed_at(ledger: Ledger, machine: FleetMachine, count: int, rules: RoundRules) -> float:
    """Returns the instant at which `count` (> 0) of the held accelerators are free if no job is stopped.

    It is inf if unknown, or if fewer are held. It may be in the past, because jobs take longer than expected.
    """
    ends = expected_ends_on(ledger, machine, rules)
    return ends[count - 1] if count <= len(ends) else inf


def ready_at(ledger: Ledger, machine: FleetMachine, wanted: int, rules: RoundRules) -> float:
    """Returns when `wanted` accelerators of the machine are free if no job is stopped; inf if unknown.

    It is never in the past. Processors and memory are not considered.
    """
    missing = wanted - len(machine.free)
    if missing <= 0:
        return ledger.now
    end_at = freed_at(ledger, machine, missing, rules)
    return end_at if end_at > ledger.now else ledger.now


# ------------------------------------------------------------------------------------------------ on a given pool


def end_if_started_at(ledger: Ledger, job: JobRecord, pool: int, rules: RoundRules) -> float:
    """Returns the instant at which a waiting job would end if it started on the pool now; inf if unknown.

    The instant is in the past for a job that has reported more steps than it stated.
    """
    limit_at = ledger.now + ledger.restart_s(job, rules) + _limit_left_s(job)
    return min(work_ends_if_started_at(ledger, job, pool, rules), limit_at)


def work_ends_if_started_at(ledger: Ledger, job: JobRecord, pool: int, rules: RoundRules) -> float:
    """Returns `end_if_started_at` without the job's limit of run time."""
    rate = float(ledger.class_of(job).rates[pool])
    if rate <= 0:
        return inf
    if job.request.steps is None:
        left_s = _guessed_left_s(ledger, job, rate)
    else:
        left_s = (stated_by_record(ledger, job) - job.steps) / rate
    return ledger.now + ledger.restart_s(job, rules) + left_s


def from_checkpoint_s(job: JobRecord, rate: float) -> float:
    """Returns the seconds from a job's newest checkpoint to its end at `rate` > 0; the job must state its steps."""
    assert job.request.steps is not None, "only for jobs that state their steps"
    return max(0.0, job.request.steps - job.safe_steps) / rate


# ------------------------------------------------------------------------------------------------ on the fastest pool


def unreported_on_best_s(ledger: Ledger, job: JobRecord) -> float:
    """Returns the seconds that unreported steps take on the fastest pool; an hour if unknown, 0 if it fits no pool."""
    best = ledger.class_of(job).best_rate
    if best <= 0:
        return 0.0
    return UNKNOWN_LENGTH_S if job.request.steps is None else unreported_steps(ledger, job) / best


def unreported_on_best_of_all_s(ledger: Ledger, rows: IntArray) -> FloatArray:
    """Returns `unreported_on_best_s` of the jobs in these slots (n,)."""
    columns = ledger.columns
    best = np.array([job_class.best_rate for job_class in ledger.classes.classes])[columns.class_row[rows]]
    left = np.maximum(_stated_by_records(ledger, rows) - columns.steps[rows], 0.0)
    seconds = np.divide(left, best, out=np.zeros(len(rows)), where=best > 0)
    return np.where(np.isfinite(seconds), seconds, UNKNOWN_LENGTH_S)


def remaining_on_best_s(ledger: Ledger, rows: IntArray | slice) -> FloatArray:
    """Returns the seconds that the jobs in these slots would have left on the fastest pool (n,).

    For a job that states no steps this is its submitter's guess less `worked_on_best_s`; inf without a guess.
    """
    columns = ledger.columns
    if not columns.pools:
        return np.full(len(columns.gang[rows]), inf)
    best = ledger.classes.rates[columns.class_row[rows]].max(axis=1, initial=0.0)
    done = _steps_at_rate(ledger, rows, _rates_here(ledger, rows))
    by_steps = np.full(len(best), inf)
    np.divide(np.maximum(_stated_by_records(ledger, rows) - done, 0.0), best, out=by_steps, where=best > 0)
    guess = guesses_by_record(ledger, rows)
    if not np.isfinite(guess).any():
        return by_steps
    by_guess = np.maximum(guess - worked_on_best_s(ledger, rows), 0.0)
    return np.where(np.isfinite(columns.steps_total[rows]), by_steps, by_guess)


# ------------------------------------------------------------------------------------------------ in steps


def steps_made(ledger: Ledger, rows: IntArray) -> FloatArray:
    """Returns the steps of the jobs in these slots until now, at most what they state or have reported (n,)."""
    columns = ledger.columns
    if not columns.pools:
        return columns.steps[rows]
    most = _stated_by_records(ledger, rows)
    if ledger.lengths.is_used:
        most = np.maximum(most, columns.steps[rows])
    return np.minimum(_steps_at_rate(ledger, rows, _rates_here(ledger, rows)), most)


def steps_left(ledger: Ledger, rows: IntArray, done: FloatArray) -> FloatArray:
    """Returns the steps that the jobs in these slots have left when `done` steps are done (n,)."""
    left: FloatArray = np.maximum(_stated_by_records(ledger, rows) - done, 0.0)
    return left


def unreported_steps(ledger: Ledger, job: JobRecord) -> float:
    """Returns the steps that the job has not reported yet; inf if it states none."""
    return max(0.0, stated_by_record(ledger, job) - job.steps)


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """What the jobs of a problem have done at an instant, in its order (n,)."""

    at: float
    done_steps: FloatArray
    remaining_steps: FloatArray
    attained_s: FloatArray


def progress_of(ledger: Ledger, problem: Problem) -> Progress:
    """Returns what these jobs, all of them active, have done by now. Their service must be settled."""
    rows = ledger.columns.slots_of(problem.jobs.job_id)
    done = steps_made(ledger, rows)
    return Progress(ledger.now, done, steps_left(ledger, rows, done), ledger.columns.attained_s[rows])


def with_progress(problem: Problem, progress: Progress) -> Problem:
    """Returns the problem as it is at a later instant if nothing but this has changed."""
    done, left, attained_s = progress.done_steps, progress.remaining_steps, progress.attained_s
    jobs = replace(problem.jobs, done_steps=done, remaining_steps=left, attained_s=attained_s)
    return replace(problem, at=progress.at, jobs=jobs)


# ------------------------------------------------------------------------------------------------ fetching


def lacks_inputs(ledger: Ledger, job: JobRecord, place: Place) -> bool:
    """Returns whether a machine of the place has to download inputs of the job, as far as machines reported."""
    data, caches = job.request.data, ledger.fleet.caches
    return bool(data) and not all(caches.has_all(row, data) for row, _ in place)


def fetching_s(ledger: Ledger, job: JobRecord, place: Place) -> float:
    """Returns the seconds that a start of the job there takes beyond `restart_s` because it downloads inputs.

    These are the missing bytes at the rate of the slowest machine. If no machine has reported their size, it is the
    time that such starts of the kind took beyond usual ones; 0 until one was measured.
    """
    if not ledger.policy.rules.count_fetches or not lacks_inputs(ledger, job, place):
        return 0.0
    if (found := fetch_time(ledger, job, place)) is not None:
        return found.seconds
    return ledger.costs.fetch_s(job.request.kind)


def fetch_time(ledger: Ledger, job: JobRecord, place: Place) -> FetchTime | None:
    """Returns the longest download among the place's machines; None if a size is unknown."""
    longest = FetchTime(0, 0.0)
    for row, _ in place:
        machine = ledger.fleet.machines[row]
        found = None if machine is None else ledger.fleet.caches.fetch_time(row, machine.pool, job.request.data)
        if found is None:
            return None
        longest = max(longest, found, key=lambda each: each.seconds)
    return longest


def warmest_place(ledger: Ledger, job: JobRecord, pool: int) -> Place:
    """Returns the machine of the pool that has most of the job's inputs; empty if the pool has no machine."""
    members = ledger.fleet.pools[pool].members
    rows = ledger.fleet.caches.rows_with(job.request.data, members)[:1] or list(members)[:1]
    return tuple((row, 1) for row in rows)


def fetching_on_pool_s(ledger: Ledger, job: JobRecord, pool: int) -> float:
    """Returns `fetching_s` on the machine of the pool that has most of the job's inputs."""
    return fetching_s(ledger, job, warmest_place(ledger, job, pool)) if job.request.data else 0.0
