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
_TO_AGENTS = "scheduler/live/loop/apply_commands.py"
_STATE = "scheduler/live/loop/live_state.py"
_RENTING = "scheduler/live/providers/provisioning.py"
_BILLING = "scheduler/live/loop/billing.py"
_LAUNCHES = "scheduler/live/loop/launches.py"
_TRANSACTION = "scheduler/live/loop/transaction.py"
_GATEWAY = "scheduler/live/services/agent_gateway.py"
_COMPARISON = "scheduler/live/services/agent_reports.py"
_IDENTITY = "scheduler/live/services/agent_identity.py"
_REPORTS = "scheduler/live/services/agent_reports.py"
_STORE = "scheduler/live/store/sqlite_store.py"
_FOLDER = "scheduler/live/store/data_folder.py"
_RESTORE = "scheduler/live/assembly.py"
_RETENTION = "scheduler/live/store/retention.py"
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
        "answer_before_commit", _LOOP, "            frozen = transaction.freeze()\n",
        "            frozen = transaction.freeze()\n            for early, value in answers:\n"
        "                early.done() or early.set_result(value)\n",
    ),
    PlantedBug(
        "commit_not_awaited", _LOOP,
        "                await asyncio.shield(asyncio.ensure_future(self._commit(frozen)))\n",
        "                asyncio.ensure_future(self._commit(frozen))\n",
    ),
    PlantedBug(
        "commit_given_up_on_full_disk", _LOOP, "                continue\n            if self._stuck is not None:\n",
        "                return\n            if self._stuck is not None:\n",
    ),
    PlantedBug(
        "outbox_not_written", _TRANSACTION,
        "            self.batch.put(OutboxRow(command.command_id, node_id, command.model_dump_json()))\n",
        "            pass\n",
    ),
    PlantedBug(
        "checkpoint_not_written", "scheduler/live/services/checkpoint_records.py", "    transaction.batch.put(row)\n",
        "",
    ),
    PlantedBug(
        "commands_left_out_of_journal", _TRANSACTION,
        "            journal.extend(encode_command(event.at, command) for command in commands)\n",
        "            journal.extend(encode_command(event.at, command) for command in commands[1:])\n",
    ),
    PlantedBug(
        "idempotency_key_forgotten", _SUBMISSION,
        "        if self.key:\n"
        "            remember_answer(transaction, self.call.user.name, self.key, self.digest, answer)\n", "",
    ),
    PlantedBug(
        "another_port_after_restart", "scheduler/live/main.py", "port=listen.port or config.folder.kept_port())",
        "port=listen.port)",
    ),
    PlantedBug(
        "older_checkpoint_replaces_newer", "scheduler/live/services/checkpoint_records.py",
        "if (known is not None and manifest.step < known.step) or not is_inside(job, report):",
        "if not is_inside(job, report):",
    ),
    PlantedBug(
        "retention_deletes_logs_of_active_jobs", "scheduler/live/store/retention.py",
        "    return row is None or (row[0] is not None and row[0] < before_at)\n",
        "    return row is None or row[0] is None or row[0] < before_at\n",
    ),
    PlantedBug(
        "reports_of_an_ended_part_taken", _REPORTS, "    if attempt is None or part is None or part.ended:\n",
        "    if attempt is None or part is None:\n",
    ),
    PlantedBug(
        "other_parts_of_a_closed_attempt_not_stopped", _APPLY,
        "        if not part.ended:\n            post_stop(transaction, part, command.grace_s",
        "        if part.started and not part.ended:\n            post_stop(transaction, part, command.grace_s",
    ),
    # -------------------------------------------------------------------------------- leases and fences
    PlantedBug(
        "fence_not_checked", _STATE, "if job is None or job.attempt is None or job.attempt.row.attempt != attempt:",
        "if job is None or job.attempt is None:",
    ),
    PlantedBug(
        "lost_before_leases_end", _GATEWAY, "now > node.leased_until + LEASE_MARGIN_S)",
        "now > node.heard_at + settings.unreachable_s + 1.0)",
    ),
    PlantedBug(
        "renewal_forgotten_by_server", _GATEWAY,
        "        if node.is_member:\n            node.leased_until = self._loop.clock.now() + lease_s\n", "",
    ),
    PlantedBug("no_lease_after_restart", _STATE, "until = now + lease_s[facts.market]", "until = now"),
    PlantedBug(
        "lease_renewed_for_too_long", _AGENT, "follower.renew(until, answer.lease_s)",
        "follower.renew(until + 2 * answer.lease_s, answer.lease_s)",
    ),
    PlantedBug("renewals_not_passed_on", _AGENT, "follower.renew(until, answer.lease_s)", "follower.key"),
    PlantedBug(
        "supervisor_ignores_lease", _SUPERVISOR,
        "        if self._has_expired:\n            return\n        if now >= self._lease_until:",
        "        if True:\n            return\n        if now >= self._lease_until:",
    ),
    PlantedBug(
        "expected_forgotten_at_restart", _STATE,
        "                state.nodes[part.node_id].expected.add((row.job_id, row.attempt))\n", "                pass\n",
    ),
    PlantedBug("vanished_not_noticed", _COMPARISON, "        elif part.ordered:\n", "        elif False:\n"),
    PlantedBug(
        "coming_start_taken_for_vanished", _COMPARISON, "for command in (*node.outbox.values(), *posted)",
        "for command in ()",
    ),
    PlantedBug("late_call_believed", _GATEWAY, "if node.calls.is_late(message.session, message.call):", "if False:"),
    PlantedBug(
        "posts_of_this_step_forgotten", _COMPARISON, "(*node.outbox.values(), *posted)", "(*node.outbox.values(),)",
    ),
    PlantedBug(
        "lost_state_taken_for_same_agent", _IDENTITY,
        "    is_same_agent = bool(message.agent) and message.agent == row.agent\n", "    is_same_agent = True\n",
    ),
    PlantedBug(
        "name_given_away_while_ranks_live", _IDENTITY,
        "    if is_silent and not node.expected and not node.outbox and not node.alive:\n", "    if True:\n",
    ),
    PlantedBug(
        "unreachable_machine_never_back", _COMPARISON,
        "    emit(transaction, NodeBack(transaction.at, node.row.node_id))\n", "",
    ),
    PlantedBug(
        "drain_forgotten_when_machine_is_back", _DEPARTURES,
        "    if drained_by is DrainedBy.ADMIN:\n        drain_lost(node, words)\n    elif", "    if",
    ),
    PlantedBug("drain_forgotten_with_state_of_agent", _GATEWAY, "            inherit_drain(node, known)\n", ""),
    PlantedBug(
        "drained_machine_joins_as_any", "scheduler/live/services/machine_facts.py",
        "    drained = is_drained_by_admin(node)\n", "    drained = False\n",
    ),
    # -------------------------------------------------------------------------------- restoring
    PlantedBug(
        "waiting_jobs_restored_first", _RESTORE, "key=lambda job: (job.attempt is None, job.row.job_id)",
        "key=lambda job: (job.attempt is not None, job.row.job_id)",
    ),
    PlantedBug(
        "running_attempt_not_restored", _RESTORE, "placement=None if attempt is None else attempt.placement",
        "placement=None",
    ),
    PlantedBug(
        "drain_taken_for_hold", _RESTORE, "        hold_reason=job.held_by,\n",
        '        hold_reason=revoked if revoked is not None and revoked.startswith("HOLD:") else job.held_by,\n',
    ),
    PlantedBug(
        "hold_forgotten_at_restart", _TO_AGENTS, "attempt.row.held_by = None if job is None else job.hold_reason",
        "attempt.row.held_by = None",
    ),
    PlantedBug("attempt_number_not_kept", _APPLY, "    job.row.attempts = number\n", ""),
    PlantedBug(
        "job_numbers_given_out_twice", _STATE, "state = LiveState(next_job_id=loaded.last_job_id + 1",
        "state = LiveState(next_job_id=max(1, loaded.last_job_id)",
    ),
    PlantedBug(
        "clock_follows_wall", _LOOP, "if absent_until is None else max(last_at, absent_until)",
        "if absent_until is None else clocks.wall() - epoch_unix_s",
    ),
    # -------------------------------------------------------------------------------- reports and commands
    PlantedBug(
        "resume_forgotten", _TO_AGENTS, "resume=None if checkpoint is None else _manifest(checkpoint)", "resume=None",
    ),
    PlantedBug(
        "stops_not_sent", _TO_AGENTS,
        "        if not part.ended:\n"
        "            post_stop(transaction, part, command.grace_s, command.reason.value)\n", "        pass\n",
    ),
    PlantedBug(
        "exit_code_lost", _FOLLOWER, "told = {name: ended[name] for name in _TOLD_OF_AN_END if name in ended}",
        'told = {name: ended[name] for name in _TOLD_OF_AN_END if name in ended} | {"exit_code": 0}',
    ),
    PlantedBug(
        "reports_dropped_when_sent", _AGENT, "        answer = await self._call(message)\n        if answer is None:\n",
        "        _ = reports and self._outbox.acknowledge(reports[-1].report_id)\n"
        "        answer = await self._call(message)\n        if answer is None:\n",
    ),
    # Not reserving ids breaks no promise by itself: the boot clock keeps them apart, and what the server has seen is
    # renumbered. This takes the last of the three guards away.
    PlantedBug(
        "ids_that_were_seen_used_again", "workers/agent/report_store.py",
        "        return acknowledged > self._store.highest_report_id\n", "        return False\n",
    ),
    PlantedBug(
        "acknowledges_one_too_many", _REPORT_STORE, '"DELETE FROM reports WHERE report_id <= ?"',
        '"DELETE FROM reports WHERE report_id <= 1 + ?"',
    ),
    PlantedBug(
        "start_not_written_first", _AGENT,
        "        self._store.move_attempt(key, AttemptPhase.STARTING)\n", "",
    ),
    PlantedBug(
        "start_obeyed_twice", _AGENT,
        "    def _start(self, key: AttemptKey, command: StartCommand, sent_at: float) -> None:\n"
        "        if self._store.attempt(key) is not None:\n            return\n",
        "    def _start(self, key: AttemptKey, command: StartCommand, sent_at: float) -> None:\n",
    ),
    PlantedBug("attempts_not_recovered", _AGENT, "                self._recover_attempts()\n", ""),
    PlantedBug(
        "devices_not_released", _AGENT, "        self._sessions.end(key)\n        self._holds.release(key)\n",
        "        self._sessions.end(key)\n",
    ),
    PlantedBug(
        "refusal_not_reported", _AGENT, "        self._outbox.move(key, AttemptPhase.OVER, refused)\n",
        "        self._store.move_attempt(key, AttemptPhase.OVER)\n",
    ),
    PlantedBug(
        "first_failure_ends_agent", _AGENT,
        "            except ServerUnreachable as error:\n                failures += 1\n"
        '                log.warning("heartbeat',
        "            except ZeroDivisionError as error:\n                failures += 1\n"
        '                log.warning("heartbeat',
    ),
    PlantedBug(
        "lost_log_offset", _CLIENT, "            file.offset = wanted\n", "            file.offset = wanted + 1\n",
    ),
    PlantedBug("log_written_twice", _FOLDER, "data[size - offset :]", "data[0:]"),
    # -------------------------------------------------------------------------------- ends and money
    PlantedBug(
        "failure_taken_for_success", _ENDS,
        "    is_clean = event.cause is EndCause.EXITED and event.exit_code == 0 and event.signal is None\n",
        "    is_clean = event.cause is EndCause.EXITED and event.signal is None\n",
    ),
    PlantedBug(
        "lost_machine_uses_up_retries", _ENDS, "    elif event.cause is not EndCause.EXITED:\n",
        "    elif event.cause is EndCause.LEASE_EXPIRED:\n",
    ),
    PlantedBug(
        "charged_twice", _BILLING, "    attempt.row.usd_since_at = max(attempt.row.usd_since_at, transaction.at)\n", "",
    ),
    PlantedBug(
        "last_stretch_not_charged", _BILLING,
        "    assert job.attempt is not None\n    _charge_attempt(transaction, job)\n"
        "    job.attempt.row.usd_per_h = 0.0\n",
        "    assert job.attempt is not None\n    job.attempt.row.usd_per_h = 0.0\n",
    ),
    PlantedBug(
        "machine_of_no_request_is_kept", _RENTING,
        '            if rent is None:\n                why = "it answers no request that is open"\n',
        "            if rent is None:\n                continue\n",
    ),
    PlantedBug(
        "machine_that_never_boots_is_kept", _RENTING,
        "        if missing <= 0 or self._loop.clock.now() - rent.asked_at <= limit_s:\n            return\n",
        "        if True:\n            return\n",
    ),
    PlantedBug(
        "taken_machine_is_never_missed", _RENTING,
        '                await self._gone(node_id, Reason.INFRA_NODE_LOST, launched.get(node_id, ""))\n', "",
    ),
    PlantedBug(
        "last_stretch_of_a_machine_is_free", _BILLING,
        "    _charge_machine(transaction, node, billed_until(pool, "
        "paid_since(transaction.state, node), transaction.at))\n",
        "    del pool\n",
    ),
    PlantedBug(
        "machine_that_never_joined_is_free", _BILLING,
        "    for charge in _priced_by_month(transaction.state, template, pool):\n"
        "        _append_charge(transaction, charge)\n", "    del template\n",
    ),
    PlantedBug(
        "launch_not_written_down", _LAUNCHES,
        "        _write(transaction, rent, json.loads(rent.launched) | {str(machine.node_id): False})\n",
        "        pass\n",
    ),
    PlantedBug("taken_launch_is_never_missed", _RENTING, "(believed | set(launched))", "believed"),
    PlantedBug(
        "launch_paid_for_twice", _LAUNCHES,
        "        _write(transaction, rent, json.loads(rent.launched) | {str(machine.node_id): True})\n",
        "        pass\n",
    ),
    # -------------------------------------------------------------------------------- holders, people, backups
    PlantedBug(
        "one_holder_may_have_all", "scheduler/live/holder_shares.py",
        "(self._held.total() - self._held[holder]) + 1) // 2", "(self._held.total() - self._held[holder]))",
    ),
    PlantedBug(
        "content_of_holders_not_counted", "scheduler/live/store/content_store.py",
        "                self._count(name[:2], Counter({holder.name: _counted(sizes[name])}))\n",
        "                pass\n",
    ),
    PlantedBug(
        "keys_left_out_of_backups", _FOLDER, 'FolderEntry("secret.key", InBackup.COPIED',
        'FolderEntry("secret.key", InBackup.NEVER',
    ),
    PlantedBug(
        "port_left_out_of_backups", _FOLDER, 'FolderEntry("port", InBackup.COPIED)',
        'FolderEntry("port", InBackup.NEVER)',
    ),
    PlantedBug(
        "older_agents_sent_what_they_do_not_know", "scheduler/live/services/unconfirmed_starts.py",
        "    if protocol > 1:\n", "    if protocol > 0:\n",
    ),
    PlantedBug(
        "revoked_token_is_good", "scheduler/live/http/people_api.py",
        "            row.revoked_at = row.revoked_at or call.server.loop.clock.unix(transaction.at)\n", "",
    ),
    PlantedBug(
        "all_projects_seen_by_everybody", "scheduler/live/auth/access_control.py",
        "ALL_PROJECTS in self.projects or project in self.projects", "bool(self.projects)",
    ),
    PlantedBug(
        "viewers_may_change", "scheduler/live/http/web_application.py",
        "            if allowed and caller.role < UserRole[endpoint.role.upper()]:\n",
        "            if not allowed and caller.role < UserRole[endpoint.role.upper()]:\n",
    ),
    PlantedBug(
        "secrets_left_out_of_starts", _GATEWAY,
        "        return {} if sealed is None else self._box.open(command.job_id, sealed)\n",
        "        return {} if sealed is None or True else {}\n",
    ),
    # -------------------------------------------------------------------------------- by who has not written the code
    PlantedBug("batch_encoded_again_after_full_disk", _TRANSACTION, "        self.is_encoded = True\n", ""),
    PlantedBug(
        "command_numbers_given_out_twice", _STATE, "next_command_id=loaded.last_command_id + 1)",
        "next_command_id=max(1, loaded.last_command_id - 20))",
    ),
    PlantedBug(
        "parts_not_written", _TRANSACTION, "(self._jobs, self._attempts, self._parts, self._nodes, self._rents)",
        "(self._jobs, self._attempts, self._nodes, self._rents)",
    ),
    PlantedBug(
        "confirmed_commands_stay_written", _GATEWAY, "        transaction.batch.delete(OutboxRow, *done)\n", "",
    ),
    PlantedBug(
        "commands_of_a_lost_machine_stay_written", _APPLY, "    transaction.batch.delete(OutboxRow, *node.outbox)\n",
        "",
    ),
    PlantedBug(
        "reports_of_a_new_agent_taken_for_old", _GATEWAY,
        "known.row.reports_acked, known.row.agent, known.row.boot_id = 0, message.agent, message.boot_id",
        "known.row.agent, known.row.boot_id = message.agent, message.boot_id",
    ),
    PlantedBug(
        "lost_machine_joins_with_its_ranks", _GATEWAY, 'node.row.state == "lost" and not message.here and not',
        'node.row.state == "lost" and not',
    ),
    PlantedBug(
        "machines_not_met_after_restore", _COMPARISON, "        node.must_meet = bool(former) and node.is_member and",
        "        node.must_meet = False and",
    ),
    PlantedBug(
        "numbers_told_after_restore_given_out", _COMPARISON,
        "max(state.next_job_id, highest_number_told(state, message) + 1)", "state.next_job_id",
    ),
    PlantedBug("met_while_unknown_ranks_live", _COMPARISON, "    if not unknown:\n", "    if True:\n"),
    PlantedBug(
        "old_reports_believed_after_restore", _REPORTS,
        "return None if grown_here or report.attempt <= newest else job", "return job",
    ),
    PlantedBug(
        "gang_runs_with_its_first_part", _REPORTS, "    return all(each.started and not each.brings for each in",
        "    return any(each.started and not each.brings for each in",
    ),
    PlantedBug(
        "gang_goes_on_without_a_part_that_failed", _REPORTS,
        "    if is_late or (_has_failed(part) and part.exit_code != EXIT_CHECKPOINTED):\n", "    if is_late:\n",
    ),
    PlantedBug(
        "gang_goes_on_without_a_part_that_vanished", _REPORTS,
        '    stop_other_parts(transaction, attempt, _GANG_GRACE_S, "a part of the gang is lost")\n', "",
    ),
    PlantedBug(
        "ranks_of_parts_numbered_alike", _TO_AGENTS,
        "        first_rank += 1 if "
        "transaction.state.jobs[command.job_id].launch.is_launcher else len(share.devices)\n",
        "",
    ),
    PlantedBug(
        "start_of_a_gang_that_broke", _TO_AGENTS,
        "    if any(part.ended for part in attempt.parts.values()):\n        return\n", "",
    ),
    PlantedBug("unconfirmed_starts_waited_for", _GATEWAY, "or self._is_waited_for(node) or", "or"),
    PlantedBug(
        "withdrawn_before_it_was_ordered", "scheduler/live/services/unconfirmed_starts.py",
        "    return is_ordered and part.ordered and not part.started and not part.ended\n",
        "    return not part.started and not part.ended\n",
    ),
    PlantedBug(
        "unknown_commands_kept_for_older_agents", _GATEWAY,
        "        drop_unknown(transaction, node, message.protocol)\n", "",
    ),
    PlantedBug(
        "older_agents_start_without_what_the_job_brings", "scheduler/live/services/unconfirmed_starts.py",
        "        return not (command.code or command.is_launcher or command.needs != JobNeeds())\n",
        "        return True\n",
    ),
    PlantedBug(
        "dropped_start_is_no_refusal", "scheduler/live/services/unconfirmed_starts.py",
        "and not part.ended:\n        refuse_start(transaction, part, detail)\n", "and not part.ended:\n        pass\n",
    ),
    PlantedBug(
        "refused_gang_gives_up_places_of_parts_that_begin", "scheduler/live/services/unconfirmed_starts.py",
        "    if any(each.ordered and not each.ended for each in attempt.parts.values()):\n",
        "    if False:\n",
    ),
    PlantedBug(
        "rows_of_jobs_that_others_name_deleted", _RETENTION,
        '        " AND job_id < coalesce((SELECT min(job_id) FROM jobs WHERE ended_at IS NULL), job_id + 1)"\n', "",
    ),
    PlantedBug(
        "journal_cut_within_a_generation", _RETENTION, "WHERE kind = 'generation' AND at <= ?", "WHERE at <= ?",
    ),
    PlantedBug(
        "digest_at_the_cut_lost", "scheduler/live/store/journal_chain.py",
        '[seq, digest])\n    connection.execute("DELETE FROM meta',
        '[seq, ""])\n    connection.execute("DELETE FROM meta',
    ),
    PlantedBug(
        "restored_under_the_same_incarnation", "scheduler/live/store/backup.py",
        "[random_hex(None, 16), SYSTEM_CLOCKS.wall(), why],",
        '[connection.execute("SELECT incarnation FROM incarnations ORDER BY seq DESC").fetchone()[0], 0.0, why],',
    ),
    PlantedBug(
        "restored_chain_counts_anew", "scheduler/live/store/backup.py",
        '        _begin_incarnation(data, former, "restored",', '        _begin_incarnation(data, None, "restored",',
    ),
    PlantedBug(
        "content_of_other_projects_told_of", "scheduler/live/store/content_store.py",
        "            or asker.sees_all\n", "            or asker.sees_all\n            or True\n",
    ),
    PlantedBug(
        "no_reserve_of_content", "scheduler/live/store/content_store.py",
        "FREE_LEAST_BYTES, has_reserve=True, fix=_FIX)", "FREE_LEAST_BYTES, has_reserve=False, fix=_FIX)",
    ),
    PlantedBug(
        "administrators_have_no_reserve_of_content", "scheduler/live/store/content_store.py",
        "is_reserved=holder.is_reserved)", "is_reserved=False)",
    ),
    PlantedBug(
        "holders_of_swept_content_stay_counted", "scheduler/live/store/content_store.py",
        "            found.subtract(self._counted[folder.name])\n", "",
    ),
    PlantedBug(
        "jobs_that_ended_stay_counted", _STATE, "        self.job_shares.give_back(self.jobs.pop(job_id).row.user)\n",
        "        self.jobs.pop(job_id)\n",
    ),
    PlantedBug("jobs_of_before_a_restart_not_counted", _STATE, "        state.job_shares.put_back(job.user)\n", ""),
    PlantedBug(
        "one_user_has_all_jobs", "scheduler/live/services/job_submission.py", "        state.job_shares.take(user)\n",
        "        state.job_shares.put_back(user)\n",
    ),
    PlantedBug(
        "requests_that_ended_stay_counted", "scheduler/live/http/request_bodies.py",
        "            self.worked_on.give_back(holder)\n\n    @contextmanager\n    def receiving",
        "            pass\n\n    @contextmanager\n    def receiving",
    ),
    PlantedBug(
        "all_users_are_one_holder", "scheduler/live/http/request_bodies.py", '    return f"user {name}"\n',
        '    return "user"\n',
    ),
    PlantedBug(
        "requests_have_no_bound_by_holder", "scheduler/live/http/web_application.py",
        "            with self._load.working(holder, is_reserved=is_reserved):\n",
        "            with self._load.working(str(id(request)), is_reserved=is_reserved):\n",
    ),
)  # fmt: skip

