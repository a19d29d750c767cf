"""The one rule by which holders share what a server has only so much of.

Each holder may have half of what the others leave, so that whoever comes next finds room. A part of everything is kept
for machines and administrators: others take the rest only.
"""

from collections import Counter

from walras.errors import UserError

#: The part of a thing that is kept for machines and administrators, where one is.
_RESERVED = 8


class ShareTaken(UserError):
    """A holder asks for more than its share."""


class HolderShares:
    """What holders have of one thing."""

    def __init__(self, what: str, most: int, *, has_reserve: bool = False, fix: str = "") -> None:
        self.what, self.most = what, most
        self._has_reserve, self._fix = has_reserve, fix
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> dict[str, int]:
        """Returns how many each holder has."""
        return dict(self._held)

    def share_of(self, holder: str, *, is_reserved: bool = False) -> int:
        """Returns the most that the holder may have by now."""
        open_to_it = self.most - (self.most // _RESERVED if self._has_reserve and not is_reserved else 0)
        return max(0, open_to_it - (self._held.total() - self._held[holder]) + 1) // 2

    @property
    def is_nearly_taken(self) -> bool:
        """Returns whether what holders without a reserve may still take is less than the reserve itself."""
        reserve = self.most // _RESERVED
        return self.most - reserve - self._held.total() < reserve

    def check(self, holder: str, more: int = 1, *, is_reserved: bool = False) -> None:
        """Raise ShareTaken where the holder would have more than its share."""
        check_share(self.what, self._held[holder], more, self.share_of(holder, is_reserved=is_reserved), self._fix)

    def take(self, holder: str, *, is_reserved: bool = False) -> None:
        """Count one more. Raises ShareTaken."""
        self.check(holder, is_reserved=is_reserved)
        self._held[holder] += 1

    def put_back(self, holder: str, more: int = 1) -> None:
        """Count more, whatever the share: it was lent to something else for a moment, or was held before."""
        self._held[holder] += more

    def give_back(self, holder: str, less: int = 1) -> None:
        """Count less."""
        self._held[holder] -= less
        if not self._held[holder]:
            del self._held[holder]


def check_share(what: str, held: int, more: int, share: int, fix: str) -> None:
    """Raise ShareTaken where a holder with `held` would have more than its share."""
    if held + more > share:
        raise ShareTaken(f"{held:,} {what} of yours are held already, your share is {share:,}", fix=fix)
