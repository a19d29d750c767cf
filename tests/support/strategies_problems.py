"""Hypothesis strategies for allocation problems."""

from hypothesis import strategies as st
from problems import Setting

#: Equal, or at least half a percent apart: full jobs with two almost equal pools magnify rounding (see the unit test).
_SPEED = st.integers(1, 200).map(lambda quarters: quarters / 4)
_SPEED_OR_NOT = st.one_of(_SPEED, _SPEED, _SPEED, st.just(0.0), st.none())


@st.composite
def settings_of_problems(
    draw: st.DrawFn, *, whole: bool = False, single: bool = False, max_jobs: int = 8, projects: bool = True
) -> Setting:
    """Up to `max_jobs` jobs on up to four pools: scarce or plenty, equal jobs, gaps, zeros, projects.

    `whole`: every job runs everywhere. `single`: gangs of one and equal weights.
    """
    pools = draw(st.integers(1, 4))
    row = st.lists(_SPEED if whole else _SPEED_OR_NOT, min_size=pools, max_size=pools)
    kinds = draw(st.lists(row, min_size=1, max_size=4))
    picks = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=max_jobs))
    gangs = [1.0 if single else draw(st.sampled_from([1.0, 1.0, 2.0, 4.0])) for _ in picks]
    weights = [1.0 if single else draw(st.sampled_from([1.0, 1.0, 2.0, 0.5])) for _ in picks]
    entities = draw(st.integers(0, 3)) if projects else 0
    return Setting(
        speeds=[kinds[k] for k in picks],
        capacity=draw(st.lists(st.integers(0 if not whole else 1, 6).map(float), min_size=pools, max_size=pools)),
        gangs=gangs,
        weights=weights,
        entity=[draw(st.integers(0, entities - 1)) for _ in picks] if entities else (),
        entity_weights=[draw(st.sampled_from([1.0, 2.0, 3.0])) for _ in range(entities)],
    )
