"""The server's side of the agents' protocol: registration, heartbeats, commands, leases, silent machines.

Leases: every answer renews the attempts that the machine is expected to run, for a length that the agent counts from
the moment it *sent* the heartbeat. So no lease ends later than the instant of the answer plus that length, and the
server declares a machine lost only after that instant plus a margin. Lost contact alone does not prove that the machine
is dead: it becomes UNREACHABLE first.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from itertools import islice
from random import Random

from scheduler.core.events import JobHeld, NodeLost, NodeUnreachable, PoolDeclared
from scheduler.core.explain.feasibility import shape_text
from scheduler.live.auth.access_control import JobTokens, token_hash
from scheduler.live.auth.job_privacy import SecretBox
from scheduler.live.loop import billing
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.departures import inherit_drain, note_joining
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.launches import launch_joined
from scheduler.live.loop.live_state import LEASE_MARGIN_S, LiveNode
from scheduler.live.loop.transaction import Transaction, TransactionEffects
from scheduler.live.services.agent_identity import (
    MachineSpeakers,
    check_cluster,
    check_enrolment,
    check_incarnation,
    check_machine_is_free,
    check_name_is_free,
    check_part,
    check_protocol,
    check_speaker,
    is_other_speaker,
    is_same_machine,
    note_speaker,
    pool_of_agent,
    shape_differences,
    with_known_speed,
)
from scheduler.live.services.agent_reports import (
    compare_machine,
    end_attempt,
    end_outlived_notice,
    is_settled,
    meet_machine,
    outlives_notice,
    process_reports,
    settle_machines,
    unexpected_here,
    welcome_back,
)
from scheduler.live.services.machine_facts import dump_tools, has_new_facts, take_facts, tell_joined
from scheduler.live.services.session_broker import SessionBroker
from scheduler.live.services.store_access import StoreProofs
from scheduler.live.services.unconfirmed_starts import (
    drop_command,
    drop_unknown,
    has_unconfirmed,
    is_known_to,
    withdraw_unconfirmed,
)
from scheduler.live.store.store_interface import StoreUnavailable
from scheduler.live.store.table_rows import NodeRow, OutboxRow
from walras.clocks import random_token
from walras.cluster import NodeId
from walras.contract import PROTOCOL
from walras.errors import Conflict, Forbidden, NameHeld, NotFound
from walras.job_request import JobId
from walras.states import Reason
from walras.wire import AgentCommand, AnyCommand, Heartbeat, HeartbeatAnswer, Register, Registered, StartCommand

log = logging.getLogger(__name__)

#: The most commands in one answer, so that it stays small; the rest follows in the next.
_COMMANDS_PER_ANSWER = 200
_RESEND_S = 1.0
_SEALED = "its secrets do not open with this server's secret.key: restore that file and release the job, or submit anew"
#: Pause before each answer, seconds, while the database cannot be written and answers only renew leases.
_STUCK_PACE_S = 1.0


class AgentGateway:
    """Registers agents, takes their heartbeats, hands out commands and leases, and notices silence."""

    def __init__(
        self,
        loop: ServerLoop,
        job_tokens: JobTokens,
        box: SecretBox,
        chance: Random | None = None,
        proofs: StoreProofs | None = None,
    ) -> None:
        """`proofs`: checks whether machines reach the store of checkpoints; None: there is nothing to check."""
        self._loop = loop
        self._box = box
        self.proofs = proofs
        self._chance = chance
        self._life = f"{loop.clock.now():.6f} {random_token(chance)[:8]}"
        self._job_tokens = job_tokens
        self._speakers = MachineSpeakers()
        #: By machine, what wakes its open heartbeat call when there is a command for it.
        self._long_polls: defaultdict[NodeId, asyncio.Event] = defaultdict(asyncio.Event)
        self.sessions = SessionBroker(chance)

    # ---------------------------------------------------------------- registration

    async def register(self, message: Register, only_rent: str | None = None) -> Registered:
        """Admit a machine; with `only_rent`, only one that answers this request for machines.

        Raises Conflict where its name or its pool is known with other facts, Forbidden where it does not belong to that
        request.
        """
        check_protocol(message)
        check_cluster(self._loop.state.identity, message.cluster, message.node_id)
        credential = f"wlr_a_{random_token(self._chance)}"

        def step(transaction: Transaction) -> None:
            if only_rent is not None:
                check_enrolment(transaction, message, only_rent)
            self._register(transaction, message, token_hash(credential))

        await self._loop.perform(step)
        settings = self._loop.settings
        lease_s = settings.lease_s[message.facts.market]
        return Registered(
            credential=credential,
            heartbeat_s=settings.heartbeat_s,
            lease_s=lease_s,
            protocol=PROTOCOL,
            cluster=self._loop.state.identity,
        )

    def _register(self, transaction: Transaction, message: Register, credential: str) -> None:
        state, node_id, pool = transaction.state, NodeId(message.node_id), pool_of_agent(message)
        check_part(message)
        declared = state.pools.get(pool.pool_id)
        pool = with_known_speed(pool, declared)
        if declared is not None and declared.shape != pool.shape:
            raise Conflict(
                f"pool {pool.pool_id} has other machines: {shape_differences(declared.shape, pool.shape)}",
                field="facts",
                fix="start the agent with what they have, or give its shape another name (--shape)",
            )
        if message.rent_token and message.rent_token not in state.rents:
            raise Conflict("nobody asked for this machine, or it has been released", field="rent_token")
        check_machine_is_free(transaction, message, self._loop.settings.unreachable_s)
        known = state.nodes.get(node_id)
        if known is not None and known.is_member:
            if not is_same_machine(known.facts, message.facts):
                raise Conflict(
                    f"{node_id} is known as another machine", field="node_id", fix="choose another name for this one"
                )
            is_same = check_name_is_free(transaction, known, message, self._loop.settings.unreachable_s)
            self._change_credential(transaction, known, credential)
            if not is_same:
                # This is another agent: its reports are numbered anew. It is recorded with its first heartbeat.
                known.row.reports_acked, known.row.agent, known.row.boot_id = 0, message.agent, message.boot_id
            return
        if not is_settled(state):
            raise NameHeld(
                "the cluster was restored: machines are admitted once all that the tables know have said what they run",
                field="node_id",
                fix="the agent tries again by itself",
            )
        if declared is None:
            emit(transaction, PoolDeclared(transaction.at, pool))
        facts = message.facts.model_dump_json()
        row = NodeRow(node_id, pool.pool_id, facts, credential, "up", transaction.at, rent_token=message.rent_token)
        row.agent, row.boot_id, row.version = message.agent, message.boot_id, message.version
        row.incarnation, row.tools = state.identity.incarnation, dump_tools(message.tools)
        node = LiveNode(row, message.facts)
        if known is not None:
            state.credentials.pop(known.row.credential, None)
            inherit_drain(node, known)
        self._join(transaction, node)

    @staticmethod
    def _change_credential(transaction: Transaction, node: LiveNode, credential: str) -> None:
        del transaction.state.credentials[node.row.credential]
        node.row.credential = credential
        transaction.state.credentials[credential] = node.row.node_id
        transaction.node_changed(node)

    def _join(self, transaction: Transaction, node: LiveNode) -> None:
        """Make the machine a member of the fleet, with nothing running."""
        state, row = transaction.state, node.row
        row.state, row.joined_at = "up", transaction.at
        note_joining(node, is_pool_drained=state.pools[row.pool_id].drained)
        node.heard_at = transaction.at
        node.leased_until = transaction.at + transaction.lease_s[node.facts.market]
        state.nodes[row.node_id] = node
        state.credentials[row.credential] = row.node_id
        transaction.node_changed(node)
        log.info(
            "%s has joined %s (%s)", row.node_id, row.pool_id, shape_text(transaction.state.pools[row.pool_id].shape)
        )
        paid_since = billing.paid_since(state, node) if row.rent_token else None
        paid_usd = billing.boot_usd(state, node)
        tell_joined(transaction, node, paid_since, paid_usd)
        launch_joined(transaction, row.rent_token, row.node_id)

    def node_of(self, credential: str) -> NodeId | None:
        """Returns the machine that a credential belongs to; None for an unknown credential."""
        return self._loop.state.credentials.get(token_hash(credential))

    # ---------------------------------------------------------------- heartbeats

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Take what the agent reports; answer at once if there is something new for it, else within `wait_s`.

        Raises OtherCluster, OtherIncarnation, OtherProtocol, NameHeld where the sender must not be heard. While the
        database cannot be written, leases are renewed, and nothing is taken or given.
        """
        try:
            return await self._heartbeat(message)
        except StoreUnavailable:
            # What the machine says only once is not taken: it says it again, as to a server that has just started.
            is_again = message.resync or message.data is not None
            await asyncio.sleep(_STUCK_PACE_S if is_again else min(_STUCK_PACE_S, message.wait_s))
            node = self._node(message.node_id)
            if not node.is_member:
                raise
            node.heard_at = self._loop.clock.now()
            return self._renewed(node, message, "" if is_again else message.life)

    async def _heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        node = self._node(message.node_id)
        identity, now = self._loop.state.identity, self._loop.clock.now()
        check_protocol(message)
        check_cluster(identity, message.cluster, message.node_id)
        check_incarnation(identity, message.cluster, message.node_id)
        check_speaker(node, message, now, self._loop.settings.unreachable_s)
        self._speakers.check(node, message, now, self._loop.settings.unreachable_s)
        if not node.is_member:
            # While the batch that loses it is not written, nothing can be said: once it is, its jobs may run elsewhere.
            await self._loop.settled()
            node = self._node(message.node_id)
        if message.call and message.life != self._life:
            node.calls.meet(message.session)
            return self._renewed(node, message, self._life)
        if node.calls.is_late(message.session, message.call):
            await self._loop.settled()
            return self._answer(self._node(message.node_id), message)
        node.hear(message, now)
        if self.proofs is not None:
            self.proofs.take(node, message.proof)
        if self._has_news(node, message):
            await self._loop.perform(lambda transaction: self._take(transaction, message))
            node = self._node(message.node_id)
        long_poll = self._long_polls[node.row.node_id]
        await self._loop.settled()
        if not self._must_answer(node, message) and message.wait_s > 0:
            long_poll.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(long_poll.wait(), message.wait_s)
            await self._loop.settled()
            node = self._node(message.node_id)
        return self._answer(node, message)

    def _node(self, node_id: str) -> LiveNode:
        node = self._loop.state.nodes.get(NodeId(node_id))
        if node is None:
            raise NotFound(f"no machine {node_id}", fix="register first")
        return node

    def _has_news(self, node: LiveNode, message: Heartbeat) -> bool:
        """Returns whether the heartbeat must be written; plain renewals, which are most heartbeats, must not."""
        return (
            message.resync
            or node.must_meet
            or has_new_facts(node, message)
            or is_other_speaker(node, message, self._loop.state.identity.incarnation)
            or node.row.state != "up"
            or any(command_id in node.outbox for command_id in message.acks)
            or not all(self._can_be_sent(command, message.protocol) for command in node.outbox.values())
            or any(report.report_id > node.row.reports_acked for report in message.reports)
        )

    def _take(self, transaction: Transaction, message: Heartbeat) -> None:
        node = self._node(message.node_id)
        state, unreachable_s = transaction.state, self._loop.settings.unreachable_s
        note_speaker(transaction, node, message)
        take_facts(transaction, node, message)
        if node.row.state == "lost" and not message.here and not node.row.rent_token and is_settled(state):
            # A lost machine without its old ranks is like a new one, and its old reports are outdated.
            self._join(transaction, node)
        elif node.row.state == "unreachable" and is_settled(state):
            welcome_back(transaction, node)
        done = [command_id for command_id in message.acks if node.outbox.pop(command_id, None) is not None]
        transaction.batch.delete(OutboxRow, *done)
        drop_unknown(transaction, node, message.protocol)
        self._hold_sealed(transaction, node)
        process_reports(transaction, node, message.reports)
        if message.resync or node.must_meet:
            compare_machine(transaction, node, message)
        if node.must_meet:
            meet_machine(transaction, node, message, self._loop.settings.after_restore)
            settle_machines(transaction, unreachable_s)

    def _must_answer(self, node: LiveNode, message: Heartbeat) -> bool:
        """Returns whether there is a command that the agent has not been sent, or an attempt that it must stop."""
        newest = next(reversed(node.outbox), 0)
        # Sent but not confirmed by the next call, so the answer was lost. Waits a little, lest calls and answers loop.
        unheard = bool(node.outbox) and self._loop.clock.now() - node.sent_at > _RESEND_S
        is_fenced = bool(unexpected_here(self._loop.state, node, message))
        return (
            newest > node.sent_id
            or unheard
            or is_fenced
            or bool(message.reports)
            or self.sessions.is_asked(node.row.node_id)
        )

    def _answer(self, node: LiveNode, message: Heartbeat) -> HeartbeatAnswer:
        now, lease_s = self._loop.clock.now(), self._lease(node)
        fenced = unexpected_here(self._loop.state, node, message)
        self._loop.state.counters.fenced += len(fenced)
        if node.is_member:
            node.heard_at = now
        to_send = (command for command in node.outbox.values() if self._can_be_sent(command, message.protocol))
        commands = list(islice(to_send, _COMMANDS_PER_ANSWER))
        if commands:
            node.sent_id, node.sent_at = commands[-1].command_id, now
        return HeartbeatAnswer(
            commands=[self._with_token(command) for command in commands],
            reports_acked=node.row.reports_acked,
            lease_s=lease_s,
            fenced=fenced,
            protocol=PROTOCOL,
            cluster=self._loop.state.identity,
            life=self._life,
            sessions=self.sessions.take(node.row.node_id),
            open_sessions=self.sessions.open_on(node.row.node_id),
            challenge=None if self.proofs is None else self.proofs.challenge_for(node),
        )

    def _renewed(self, node: LiveNode, message: Heartbeat, life: str) -> HeartbeatAnswer:
        """Renew the leases of the machine, or stop what runs there if it is lost; nothing is taken or given.

        This is the answer also to an agent that has not heard of this start of the server: its call may be a delayed
        one, and what it reports outdated.
        """
        lease_s = self._lease(node)
        fenced = [] if node.is_member else message.here
        identity = self._loop.state.identity
        return HeartbeatAnswer(
            commands=[], reports_acked=0, lease_s=lease_s, fenced=fenced, protocol=PROTOCOL, cluster=identity, life=life
        )

    def _lease(self, node: LiveNode) -> float:
        """Returns the length of the lease that an answer grants, seconds; only a member of the fleet has one."""
        lease_s = self._loop.settings.lease_s[node.facts.market]
        if node.is_member:
            node.leased_until = self._loop.clock.now() + lease_s
        return lease_s

    def wake(self, node_id: NodeId) -> None:
        """Have the machine's open heartbeat call answered."""
        self._long_polls[node_id].set()

    def _can_be_sent(self, command: AgentCommand, protocol: int) -> bool:
        return is_known_to(command, protocol) and self._secrets_for(command) is not None

    def _secrets_for(self, command: AgentCommand) -> dict[str, str] | None:
        """Returns the secrets that go with a start; None where they do not open: it must not start without them."""
        sealed = self._loop.state.secrets.get(JobId(command.job_id)) if isinstance(command, StartCommand) else None
        return {} if sealed is None else self._box.open(command.job_id, sealed)

    def _hold_sealed(self, transaction: Transaction, node: LiveNode) -> None:
        """Hold jobs whose secrets do not open, in the place of the starts that were granted to them."""
        for command in [each for each in node.outbox.values() if self._secrets_for(each) is None]:
            emit(transaction, JobHeld(transaction.at, JobId(command.job_id), Reason.HOLD_ADMIN))
            drop_command(transaction, node, command, _SEALED)
            if (job := transaction.state.jobs.get(JobId(command.job_id))) is not None:
                job.row.detail = _SEALED
                transaction.job_changed(job)

    def _with_token(self, command: AgentCommand) -> AnyCommand:
        """Returns the command as it goes to the agent, with what is stored nowhere here: job token and secrets."""
        if isinstance(command, StartCommand):
            token = self._job_tokens.issue(JobId(command.job_id), command.attempt)
            secret = self._secrets_for(command) or {}
            return command.model_copy(update={"job_token": token, "env": {**command.env, **secret}})
        return command  # type: ignore[return-value]

    def deliver(self, effects: TransactionEffects) -> None:
        """Queue the commands of a transaction, and wake the heartbeat calls that wait for them."""
        unheard: list[int] = []
        for node_id, command in effects.posts:
            node = self._loop.state.nodes.get(node_id)
            if node is not None and node.is_member:
                node.outbox[command.command_id] = command
            else:  # it was lost meanwhile: nobody is left there to carry it out
                unheard.append(command.command_id)
        if unheard:
            self._loop.perform_soon(lambda transaction: transaction.batch.delete(OutboxRow, *unheard))
        for node_id in {*effects.woken, *(node_id for node_id, _ in effects.posts)}:
            self.wake(node_id)

    # ---------------------------------------------------------------- silence

    async def watch(self) -> None:
        """Look for machines that have fallen silent, for ever."""
        pace_s = max(0.2, min(1.0, self._loop.settings.unreachable_s / 4))
        while True:
            await asyncio.sleep(pace_s)
            if any(map(self._needs_a_look, self._loop.state.nodes.values())):
                await self._loop.perform(self.notice_silence)

    def _needs_a_look(self, node: LiveNode) -> bool:
        return self._overdue(node) or self._is_waited_for(node) or outlives_notice(node)

    def _is_waited_for(self, node: LiveNode) -> bool:
        """Returns whether a start there was not confirmed for as long as its lease."""
        lease_s = self._loop.settings.lease_s[node.facts.market]
        return has_unconfirmed(self._loop.state, node, self._loop.clock.now(), lease_s)

    def _overdue(self, node: LiveNode) -> bool:
        now, settings = self._loop.clock.now(), self._loop.settings
        silent = node.row.state == "up" and now - node.heard_at > settings.unreachable_s
        return silent or (node.row.state == "unreachable" and now > node.leased_until + LEASE_MARGIN_S)

    def notice_silence(self, transaction: Transaction) -> None:
        """Mark silent machines as unreachable, and as lost once every lease there has run out; those that outlived the
        notice of their end take jobs again.
        """
        for node in list(transaction.state.nodes.values()):
            if outlives_notice(node):
                end_outlived_notice(transaction, node)
            if self._is_waited_for(node):
                withdraw_unconfirmed(transaction, node, self._loop.settings.lease_s[node.facts.market])
            if not self._overdue(node):
                continue
            if node.row.state == "up":
                node.row.state = "unreachable"
                transaction.node_changed(node)
                silent_s = transaction.at - node.heard_at
                log.warning("%s is unreachable: no word for %.0f s", node.row.node_id, silent_s)
                emit(transaction, NodeUnreachable(transaction.at, node.row.node_id))
            else:
                was_awaited = node.must_meet
                declare_node_lost(transaction, node.row.node_id, Reason.INFRA_NODE_LOST)
                if was_awaited:
                    settle_machines(transaction, self._loop.settings.unreachable_s)