_GUARD = "scheduler/live/http/connection_guard.py"
_SESSIONS = "scheduler/live/services/session_broker.py"
_LEADERSHIP = "scheduler/live/store/postgres_store.py"
_STARTER = "workers/agent/launch.py"
_CACHE = "workers/preparation/folder_cache.py"
_SHARED = "scheduler/core/state/throughput.py"
_HOLDERS = "scheduler/live/store/content_store.py"
_CHECKPOINTS = "scheduler/live/services/checkpoint_records.py"

#: What the simulation does not play: connections, sessions, real processes, databases beside SQLite's, other folders.
LOCAL_BUGS: tuple[PlantedBug, ...] = (
    PlantedBug(
        "machines_have_no_reserve_of_requests", "scheduler/live/http/request_bodies.py",
        "    return isinstance(caller, AgentCaller | JoinCaller) or (\n", "    return False or (\n",
    ),
    PlantedBug(
        "tip_not_written", _STORE, "        self._chain.head = head\n        self._tip.write(head)\n",
        "        self._chain.head = head\n",
    ),
    PlantedBug(
        "no_reserve_for_anybody", "scheduler/live/holder_shares.py",
        "self.most // _RESERVED if self._has_reserve and not is_reserved else 0", "0",
    ),
    PlantedBug(
        "what_waits_is_given_back_to_the_share", _GUARD,
        "(self._waiting if connection in self._beyond else self.shares).give_back(holder)",
        "self.shares.give_back(holder)",
    ),
    PlantedBug("the_smallest_holder_makes_way", _GUARD, "most = max(self._idle, key", "most = min(self._idle, key"),
    PlantedBug(
        "heads_that_came_are_timed", _GUARD, "        self._heads.pop(connection, None)\n        connection.requests",
        "        connection.requests",
    ),
    PlantedBug(
        "known_connections_are_strangers", _GUARD,
        "            self._forget_stranger(connection)\n            self._known[connection] = holder\n",
        "            self._known[connection] = holder\n",
    ),
    PlantedBug(
        "a_session_is_given_back_twice", _SESSIONS,
        "        if self._open.pop(session.request.session_id, None) is not None:\n            self.shares",
        "        self._open.pop(session.request.session_id, None)\n        if True:\n            self.shares",
    ),
    PlantedBug(
        "one_user_has_all_sessions", _SESSIONS, "        self.check(job_id, user)\n        self.shares.take(user)\n",
        "        self.shares.put_back(user)\n",
    ),
    PlantedBug(
        "silent_leader_is_never_ended", _LEADERSHIP, "    if row is None or row[1] < LEASE_S:\n", "    if True:\n",
    ),
    PlantedBug(
        "hung_leader_renews_for_ever", _LEADERSHIP, "                self._since_turn += 1\n",
        "                self._since_turn += 0\n",
    ),
    PlantedBug(
        "a_leader_that_was_replaced_writes_on", "scheduler/live/store/postgres_store.py",
        "        if found != self._chain.head.commits:\n", "        if False:\n",
    ),
    PlantedBug(
        "folders_of_others_may_lead", _LEADERSHIP, 'if row is not None and row[0] not in ("", key_digest):',
        "if row is None:",
    ),
    PlantedBug("starter_keeps_pipes_of_starts", _SUPERVISOR, "        os.close(pipes[0])\n", ""),
    PlantedBug("forks_keep_the_starters_socket", _SUPERVISOR, "        requests.close()\n", ""),
    PlantedBug("attempts_stay_in_the_starters_session", _SUPERVISOR, "    os.setsid()\n", ""),
    PlantedBug("plan_of_a_failed_start_stays", _STARTER, "        await asyncio.to_thread(forget_plan, folder)\n", ""),
    PlantedBug(
        "a_starter_that_hung_is_kept", _STARTER,
        "            if starter is not None:\n                starter.kill()\n            return False\n",
        "            return False\n",
    ),
    PlantedBug(
        "starter_has_the_agents_variables", _STARTER, 'env={"PYTHONPATH": root, "PATH": os.defpath} | (',
        'env=dict(os.environ) | {"PYTHONPATH": root, "PATH": os.defpath} | (',
    ),
    PlantedBug(
        "scopes_share_a_starter", _STARTER, "        if self._systemd_run:\n            scope",
        "        if False:\n            scope",
    ),
    PlantedBug("ranks_run_as_root", _STARTER, "uid=0 if account is None else account.uid,", "uid=0,"),
    PlantedBug(
        "accounts_share_caches", _STARTER, "account_caches(machine.whole or machine.state, account)",
        "machine.state / PREPARED_FOLDER",
    ),
    PlantedBug(
        "cache_removes_what_is_used", _CACHE, "            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)\n", "",
    ),
    PlantedBug(
        "changed_entries_are_given", _CACHE,
        '            return bool(json.loads(read_ranks_file(done, 0, _MARKER_BYTES))["seal"] != seal(place))\n',
        "            return False\n",
    ),
    PlantedBug("shared_speeds_beyond_data_sheets", _SHARED, "min(most, max(least, said))", "said"),
    PlantedBug(
        "shared_speeds_not_scaled", _SHARED, "    return median(ratios) if ratios else 1.0\n", "    return 1.0\n",
    ),
    PlantedBug(
        "shared_speeds_forgotten_at_restart", _RESTORE, "        share_speeds(transaction, program)\n",
        "        pass\n",
    ),
    PlantedBug("small_pieces_count_their_bytes", _HOLDERS, "    return max(LEAST_BYTES, size)\n", "    return size\n"),
    PlantedBug(
        "sweep_deletes_what_jobs_need", "scheduler/live/store/content_store.py",
        "        kept = self._needed(in_use)\n        swept", "        kept = set[str]()\n        swept",
    ),
    PlantedBug(
        "certificate_left_out_of_backups", _FOLDER, 'FolderEntry("tls.crt", InBackup.COPIED)',
        'FolderEntry("tls.crt", InBackup.NEVER)',
    ),
    PlantedBug(
        "logs_put_aside_by_a_restore", "scheduler/live/store/backup.py",
        "put_aside(data, (*database, *_names(backup, _ALL_COPIED)))",
        'put_aside(data, (*database, "logs", *_names(backup, _ALL_COPIED)))',
    ),
    PlantedBug(
        "checkpoints_that_others_name_deleted", _RETENTION, "        first_kept = min(first_kept, active)\n",
        "        pass\n",
    ),
    PlantedBug("any_part_may_commit", _REPORTS, "        return part.node_rank == 0\n", "        return True\n"),
    PlantedBug(
        "a_torn_checkpoint_costs_all", _CHECKPOINTS,
        "    job.checkpoint, job.earlier_checkpoint = job.earlier_checkpoint, None\n",
        "    job.checkpoint = job.earlier_checkpoint = None\n",
    ),
    PlantedBug(
        "a_stopped_part_is_blamed", _REPORTS, "key=lambda part: (part.stopped, part.exit_code",
        "key=lambda part: (not part.stopped, part.exit_code",
    ),
    PlantedBug("jobs_start_without_their_secrets", _GATEWAY, "and self._secrets_for(command) is not None\n", "\n"),
    PlantedBug(
        "time_beside_another_is_forgotten", "scheduler/core/state/ledger.py",
        "        job.ahead_steps += max(0.0, since - job.leased_at) * (before - self.rate_of(job))\n", "",
    ),
)  # fmt: skip

