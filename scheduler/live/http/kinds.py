"""Facts of kinds of jobs over HTTP: stated by whoever may submit, shown to whoever may look."""

from dataclasses import asdict

from aiohttp import web
from pydantic import Field

from scheduler.live.desks.kinds import state_facts
from scheduler.live.http.routing import Call, json_list, parse_json
from scheduler.live.turns.turn import Turn
from walras.api import FactsView
from walras.checking import FileModel, check
from walras.errors import NotFound
from walras.ids import Kind
from walras.model_facts import MOST_SAMPLES, StatedFacts
from walras.names import ShownName


class KindStated(FileModel):
    """`POST /facts`. `batch`: samples of one step over a gang of whatever size; else those of each accelerator."""

    kind: ShownName
    facts: StatedFacts
    batch: float | None = Field(default=None, gt=0, le=MOST_SAMPLES)

    def model_post_init(self, context: object) -> None:
        self.facts.facts(self.batch)


async def state(call: Call) -> FactsView:
    """Take in facts of a kind; answers with what is believed of it now."""
    stated = check(KindStated, parse_json(await call.body()), source="facts")
    kind, facts = Kind(stated.kind), stated.facts.facts(stated.batch)

    def step(turn: Turn) -> None:
        state_facts(turn, kind, facts, call.user.name)

    await call.server.daemon.perform(step)
    return _view(call, kind)


async def show(call: Call) -> web.StreamResponse:
    """Of one kind, or of all. Raises NotFound for a kind of which nothing is known."""
    book, asked = call.server.core.ledger.facts, call.request.query.get("kind")
    if asked is not None and book.of(Kind(asked)) is None:
        raise NotFound(f"nothing is known of kind {asked[:100]!r}", field="kind", fix="see `walras profile facts`")
    kinds = sorted(book.kinds()) if asked is None else [Kind(asked)]
    return json_list([_view(call, kind) for kind in kinds])


def _view(call: Call, kind: Kind) -> FactsView:
    book = call.server.core.ledger.facts
    facts = book.of(kind)
    assert facts is not None, f"nothing is known of {kind}"
    known = {name: value for name, value in asdict(facts).items() if isinstance(value, int | float)}
    source = "counted" if book.is_counted(kind) else "stated"
    return FactsView(kind=kind, source=source, facts=known, precision=facts.precision)
