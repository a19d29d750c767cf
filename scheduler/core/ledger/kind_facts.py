"""Facts of kinds of jobs, and who is believed where they conflict.

What a job counted of itself goes before what people stated, and the newer of two of a sort before the older. What the
believed one does not know is taken from the other, if both mean the same by a sample.
"""

from walras.ids import Kind
from walras.model_facts import ModelFacts, filled

#: Kinds whose facts are kept; the one told of longest ago is forgotten.
KINDS_MOST = 10_000


class KindFactsBook:
    """Kind -> facts."""

    def __init__(self) -> None:
        self._stated: dict[Kind, ModelFacts] = {}
        self._counted: dict[Kind, ModelFacts] = {}
        #: Another number whenever some facts have become others.
        self.version = 0

    def tell(self, kind: Kind, facts: ModelFacts, *, counted: bool) -> bool:
        """Take in facts. True if they are news."""
        book = self._counted if counted else self._stated
        if book.get(kind) == facts:
            return False
        book.pop(kind, None)
        book[kind] = facts
        if len(book) > KINDS_MOST:
            del book[next(iter(book))]
        self.version += 1
        return True

    def has(self, kind: Kind, facts: ModelFacts, *, counted: bool) -> bool:
        """Whether these would be no news."""
        return (self._counted if counted else self._stated).get(kind) == facts

    def of(self, kind: Kind) -> ModelFacts | None:
        """What is believed of the kind; None: nothing is known."""
        counted, stated = self._counted.get(kind), self._stated.get(kind)
        return stated if counted is None else filled(counted, stated)

    def is_counted(self, kind: Kind) -> bool:
        """Whether a job of the kind has counted."""
        return kind in self._counted

    def kinds(self) -> list[Kind]:
        """Of which something is known."""
        return list(dict.fromkeys((*self._stated, *self._counted)))
