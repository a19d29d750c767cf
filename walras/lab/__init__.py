"""Policies of one's own, tried in the simulator: what `from walras.lab import Order` gives.

    from walras.lab import Order, compare

    class ShortestGang(Order):
        def key(self, jobs):
            return jobs.gang

    print(compare([ShortestGang, "las"], on="three-types", cluster="gavel-12-12-12", seeds=range(3)))

A class is written in a file, because every run reads it there. On the command line the file is the policy:
`walras simulate compare three-types --cluster gavel-12-12-12 --policy my_policies.py --policy las`.
"""

from typing import TYPE_CHECKING, Any

from optimizer.policies.own_policies import OwnOrder, OwnPlan, OwnShares, PlanState, ShareMarket
from walras.errors import ConfigError
from walras.lab.comparison import Comparison, compare

if TYPE_CHECKING:
    from walras.lab.environment import Env

Order = OwnOrder
Shares = OwnShares
Plan = OwnPlan

__all__ = ["Comparison", "Env", "Order", "Plan", "PlanState", "ShareMarket", "Shares", "compare"]


def __getattr__(name: str) -> Any:
    """Imports `Env` when it is asked for: gymnasium is an extra. Raises ConfigError where it is not installed."""
    if name != "Env":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from walras.lab.environment import Env
    except ModuleNotFoundError as error:
        if error.name != "gymnasium":
            raise
        raise ConfigError("gymnasium is not installed", fix="pip install 'walras[lab]'") from error
    return Env
