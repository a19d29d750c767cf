"""Lines of waiting jobs: who stands first, though entries are dropped late."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.state.job_queues import ShapeQueue
from walras.job_request import JobId

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
