"""Bugs to plant: each replaces one piece of text that stands exactly once in one file of the product.

Add one as an entry of `BUGS`: a name, the file, the old text, the new one. `test_mutations.py` holds that each still
fits; `python -m tests.mutations --only NAME` shows what finds it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PlantedBug:
    """One mistake that somebody might make."""

    name: str
    path: str
    old: str
    new: str

    @property
    def about_rented(self) -> bool:
        """Only runs that rent machines can find it."""
        return self.path in (_RENTING, _LAUNCHES) or self.name in _RENTED_BILLS

    def planted(self, text: str) -> str:
        """Returns the file with the mistake in it."""
        return text.replace(self.old, self.new, 1)


_LOOP = "scheduler/live/loop/event_loop.py"
_APPLY = "scheduler/live/loop/apply_commands.py"
_DEPARTURES = "scheduler/live/loop/departures.py"
_TO_AGENTS = "scheduler/live/loop/agent_commands.py"
_STATE = "scheduler/live/loop/live_state.py"
_RENTING = "scheduler/live/providers/provisioning.py"
_BILLING = "scheduler/live/loop/billing.py"
_LAUNCHES = "scheduler/live/loop/launches.py"
_TRANSACTION = "scheduler/live/loop/transaction.py"
_GATEWAY = "scheduler/live/services/agent_gateway.py"
_COMPARISON = "scheduler/live/services/agent_comparison.py"
_IDENTITY = "scheduler/live/services/agent_identity.py"
_REPORTS = "scheduler/live/services/agent_reports.py"
_STORE = "scheduler/live/store/sqlite_store.py"
_FOLDER = "scheduler/live/store/data_folder.py"
_RESTORE = "scheduler/live/assembly.py"
_SUBMISSION = "scheduler/live/http/submission_api.py"
_ENDS = "scheduler/core/handlers/attempt_events.py"
_AGENT = "workers/agent/agent.py"
_FOLLOWER = "workers/agent/follower.py"
_REPORT_STORE = "workers/agent/report_store.py"
_CLIENT = "workers/agent/server_client.py"
_SUPERVISOR = "workers/supervisor.py"
_RENTED_BILLS = ("last_stretch_of_a_machine_is_free", "machine_that_never_joined_is_free")

BUGS: tuple[PlantedBug, ...] = (
    # -------------------------------------------------------------------------------- durability
    PlantedBug(
        "answer_before_commit",
        _LOOP,
        "            frozen = transaction.freeze()\n",
        "            frozen = transaction.freeze()\n"
        "            for early, value in answers:\n"
        "                early.done() or early.set_result(value)\n",
    ),
    PlantedBug(
        "commit_not_awaited",
        _LOOP,
        "                await asyncio.shield(asyncio.ensure_future(self._commit(frozen)))\n",
        "                asyncio.ensure_future(self._commit(frozen))\n",
    ),
    PlantedBug(
        "commit_given_up_on_full_disk",
        _LOOP,
        "                continue\n            if self._stuck is not None:\n",
        "                return\n            if self._stuck is not None:\n",
    ),
    PlantedBug(
        "outbox_not_written",
        _TRANSACTION,
        "            self.batch.outbox.append(OutboxRow(command.command_id, node_id, command.model_dump_json()))\n",
        "            pass\n",
    ),
    PlantedBug(
        "checkpoint_not_written",
        "scheduler/live/services/checkpoint_records.py",
        "    transaction.batch.checkpoints.append(row)\n",
        "",
    ),
    PlantedBug(
        "commands_left_out_of_journal",
        _TRANSACTION,
        "            journal.extend(encode_command(event.at, command) for command in commands)\n",
        "            journal.extend(encode_command(event.at, command) for command in commands[1:])\n",
    ),
    PlantedBug(
        "idempotency_key_forgotten",
        _SUBMISSION,
        "        if key:\n"
        "            remember_answer(transaction, call.user.name, key, digest, answer)\n"
        "        return 201, answer\n",
        "        return 201, answer\n",
    ),
    PlantedBug(
        "another_port_after_restart",
        "scheduler/live/main.py",
        "port=listen.port or config.folder.kept_port())",
        "port=listen.port)",
    ),
    # -------------------------------------------------------------------------------- leases and fences
    PlantedBug(
        "fence_not_checked",
        _STATE,
        "if job is None or job.attempt is None or job.attempt.row.attempt != attempt:",
        "if job is None or job.attempt is None:",
    ),
    PlantedBug(
        "lost_before_leases_end",
        _GATEWAY,
        "now > node.leased_until + settings.lease_margin_s)",
        "now > node.heard_at + settings.unreachable_s + 1.0)",
    ),
    PlantedBug(
        "renewal_forgotten_by_server",
        _GATEWAY,
        "        if node.is_member:\n            node.leased_until = self._loop.clock.now() + lease_s\n",
        "",
    ),
    PlantedBug(
        "no_lease_after_restart",
        _STATE,
        "until = now + lease_s[facts.market]",
        "until = now",
    ),
    PlantedBug(
        "lease_renewed_for_too_long",
        _AGENT,
        "follower.renew(until, answer.lease_s)",
        "follower.renew(until + 2 * answer.lease_s, answer.lease_s)",
    ),
    PlantedBug(
        "renewals_not_passed_on",
        _AGENT,
        "follower.renew(until, answer.lease_s)",
        "follower.key",
    ),
    PlantedBug(
        "supervisor_ignores_lease",
        _SUPERVISOR,
        "        if self._has_expired:\n            return\n        if now >= self._lease_until:",
        "        if True:\n            return\n        if now >= self._lease_until:",
    ),
    PlantedBug(
        "expected_forgotten_at_restart",
        _STATE,
        "                state.nodes[part.node_id].expected.add((row.job_id, row.attempt))\n",
        "                pass\n",
    ),
    PlantedBug(
        "vanished_not_noticed",
        _COMPARISON,
        "        elif part.ordered:\n",
        "        elif False:\n",
    ),
    PlantedBug(
        "coming_start_taken_for_vanished",
        _COMPARISON,
        "for command in (*node.outbox.values(), *posted)",
        "for command in ()",
    ),
    PlantedBug(
        "late_call_believed",
        _GATEWAY,
        "if node.calls.is_late(message.session, message.call):",
        "if False:",
    ),
    PlantedBug(
        "posts_of_this_step_forgotten",
        _COMPARISON,
        "(*node.outbox.values(), *posted)",
        "(*node.outbox.values(),)",
    ),
    PlantedBug(
        "lost_state_taken_for_same_agent",
        _IDENTITY,
        "    is_same_agent = bool(message.agent) and message.agent == row.agent\n",
        "    is_same_agent = True\n",
    ),
    PlantedBug(
        "name_given_away_while_ranks_live",
        _IDENTITY,
        "    if is_silent and not node.expected and not node.outbox and not node.alive:\n",
        "    if True:\n",
    ),
    PlantedBug(
        "unreachable_machine_never_back",
        _COMPARISON,
        "    emit(transaction, NodeBack(transaction.at, node.row.node_id))\n",
        "",
    ),
    PlantedBug(
        "drain_forgotten_when_machine_is_back",
        _DEPARTURES,
        "    if drained_by is DrainedBy.ADMIN:\n        drain_lost(node, words)\n    elif",
        "    if",
    ),
    PlantedBug(
        "drain_forgotten_with_state_of_agent",
        _GATEWAY,
        "            inherit_drain(node, known)\n",
        "",
    ),
    PlantedBug(
        "drained_machine_joins_as_any",
        "scheduler/live/services/machine_facts.py",
        "    drained = is_drained_by_admin(node)\n",
        "    drained = False\n",
    ),
    # -------------------------------------------------------------------------------- restoring
    PlantedBug(
        "waiting_jobs_restored_first",
        _RESTORE,
        "key=lambda job: (job.attempt is None, job.row.job_id)",
        "key=lambda job: (job.attempt is not None, job.row.job_id)",
    ),
    PlantedBug(
        "running_attempt_not_restored",
        _RESTORE,
        "placement=None if attempt is None else attempt.placement",
        "placement=None",
    ),
    PlantedBug(
        "drain_taken_for_hold",
        _RESTORE,
        "        hold_reason=job.held_by,\n",
        '        hold_reason=revoked if revoked is not None and revoked.startswith("HOLD:") else job.held_by,\n',
    ),
    PlantedBug(
        "hold_forgotten_at_restart",
        _TO_AGENTS,
        "attempt.row.held_by = None if job is None else job.hold_reason",
        "attempt.row.held_by = None",
    ),
    PlantedBug(
        "attempt_number_not_kept",
        _APPLY,
        "    job.row.attempts = number\n",
        "",
    ),
    PlantedBug(
        "job_numbers_given_out_twice",
        _STATE,
        "state = LiveState(next_job_id=loaded.last_job_id + 1",
        "state = LiveState(next_job_id=max(1, loaded.last_job_id)",
    ),
    PlantedBug(
        "clock_follows_wall",
        _LOOP,
        "if absent_until is None else max(last_at, absent_until)",
        "if absent_until is None else clocks.wall() - epoch_unix_s",
    ),
    # -------------------------------------------------------------------------------- reports and commands
    PlantedBug(
        "resume_forgotten",
        _TO_AGENTS,
        "resume=None if checkpoint is None else _manifest(checkpoint)",
        "resume=None",
    ),
    PlantedBug(
        "stops_not_sent",
        _TO_AGENTS,
        "        if not part.ended:\n            post_stop(transaction, part, command.grace_s, command.reason.value)\n",
        "        pass\n",
    ),
    PlantedBug(
        "exit_code_lost",
        _FOLLOWER,
        "told = {name: ended[name] for name in _TOLD_OF_AN_END if name in ended}",
        'told = {name: ended[name] for name in _TOLD_OF_AN_END if name in ended} | {"exit_code": 0}',
    ),
    PlantedBug(
        "reports_dropped_when_sent",
        _AGENT,
        "        answer = await self._call(message)\n        if answer is None:\n",
        "        _ = reports and self._outbox.acknowledge(reports[-1].report_id)\n"
        "        answer = await self._call(message)\n"
        "        if answer is None:\n",
    ),
    # Not reserving ids breaks no promise by itself: the boot clock keeps them apart, and what the server has seen is
    # renumbered. This takes the last of the three guards away.
    PlantedBug(
        "ids_that_were_seen_used_again",
        "workers/agent/report_outbox.py",
        "        return acknowledged > self._store.highest_report_id\n",
        "        return False\n",
    ),
    PlantedBug(
        "acknowledges_one_too_many",
        _REPORT_STORE,
        '"DELETE FROM reports WHERE report_id <= ?"',
        '"DELETE FROM reports WHERE report_id <= 1 + ?"',
    ),
    PlantedBug(
        "start_not_written_first",
        _AGENT,
        "        self._store.move_attempt(key[0], key[1], AttemptPhase.STARTING, [], key[2])\n",
        "",
    ),
    PlantedBug(
        "start_obeyed_twice",
        _AGENT,
        "    async def _start(self, key: AttemptKey, command: StartCommand, sent_at: float) -> "
        "None:\n"
        "        if self._store.attempt(*key) is not None:\n"
        "            return\n",
        "    async def _start(self, key: AttemptKey, command: StartCommand, sent_at: float) -> None:\n",
    ),
    PlantedBug(
        "attempts_not_recovered",
        _AGENT,
        "                self._recover_attempts()\n",
        "",
    ),
    PlantedBug(
        "devices_not_released",
        _AGENT,
        "        self._sessions.end(key)\n        self._holds.release(key)\n",
        "        self._sessions.end(key)\n",
    ),
    PlantedBug(
        "refusal_not_reported",
        _AGENT,
        "        self._move(key, AttemptPhase.OVER, refused)\n",
        "        self._store.move_attempt(key[0], key[1], AttemptPhase.OVER, [], key[2])\n",
    ),
    PlantedBug(
        "first_failure_ends_agent",
        _AGENT,
        "            except ServerUnreachable as error:\n"
        "                failures += 1\n"
        '                log.warning("heartbeat',
        "            except ZeroDivisionError as error:\n"
        "                failures += 1\n"
        '                log.warning("heartbeat',
    ),
    PlantedBug(
        "lost_log_offset",
        _CLIENT,
        "            file.offset = wanted\n",
        "            file.offset = wanted + 1\n",
    ),
    PlantedBug(
        "log_written_twice",
        _FOLDER,
        "data[size - offset :]",
        "data[0:]",
    ),
    # -------------------------------------------------------------------------------- ends and money
    PlantedBug(
        "failure_taken_for_success",
        _ENDS,
        "    is_clean = event.cause is EndCause.EXITED and event.exit_code == 0 and event.signal is None\n",
        "    is_clean = event.cause is EndCause.EXITED and event.signal is None\n",
    ),
    PlantedBug(
        "lost_machine_uses_up_retries",
        _ENDS,
        "    elif event.cause is not EndCause.EXITED:\n",
        "    elif event.cause is EndCause.LEASE_EXPIRED:\n",
    ),
    PlantedBug(
        "charged_twice",
        _BILLING,
        "    attempt.row.usd_since_at = max(attempt.row.usd_since_at, transaction.at)\n",
        "",
    ),
    PlantedBug(
        "last_stretch_not_charged",
        _BILLING,
        "    assert job.attempt is not None\n"
        "    _charge_attempt(transaction, job)\n"
        "    job.attempt.row.usd_per_h = 0.0\n",
        "    assert job.attempt is not None\n    job.attempt.row.usd_per_h = 0.0\n",
    ),
    PlantedBug(
        "machine_of_no_request_is_kept",
        _RENTING,
        '            if rent is None:\n                why = "it answers no request that is open"\n',
        "            if rent is None:\n                continue\n",
    ),
    PlantedBug(
        "machine_that_never_boots_is_kept",
        _RENTING,
        "        if missing <= 0 or not self._is_late(rent):\n            return\n",
        "        if True:\n            return\n",
    ),
    PlantedBug(
        "taken_machine_is_never_missed",
        _RENTING,
        '                await self._gone(node_id, Reason.INFRA_NODE_LOST, launched.get(node_id, ""))\n',
        "",
    ),
    PlantedBug(
        "last_stretch_of_a_machine_is_free",
        _BILLING,
        "    _charge_machine(transaction, node, billed_until(pool, paid_since(transaction.state, node), "
        "transaction.at))\n",
        "    del pool\n",
    ),
    PlantedBug(
        "machine_that_never_joined_is_free",
        _BILLING,
        "    for charge in _priced_by_month(transaction.state, template, pool):\n"
        "        _append_charge(transaction, charge)\n",
        "    del template\n",
    ),
    PlantedBug(
        "launch_not_written_down",
        _LAUNCHES,
        "        _write(transaction, rent, json.loads(rent.launched) | {str(machine.node_id): False})\n",
        "        pass\n",
    ),
    PlantedBug(
        "taken_launch_is_never_missed",
        _RENTING,
        "(believed | set(launched))",
        "believed",
    ),
    PlantedBug(
        "launch_paid_for_twice",
        _LAUNCHES,
        "        _write(transaction, rent, json.loads(rent.launched) | {str(machine.node_id): True})\n",
        "        pass\n",
    ),
)
