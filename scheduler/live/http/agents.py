"""The agents' endpoints."""

from scheduler.live.access.auth import AgentCaller, JoinCaller
from scheduler.live.desks.agents import check_owner
from scheduler.live.http.routing import LARGE_BODY_BYTES, Call
from walras.wire import Heartbeat, HeartbeatAnswer, Register, Registered


async def register(call: Call) -> Registered:
    assert isinstance(call.caller, JoinCaller)
    return await call.server.gateway.register(await call.model(Register), call.caller.rent_token)


async def heartbeat(call: Call) -> HeartbeatAnswer:
    assert isinstance(call.caller, AgentCaller)
    message = await call.model(Heartbeat, LARGE_BODY_BYTES)
    check_owner(call.caller.node_id, message.node_id)
    return await call.server.gateway.heartbeat(message)
