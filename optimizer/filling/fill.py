"""Levels that rise until everybody has what it can get: the lexicographic max-min of any family of targets.

One level is the largest z at which every class has its target. Its prices tell what is scarce there, and from then on
nobody who still rises uses that: in every optimum a class that reaches its target for nothing uses no priced row, and
all later shares are optima of this level too. So whoever cannot have more than its target without a scarce row has
settled, for the others that part of the market is gone, and the next level goes on from there. Every level exhausts a
row or fills everybody: there are at most (rows + 1) of them in a tier.

Tiers follow each other: a rule's first targets rise until all that they speak of have settled, then its next.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from optimizer.decision import Status
from optimizer.filling.interior import Interior, LevelProgram
from optimizer.filling.proof import Proof
from optimizer.market import Market
from optimizer.objective import Targets
from optimizer.problem import BoolArray, FloatArray, IntArray
from optimizer.targets import Capped, level_reached