_LIVE = "tests/unit/scheduler_live"
#: The tests that find the local ones in seconds, by file.
FOUND_BY: dict[str, tuple[str, ...]] = {
    f"{_LIVE}/test_backup.py": (
        "tip_not_written", "keys_left_out_of_backups", "port_left_out_of_backups", "certificate_left_out_of_backups",
        "logs_put_aside_by_a_restore", "restored_under_the_same_incarnation", "restored_chain_counts_anew",
    ),
    f"{_LIVE}/test_retention.py": (
        "retention_deletes_logs_of_active_jobs", "rows_of_jobs_that_others_name_deleted",
        "checkpoints_that_others_name_deleted", "journal_cut_within_a_generation", "digest_at_the_cut_lost",
    ),
    f"{_LIVE}/test_full_disk.py": ("batch_encoded_again_after_full_disk",),
    f"{_LIVE}/test_restart.py": ("command_numbers_given_out_twice", "parts_not_written"),
    f"{_LIVE}/test_gateway.py": (
        "confirmed_commands_stay_written", "commands_of_a_lost_machine_stay_written",
        "lost_machine_joins_with_its_ranks",
        "gang_runs_with_its_first_part", "gang_goes_on_without_a_part_that_failed",
        "gang_goes_on_without_a_part_that_vanished", "ranks_of_parts_numbered_alike", "start_of_a_gang_that_broke",
        "reports_of_an_ended_part_taken", "any_part_may_commit", "a_stopped_part_is_blamed",
        "refused_gang_gives_up_places_of_parts_that_begin", "late_call_believed",
        "other_parts_of_a_closed_attempt_not_stopped",
    ),
    f"{_LIVE}/test_agent_identity.py": (
        "reports_of_a_new_agent_taken_for_old", "withdrawn_before_it_was_ordered",
        "unknown_commands_kept_for_older_agents", "older_agents_start_without_what_the_job_brings",
        "dropped_start_is_no_refusal",
    ),
    f"{_LIVE}/test_after_restore.py": (
        "machines_not_met_after_restore", "numbers_told_after_restore_given_out", "met_while_unknown_ranks_live",
        "old_reports_believed_after_restore", "shared_speeds_forgotten_at_restart",
    ),
    f"{_LIVE}/test_checkpoint_records.py": (
        "older_checkpoint_replaces_newer", "a_torn_checkpoint_costs_all",
    ),
    f"{_LIVE}/test_secrets.py": ("jobs_start_without_their_secrets", "secrets_left_out_of_starts"),
    f"{_LIVE}/test_admission.py": (
        "jobs_that_ended_stay_counted", "jobs_of_before_a_restart_not_counted", "one_user_has_all_jobs",
    ),
    f"{_LIVE}/test_connection_guard.py": (
        "what_waits_is_given_back_to_the_share", "the_smallest_holder_makes_way", "heads_that_came_are_timed",
        "known_connections_are_strangers",
    ),
    f"{_LIVE}/test_hostile_requests.py": (
        "no_reserve_for_anybody", "one_holder_may_have_all", "a_session_is_given_back_twice",
        "one_user_has_all_sessions",
        "all_users_are_one_holder", "machines_have_no_reserve_of_requests",
    ),
    f"{_LIVE}/test_content_api.py": (
        "content_of_other_projects_told_of", "no_reserve_of_content", "content_of_holders_not_counted",
        "holders_of_swept_content_stay_counted", "administrators_have_no_reserve_of_content",
        "small_pieces_count_their_bytes", "sweep_deletes_what_jobs_need",
    ),
    f"{_LIVE}/test_claimed_speeds.py": (
        "shared_speeds_beyond_data_sheets", "shared_speeds_not_scaled",
    ),
    "tests/unit/scheduler_core/test_co_location.py": ("time_beside_another_is_forgotten",),
    "tests/unit/workers/test_preparation.py": ("cache_removes_what_is_used", "changed_entries_are_given"),
    "tests/unit/workers/test_control_groups.py": ("scopes_share_a_starter",),
    "tests/unit/workers/test_run_as.py": ("ranks_run_as_root", "accounts_share_caches"),
    "tests/e2e/test_supervisor.py": (
        "starter_keeps_pipes_of_starts", "attempts_stay_in_the_starters_session", "plan_of_a_failed_start_stays",
        "a_starter_that_hung_is_kept",
    ),
    "tests/e2e/test_agent_attempts.py": ("forks_keep_the_starters_socket", "starter_has_the_agents_variables"),
    "tests/e2e/test_standby_live.py": ("silent_leader_is_never_ended", "hung_leader_renews_for_ever"),
    f"{_LIVE}/test_sql_dialect.py": ("a_leader_that_was_replaced_writes_on", "folders_of_others_may_lead"),
}  # fmt: skip
