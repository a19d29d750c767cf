"""What prices alone prove about a level. Decides nothing.

At any prices, a level z is out of reach as soon as its targets, each reached in the cheapest way, cost more than all
rows are worth together.
"""

from dataclasses import dataclass

from optimizer.filling.response import Responses, responses
from optimizer.market import Market
from optimizer.objective import Targets
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

    @staticmethod
    def of(market: Market, worth: FloatArray, prices: FloatArray) -> "Proof":
        """What these prices have to say."""
        return Proof(market, responses(market, worth, prices), float(market.capacity @ prices))

    def excess(self, target: FloatArray) -> float:
        """What the targets cost above all that the rows are worth: positive means out of reach."""
        return float(self.market.size @ self.hulls.spent(target)) - self.income * (1 + ROUNDING)

    def bound(self, targets: Targets, reached: float, close: float = _CLOSE) -> float:
        """The smallest level proved to be out of reach, `highest` if none is; at most the part `close` above it.

        `reached` is known to be possible.
        """
        low, high = min(reached, targets.highest), targets.highest
        if self.excess(targets.at(high)[0]) <= 0:
            return high
        step = close * 10 * max(abs(low), 1e-12 * high)
        for _ in range(_MOST_STEPS):  # a level just above what was reached, as a rule
            guess = low + step
            if guess >= high or self.excess(targets.at(guess)[0]) > 0:
                high = min(high, guess)
                break
            low, step = guess, step * 16
        while high - low > close * high:
            middle = (low + high) / 2
            if middle in (low, high):
                break
            low, high = (low, middle) if self.excess(targets.at(middle)[0]) > 0 else (middle, high)
        return high
