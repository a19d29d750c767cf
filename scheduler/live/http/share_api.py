"""The endpoint about shares: what projects and users are entitled to, hold, and have used.

Callers see their own projects, with the users in them; of others only that they lend or borrow, as "others".
"""

from aiohttp import web

from scheduler.core.explain.share_standing import ShareStanding, share_standings
from scheduler.live.http.requests import RequestContext, Route, json_list
from walras.contract import SECONDS_PER_HOUR
from walras.people import ShareLoan, ShareView

_OTHERS = "others"


async def list_shares(call: RequestContext) -> web.StreamResponse:
    wanted = call.request.query.get("project", "")
    found = share_standings(call.server.core, call.server.loop.clock.now())
    rules = call.server.core.ledger.policy.rules
    seen = [each for each in found if call.user.sees(_project(each.name)) and wanted in ("", _project(each.name))]
    return json_list([_view(call, each, rules.usage_half_life_s) for each in seen])


def _project(name: str) -> str:
    return name.partition("/")[0]


def _view(call: RequestContext, standing: ShareStanding, half_life_s: float) -> ShareView:
    loans: dict[str, float] = {}
    for lender, accelerators in standing.borrowed:
        shown = lender if call.user.sees(_project(lender)) else _OTHERS
        loans[shown] = loans.get(shown, 0.0) + accelerators
    return ShareView(
        name=standing.name,
        weight=standing.share.weight,
        guaranteed=standing.share.guaranteed,
        limits={limit.scope: limit.accelerators for limit in standing.share.limits},
        demand=standing.demand,
        entitled=standing.entitled,
        nominal=standing.nominal,
        held={each.accelerator: each.accelerators for each in standing.held},
        held_units=standing.units,
        used_h=standing.used_s / SECONDS_PER_HOUR,
        used_unit_h=standing.units_s / SECONDS_PER_HOUR,
        used_part=standing.used_part,
        half_life_s=half_life_s,
        borrowed=[ShareLoan(name=name, accelerators=count) for name, count in sorted(loans.items())],
        because=standing.because,
    )


def share_routes() -> list[Route]:
    """Everybody may look at what it is part of."""
    summary = "Shares: entitled, held, used lately, borrowed"
    return [Route("GET", "/api/v1/share", list_shares, summary, response=list[ShareView], query=("project",))]
