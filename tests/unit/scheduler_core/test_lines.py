"""Lines of waiting jobs: who stands first, though entries are dropped late, and which are looked at in vain."""

from fake_fleet import cluster, job
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.placement.reservations import FreeCapacityBound
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from scheduler.core.state.job_queues import ShapeQueue
from walras.job_request import JobId, Kind

A, B = JobId(1), JobId(2)


def everybody(_: JobId) -> bool:
    return True


def test_one_who_left_and_came_back_stands_by_the_new_key_alone() -> None:
    """Though nobody looked at the line while it was gone, neither a plan's entry nor an earlier late one counts."""
    line = ShapeQueue(1, 1)
    line.plan([((1.0, 1), A), ((2.0, 2), B)])
    line.push((5.0, 1), A)
    assert line.head(everybody) == ((2.0, 2), B)
    line.push((0.0, 2), B)
    line.push((6.0, 2), B)
    assert line.head(everybody) == ((5.0, 1), A)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("came"), st.integers(1, 5), st.integers(0, 9)),
            st.tuples(st.just("went"), st.integers(1, 5), st.just(0)),
            st.tuples(st.just("looked"), st.just(0), st.just(0)),
        ),
        max_size=60,
    )
)
def test_the_first_is_the_same_however_often_somebody_looks(happened: list[tuple[str, int, int]]) -> None:
    """The smallest current key of those who wait, as a plain dictionary has it; the floor is at most that."""
    line, waiting = ShapeQueue(1, 1), {JobId(number): (5.0, number) for number in (1, 3, 5)}
    line.plan(sorted((key, job) for job, key in waiting.items()))
    for what, number, key in happened:
        job = JobId(number)
        if what == "came" and job not in waiting:
            waiting[job] = (float(key), number)
            line.push(waiting[job], job)
        elif what == "went":
            waiting.pop(job, None)
        elif what == "looked":
            expected = min(((key, job) for job, key in waiting.items()), default=None)
            floor = line.floor()
            assert expected is None or (floor is not None and floor <= expected[0])
            assert line.head(lambda one: one in waiting) == expected


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 8), st.integers(1, 8))
def test_how_far_a_plan_was_drawn_shows_nowhere(keys: list[int], gone: int, most: int) -> None:
    """After the first have left, the next in order and those before a key are as if the plan were a list."""
    entries = sorted(((float(key), number), JobId(number)) for number, key in enumerate(keys))
    line, left = ShapeQueue(1, 1), entries[gone:]
    line.plan(iter(entries))
    here = {job_id for _, job_id in left}
    assert line.head(here.__contains__) == (left[0] if left else None)
    assert list(line.first(most)) == left[:most]
    assert list(line.before((5.0,))) == [job_id for key, job_id in left if key < (5.0,)]
    assert list(line.first(most)) == left[:most]


QUICK = RoundRules(round_s=10, resolve_min_s=0, min_runtime_s=5, restart_default_s=2, profiling_share=0)


def test_a_gang_on_several_machines_needs_its_largest_part_on_one() -> None:
    """However much is free in all: whole machines for what fills them, an even part of a gang spread by request."""
    room = FreeCapacityBound(one=3, several=12, lent=0)
    assert not room.may_hold(ShapeQueue(8, part=4))
    assert room.may_hold(ShapeQueue(6, part=3))
    assert not room.may_hold(ShapeQueue(15, part=3))
    assert room.may_hold(ShapeQueue(3, part=3))
    assert not room.may_hold(ShapeQueue(4, part=4))
    assert FreeCapacityBound(one=0, several=0, lent=4).may_hold(ShapeQueue(4, part=4))
    fleet = cluster("fifo", rules=QUICK, machines="aa")
    for number, nodes in ((1, 1), (2, 2)):
        fleet.tell(ev.JobSubmitted(0.0, job(number, "a", 6, nodes=nodes)))
    queues, ledger = fleet.core.cycle.queues, fleet.core.ledger
    rows = [ledger.classes.row(job(number, "a", 6, nodes=nodes)) for number, nodes in ((1, 1), (2, 2))]
    found = [queues.queue(0, ledger.classes.classes[row].shape) for row in rows]
    assert [(line.count, line.part) for line in found] == [(6, 4), (6, 3)]


def test_an_elastic_job_starts_small_behind_a_gang_that_found_no_place() -> None:
    """One accelerator is free on each of three machines, two of them reserved: its full gang has no room either."""
    fleet = cluster("max_min_fairness", rules=QUICK, machines="aaa")
    for count in (1, 2, 3, 4, 8):
        fleet.tell(ThroughputMeasured(0.0, Kind("k"), "a", count, float(count)))
    for number in (1, 2, 3):
        fleet.tell(ev.JobSubmitted(0.0, job(number, "a", 3, preemptible=False)))
    fleet.tell(ev.JobSubmitted(1.0, job(4, "a", 8)))
    fleet.answer({1: {"a": 0.5}})  # asked for before the others came
    fleet.answer({number: {"a": 0.5} for number in (1, 2, 3, 4)})
    assert [claim.job_id for claim in fleet.core.cycle.reservations.values()] == [4]
    commands = fleet.tell(ev.JobSubmitted(2.0, job(5, "a", 4, sizes=(1, 2, 4))))
    started = {c.job_id: c.placement.accelerators for c in commands if isinstance(c, cmd.Start)}
    assert started == {JobId(5): 1}