def declare_node_lost(transaction: Transaction, node_id: NodeId, reason: Reason) -> None:
    """Record that nothing is alive on a machine, whose leases have run out or which is proved dead."""
    node = transaction.state.nodes.get(node_id)
    if node is None or not node.is_member:
        return
    held = sorted(node.expected)
    log.warning("%s is gone (%s); jobs there: %s", node_id, reason, ", ".join(str(job) for job, _ in held) or "none")
    emit(transaction, NodeLost(transaction.at, node_id, reason))
    for job_id, number in held:
        # If the gang's other parts had ended before, the attempt ends with this machine.
        attempt = transaction.state.attempt(job_id, number)
        if attempt is not None and attempt.is_over:
            end_attempt(transaction, transaction.state.jobs[job_id], attempt)
    if node.row.rent_token:
        _end_rent(transaction, node)


def _end_rent(transaction: Transaction, node: LiveNode) -> None:
    """End the rental: a rented machine never returns under its name, and a request without machines left is over."""
    node.row.state = "released"
    transaction.node_changed(node)
    rent = transaction.state.rents.get(node.row.rent_token)
    if rent is None:
        return
    rent.machines -= 1
    if rent.machines <= 0:
        rent.state = "ended"
        transaction.state.end_rent(rent)
    transaction.rent_changed(rent)


def check_node_owner(node_id: NodeId, claimed: str) -> None:
    """Raise Forbidden where an agent sends messages for a machine that is not its own."""
    if claimed != node_id:
        raise Forbidden(f"this credential belongs to {node_id}, not to {claimed}", field="node_id")
