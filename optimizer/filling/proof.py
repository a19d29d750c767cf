"""What prices alone prove about a level. Decides nothing.

At any prices, a level z is out of reach as soon as its targets, each reached in the cheapest way, cost more than all
rows are worth together.
"""

from dataclasses import dataclass

from optimizer.filling.residual import capped
from optimizer.filling.response import Responses, responses
from optimizer.market.market import Market
from optimizer.market.objective import Targets
from optimizer.problem import FloatArray

#: The price of everything and what is spent agree to this part. It is more than the room that levels are given
#: (`residual._ROOM`): whether what everybody keeps is covered must not hang on the last bit.
ROUNDING = 3e-10
#: A level is found to this part, and evaluations that do so.
_CLOSE = 1e-13
_MOST_STEPS = 80


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """The classes' answer to prices."""

    market: Market
    hulls: Responses
    income: float
    compiled: bool

    @staticmethod
    def of(market: Market, worth: FloatArray, prices: FloatArray, *, compiled: bool = False) -> "Proof":
        """What these prices have to say."""
        hulls = responses(market, worth, prices, compiled=compiled)
        return Proof(market, hulls, float(market.capacity @ prices), compiled)

    def excess(self, target: FloatArray) -> float:
        """What the targets cost above all that the rows are worth: positive means out of reach."""
        if self.compiled:
            from optimizer.filling import response_kernels

            spent = response_kernels.spent_by_all(self.market.size, self.hulls.worth, self.hulls.cost, target)
        else:
            spent = self.market.size @ self.hulls.spent(target)
        return float(spent) - self.income * (1 + ROUNDING)

    def bound(self, targets: Targets, reached: float, close: float = _CLOSE) -> float:
        """The smallest level proved to be out of reach, `highest` if none is; at most the part `close` above it.

        `reached` is known to be possible.
        """
        low, high = min(reached, targets.highest), targets.highest
        lines = capped(targets) if self.compiled else None
        if lines is not None:
            from optimizer.filling import response_kernels

            hull, income = (self.market.size, self.hulls.worth, self.hulls.cost), self.income * (1 + ROUNDING)
            told = (lines.slope, lines.cap, lines.floor)
            return float(response_kernels.cheapest_level(hull, income, told, (low, high), (close, _MOST_STEPS)))
        above, below = self.excess(targets.at(high)[0]), self.excess(targets.at(low)[0])
        if above <= 0:
            return high
        if below > 0:
            return min(high, low * (1 + close))
        guess = low * (1 + 10 * close)  # a level just above what was reached, as a rule
        moved = 0
        for _ in range(_MOST_STEPS):
            least = 0.5 * close * high
            if high - low <= 2 * least:
                break
            guess = min(max(guess, low + least), high - least)
            excess = self.excess(targets.at(guess)[0])
            if excess > 0:  # an end that stays twice counts half: else the chord would creep towards it
                high, above, below = guess, excess, below / 2 if moved > 0 else below
                moved = 1
            else:
                low, below, above = guess, excess, above / 2 if moved < 0 else above
                moved = -1
            guess = high - above * (high - low) / (above - below)
        return high
