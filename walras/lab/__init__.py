"""Policies of one's own, tried in the simulator: what `from walras.lab import Order` gives.

    from walras.lab import Order, compare

    class ShortestGang(Order):
        def key(self, jobs):
            return jobs.gang

    print(compare([ShortestGang, "las"], on="three-types", cluster="gavel-12-12-12", seeds=range(3)))

A class is written in a file, because every run reads it there. On the command line the file is the policy:
`walras simulate compare three-types --cluster gavel-12-12-12 --policy my_policies.py --policy las`.
"""

from optimizer.policies.own_policies import OwnOrder, OwnPlan, OwnShares, PlanState, ShareMarket
from walras.lab.comparison import Comparison, compare

Order = OwnOrder
Shares = OwnShares
Plan = OwnPlan

__all__ = ["Comparison", "Order", "Plan", "PlanState", "ShareMarket", "Shares", "compare"]
