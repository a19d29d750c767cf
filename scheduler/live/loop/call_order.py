"""Which start of a machine's agent is the newest, and which of its calls are late.

Calls can arrive late, twice, and in another order than they were made, also those of an agent that has died since. What
a late call says is there is of the past: to believe it would end what runs on the machine now.

A start of an agent names itself at random and counts its calls. It calls once before it knows which life of the server
it speaks to; its later calls name that life, which shows that it got the answer. So of two starts with calls that were
taken, the one that was met later is the later one: it was alive after the other had been met.
"""

from dataclasses import dataclass, field

#: How many starts of an agent are remembered.
_STARTS_KEPT = 8
#: After so many new calls in a row of a seemingly earlier start, and none of the other, that start is the live one.
_CALLS_OF_THE_LIVING = 3


@dataclass(slots=True)
class CallOrder:
    """The starts of one machine's agent that were heard lately, and their calls."""

    #: By start, in the order in which they were met: the newest call number that was taken; 0: none was.
    _taken: dict[str, int] = field(default_factory=dict)
    #: How many new calls in a row came from a start that seems to be an earlier one.
    _overtaken: int = 0

    def meet(self, start: str) -> None:
        """Note that a start of the agent is heard, though nothing it says is taken yet."""
        self._taken.setdefault(start, 0)
        if len(self._taken) > _STARTS_KEPT:
            del self._taken[next(iter(self._taken))]

    def is_late(self, start: str, call: int) -> bool:
        """Note a call of the agent. Returns True if a newer one has overtaken it, so that its content is outdated.

        `call`: its number; 0 from an agent of an older release, which does not count its calls.
        """
        if not call:
            return False
        self.meet(start)
        if call <= self._taken[start]:
            return True
        order = list(self._taken)
        is_earlier = any(self._taken[later] for later in order[order.index(start) + 1 :])
        self._taken[start] = call
        self._overtaken = self._overtaken + 1 if is_earlier else 0
        if is_earlier and self._overtaken < _CALLS_OF_THE_LIVING:
            return True
        # A start that goes on calling is the live one; the call in between was a delayed one of an earlier start.
        self._taken[start] = self._taken.pop(start)
        self._overtaken = 0
        return False
