"""The schema, and every change ever made to it. Migrations only go forward, because each has been applied somewhere.

They use two SQL functions (`lend_functions`) for what must be given from outside: the present Unix time, and chance.
"""

from random import Random

from sqlite_utils import Database, Migrations

from scheduler.live.store.journal_chain import chain_existing_rows, store_head
from walras.clocks import SYSTEM_CLOCKS, Clocks, random_hex

migrations = Migrations("walras")


def lend_functions(db: Database, clocks: Clocks = SYSTEM_CLOCKS, chance: Random | None = None) -> None:
    """Give the connection the functions that migrations use: `walras_unix_s()` and `walras_random_hex(digits)`."""
    db.conn.create_function("walras_unix_s", 0, clocks.wall)
    db.conn.create_function("walras_random_hex", 1, lambda digits: random_hex(chance, digits))


def _copied_per_project(table: str, columns: str) -> str:
    """Returns the statement that gives each project the rows of the kinds of its jobs (`kind_within`)."""
    own = "'@' || replace(replace(jobs.project, '%', '%25'), ' ', '%20') || ' ' || jobs.kind"
    return (
        f"INSERT INTO {table} (kind, {columns}) SELECT DISTINCT {own}, {columns} FROM {table}"
        f" JOIN (SELECT DISTINCT project, kind FROM jobs) AS jobs ON jobs.kind = {table}.kind"
        " WHERE jobs.project <> 'default' OR jobs.kind LIKE '@%'"
    )


#: By the name of a migration: its statements about rows and tables that are there already, in the SQL that PostgreSQL
#: takes too, where they also run on a new database.
SQL_FOR_BOTH: dict[str, tuple[str, ...]] = {
    "tell_departures_apart": (
        # How long the notice was is over by now, or nobody knows.
        "UPDATE nodes SET notice_s = 0, detail = '' WHERE cordon = 'leaving' AND detail LIKE 'notice: %'",
        "UPDATE nodes SET drained_by = 'pool' WHERE cordon = 'leaving' AND notice_s IS NULL"
        " AND detail = 'its pool is drained; what cannot be saved runs on'",
        "UPDATE nodes SET drained_by = 'admin' WHERE cordon = 'leaving' AND notice_s IS NULL AND drained_by = ''",
        # An administrator held the job, or drained a machine of it.
        "UPDATE attempts SET held_by = reason WHERE ended_at IS NULL AND state = 'STOPPING' AND reason LIKE 'HOLD:%'"
        " AND (reason <> 'HOLD:ADMIN' OR NOT EXISTS (SELECT 1 FROM parts JOIN nodes ON nodes.node_id = parts.node_id"
        " WHERE parts.job_id = attempts.job_id AND parts.attempt = attempts.attempt AND nodes.cordon = 'leaving'))",
    ),
    "drop_shadow_notes_and_reports": (
        "DROP TABLE IF EXISTS policy_shadow",
        "DROP TABLE IF EXISTS notes",
        "DROP TABLE IF EXISTS reports",
        "DELETE FROM meta WHERE name IN ('last_notes', 'last_reports')",
    ),
    "keep_speeds_per_project": (
        _copied_per_project("speeds", "accelerator, count, steps_per_s"),
        _copied_per_project("restart_costs", "restart_s"),
        _copied_per_project("facts", "counted, body, told_at, told_by"),
    ),
}

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value REAL NOT NULL);
CREATE TABLE journal (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, type TEXT NOT NULL, payload TEXT NOT NULL
);
CREATE INDEX journal_generation ON journal (seq) WHERE kind = 'generation';
CREATE TABLE specs (job_id INTEGER PRIMARY KEY, spec TEXT NOT NULL, request TEXT NOT NULL);
CREATE TABLE jobs (
    job_id INTEGER PRIMARY KEY, name TEXT NOT NULL, project TEXT NOT NULL, user TEXT NOT NULL, kind TEXT NOT NULL,
    state TEXT NOT NULL, priority INTEGER NOT NULL, accelerators INTEGER NOT NULL, submitted_at REAL NOT NULL,
    reason TEXT, detail TEXT NOT NULL, attempts INTEGER NOT NULL, restarts INTEGER NOT NULL, steps REAL NOT NULL,
    steps_total REAL, steps_per_s REAL, started_at REAL, ended_at REAL,
    first_values TEXT NOT NULL, last_values TEXT NOT NULL, labels TEXT NOT NULL
);
CREATE INDEX jobs_active ON jobs (job_id) WHERE ended_at IS NULL;
CREATE INDEX jobs_user ON jobs (user, job_id);
CREATE INDEX jobs_project ON jobs (project, job_id);
CREATE INDEX jobs_state ON jobs (state, job_id);
CREATE INDEX jobs_name ON jobs (user, name, job_id);
CREATE TABLE attempts (
    job_id INTEGER NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL, pool_id TEXT NOT NULL,
    accelerator TEXT NOT NULL, emulated INTEGER NOT NULL, accelerators INTEGER NOT NULL, leased_at REAL NOT NULL,
    placement TEXT NOT NULL, reason TEXT, profiling INTEGER NOT NULL, started_at REAL, ended_at REAL,
    exit_code INTEGER, signal INTEGER, failed_rank INTEGER, checkpoint_step REAL,
    usd REAL NOT NULL, usd_per_h REAL NOT NULL, usd_since_at REAL NOT NULL,
    PRIMARY KEY (job_id, attempt)
) WITHOUT ROWID;
CREATE INDEX attempts_live ON attempts (job_id) WHERE ended_at IS NULL;
CREATE TABLE parts (
    job_id INTEGER NOT NULL, attempt INTEGER NOT NULL, node_id TEXT NOT NULL, node_rank INTEGER NOT NULL,
    prepared INTEGER NOT NULL, started INTEGER NOT NULL, ended INTEGER NOT NULL, ordered INTEGER NOT NULL,
    stopped INTEGER NOT NULL, cause TEXT NOT NULL, exit_code INTEGER, signal INTEGER, failed_rank INTEGER,
    address TEXT NOT NULL, port INTEGER NOT NULL, ended_at REAL, steps REAL,
    PRIMARY KEY (job_id, attempt, node_id)
) WITHOUT ROWID;
CREATE INDEX parts_live ON parts (job_id) WHERE ended = 0;
CREATE TABLE nodes (
    node_id TEXT PRIMARY KEY, pool_id TEXT NOT NULL, facts TEXT NOT NULL, credential TEXT NOT NULL, state TEXT NOT NULL,
    joined_at REAL NOT NULL, cordon TEXT NOT NULL, detail TEXT NOT NULL, rent_token TEXT NOT NULL,
    reports_acked INTEGER NOT NULL
);
CREATE TABLE outbox (command_id INTEGER PRIMARY KEY, node_id TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE checkpoints (
    job_id INTEGER NOT NULL, attempt INTEGER NOT NULL, step REAL NOT NULL, path TEXT NOT NULL, digest TEXT NOT NULL,
    recorded_at REAL NOT NULL,
    PRIMARY KEY (job_id, attempt, step)
) WITHOUT ROWID;
CREATE TABLE rents (
    token TEXT PRIMARY KEY, pool_id TEXT NOT NULL, machines INTEGER NOT NULL, asked_at REAL NOT NULL,
    state TEXT NOT NULL
);
CREATE TABLE pools (pool_id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE speeds (
    kind TEXT NOT NULL, accelerator TEXT NOT NULL, count INTEGER NOT NULL, steps_per_s REAL NOT NULL,
    PRIMARY KEY (kind, accelerator, count)
) WITHOUT ROWID;
CREATE TABLE restart_costs (kind TEXT PRIMARY KEY, restart_s REAL NOT NULL);
CREATE TABLE policies (
    version INTEGER PRIMARY KEY, body TEXT NOT NULL, changed_at REAL NOT NULL, changed_by TEXT NOT NULL
);
CREATE TABLE answers (
    user TEXT NOT NULL, key TEXT NOT NULL, body_sha256 TEXT NOT NULL, answer TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (user, key)
);
CREATE TABLE tokens (
    sha256 TEXT PRIMARY KEY, prefix TEXT NOT NULL, user TEXT NOT NULL, role TEXT NOT NULL, projects TEXT NOT NULL,
    created_at REAL NOT NULL, created_by TEXT NOT NULL, expires_at REAL, revoked_at REAL
);
"""


@migrations()
def first_tables(db: Database) -> None:
    """Makes the tables of the first release; instant 0 of the cluster is now."""
    for statement in _SCHEMA.split(";"):
        if statement.strip():
            db.execute(statement)
    db.execute("INSERT INTO meta (name, value) VALUES ('epoch_unix_s', walras_unix_s()), ('touched', 0)")


@migrations()
def find_old_answers(db: Database) -> None:
    """Adds an index, by which old answers to idempotency keys are deleted."""
    db.execute("CREATE INDEX answers_at ON answers (at)")


@migrations()
def keep_charges(db: Database) -> None:
    """Adds the ledger of money: what was used, at the price of its time. Rows are added, never changed."""
    db.execute(
        """CREATE TABLE charges (
        charge_id INTEGER PRIMARY KEY, kind TEXT NOT NULL, since_at REAL NOT NULL, until_at REAL NOT NULL,
        usd_per_h REAL NOT NULL, usd REAL NOT NULL, on_demand_usd REAL NOT NULL, month TEXT NOT NULL,
        pool_id TEXT NOT NULL, market TEXT NOT NULL, accelerator TEXT NOT NULL, accelerators REAL NOT NULL,
        node_id TEXT NOT NULL, job_id INTEGER NOT NULL, attempt INTEGER NOT NULL, project TEXT NOT NULL,
        user TEXT NOT NULL)"""
    )
    db.execute("CREATE INDEX charges_month ON charges (month, project)")
    db.execute("CREATE TRIGGER charges_stay BEFORE UPDATE ON charges BEGIN SELECT raise(ABORT, 'append only'); END")
    db.execute("CREATE TRIGGER charges_last BEFORE DELETE ON charges BEGIN SELECT raise(ABORT, 'append only'); END")
    db.execute("ALTER TABLE nodes ADD COLUMN billed_until_at REAL")


@migrations()
def change_budgets(db: Database) -> None:
    """Adds a column for a budget of a job that was changed after its submission."""
    db.execute("ALTER TABLE jobs ADD COLUMN budget_usd REAL")


@migrations()
def keep_scores(db: Database) -> None:
    """Adds a table of predicted and measured speeds by source, by which predictors are weighted."""
    db.execute(
        """CREATE TABLE scores (
        kind TEXT NOT NULL, accelerator TEXT NOT NULL, count INTEGER NOT NULL, source TEXT NOT NULL,
        predicted REAL NOT NULL, measured REAL NOT NULL, low REAL, high REAL,
        PRIMARY KEY (kind, accelerator, count, source)) WITHOUT ROWID"""
    )


@migrations()
def keep_facts(db: Database) -> None:
    """Adds facts of kinds of jobs, counted by jobs or stated by people, from which speeds are predicted."""
    db.execute(
        """CREATE TABLE facts (
        kind TEXT NOT NULL, counted INTEGER NOT NULL, body TEXT NOT NULL, told_at REAL NOT NULL, told_by TEXT NOT NULL,
        PRIMARY KEY (kind, counted)) WITHOUT ROWID"""
    )


@migrations()
def keep_networks(db: Database) -> None:
    """Adds the bandwidth that gangs over several machines of a pool got, for the next start."""
    db.execute("CREATE TABLE networks (pool_id TEXT PRIMARY KEY, bytes_per_s REAL NOT NULL) WITHOUT ROWID")


@migrations()
def keep_targets(db: Database) -> None:
    """Adds the values that jobs with a target reported, with the last forecast."""
    db.execute("ALTER TABLE jobs ADD COLUMN target TEXT NOT NULL DEFAULT ''")


@migrations()
def name_cluster(db: Database) -> None:
    """Adds the cluster's name and the incarnation of its database. A restore adds a row; the newest is in force."""
    db.execute(
        """CREATE TABLE incarnations (
        seq INTEGER PRIMARY KEY, cluster_id TEXT NOT NULL, incarnation TEXT NOT NULL, began_unix_s REAL NOT NULL,
        why TEXT NOT NULL)"""
    )
    db.execute(
        "INSERT INTO incarnations (cluster_id, incarnation, began_unix_s, why) "
        " VALUES (walras_random_hex(32), walras_random_hex(16), walras_unix_s(), 'made')"
    )


@migrations()
def keep_audit(db: Database) -> None:
    """Adds the audit: who changed what through the API, with before and after. Rows are added, never changed."""
    db.execute(
        """CREATE TABLE audit (
        seq INTEGER PRIMARY KEY, at REAL NOT NULL, user TEXT NOT NULL, role TEXT NOT NULL, address TEXT NOT NULL,
        action TEXT NOT NULL, subject TEXT NOT NULL, project TEXT NOT NULL, before TEXT NOT NULL,
        after TEXT NOT NULL)"""
    )
    db.execute("CREATE INDEX audit_user ON audit (user, seq)")
    db.execute("CREATE TRIGGER audit_stays BEFORE UPDATE ON audit BEGIN SELECT raise(ABORT, 'append only'); END")
    db.execute("CREATE TRIGGER audit_lasts BEFORE DELETE ON audit BEGIN SELECT raise(ABORT, 'append only'); END")


@migrations()
def keep_secrets(db: Database) -> None:
    """Adds the secrets of jobs that are not over, sealed under the server's key."""
    db.execute("CREATE TABLE secrets (job_id INTEGER PRIMARY KEY, sealed BLOB NOT NULL)")


@migrations()
def name_agents(db: Database) -> None:
    """Adds columns for the agent of a machine, and for the incarnation in which jobs and attempts were numbered."""
    for column in ("agent", "boot_id", "version", "incarnation"):
        db.execute(f"ALTER TABLE nodes ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")
    for table in ("jobs", "attempts"):
        db.execute(f"ALTER TABLE {table} ADD COLUMN incarnation TEXT NOT NULL DEFAULT ''")


@migrations()
def chain_journal(db: Database) -> None:
    """Adds a running digest over the journal, so that missing rows are noticed."""
    db.execute("CREATE TABLE chain_marks (seq INTEGER PRIMARY KEY, digest TEXT NOT NULL)")
    db.execute(
        """CREATE TABLE chain (
        id INTEGER PRIMARY KEY CHECK (id = 0), commits INTEGER NOT NULL, seq INTEGER NOT NULL, digest TEXT NOT NULL,
        last_job_id INTEGER NOT NULL, unmarked INTEGER NOT NULL)"""
    )
    db.execute("INSERT INTO chain VALUES (0, 0, 0, '', 0, 0)")
    store_head(db.conn, chain_existing_rows(db.conn))


@migrations()
def remember_clocks(db: Database) -> None:
    """Adds the clocks of the server's last write, from which a start derives how long the server was away."""
    db.execute(
        """CREATE TABLE last_alive (
        id INTEGER PRIMARY KEY CHECK (id = 0), at REAL NOT NULL, unix_s REAL NOT NULL, boot_id TEXT NOT NULL,
        boottime_s REAL NOT NULL)"""
    )


@migrations()
def remember_core_state(db: Database) -> None:
    """Adds a table (one row) for what a core knows that is in no other table, and a column for gentle drains."""
    db.execute(
        "CREATE TABLE core_state (one INTEGER PRIMARY KEY CHECK (one = 1), at REAL NOT NULL, body TEXT NOT NULL)"
    )
    db.execute("ALTER TABLE nodes ADD COLUMN drain_until_at REAL")


@migrations()
def remember_exceeded_limits(db: Database) -> None:
    """Adds the limit for which a part of an attempt was ended on its machine."""
    db.execute("ALTER TABLE parts ADD COLUMN exceeded TEXT NOT NULL DEFAULT ''")


@migrations()
def keep_outputs(db: Database) -> None:
    """Adds the results that jobs left, by machine of the gang."""
    db.execute(
        """CREATE TABLE outputs (
        job_id INTEGER NOT NULL, node_rank INTEGER NOT NULL, attempt INTEGER NOT NULL, tree TEXT NOT NULL,
        files INTEGER NOT NULL, size_bytes INTEGER NOT NULL, collected_at REAL NOT NULL, problem TEXT NOT NULL,
        PRIMARY KEY (job_id, node_rank)) WITHOUT ROWID"""
    )


@migrations()
def keep_people(db: Database) -> None:
    """Adds users, projects and roles. Owners of tokens become users at the next start (`auth/people.py`)."""
    db.execute(
        """CREATE TABLE people (
        kind TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL, changed_at REAL NOT NULL, changed_by TEXT NOT NULL,
        removed INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (kind, name)) WITHOUT ROWID"""
    )
    db.execute("ALTER TABLE jobs ADD COLUMN defaults TEXT NOT NULL DEFAULT '{}'")


@migrations()
def keep_sweeps(db: Database) -> None:
    """Adds the sweep of a job, named by the sweep's first job, and the job's index there."""
    for column in ("sweep", "sweep_index"):
        db.execute(f"ALTER TABLE jobs ADD COLUMN {column} INTEGER")
    db.execute("CREATE INDEX jobs_sweep ON jobs (sweep) WHERE sweep IS NOT NULL")


@migrations()
def keep_checkpoint_stores(db: Database) -> None:
    """Adds columns for checkpoints' content and loss. A cluster that has jobs keeps its shared disk."""
    db.execute("ALTER TABLE checkpoints ADD COLUMN content TEXT NOT NULL DEFAULT ''")
    for column in ("upload_s REAL", "lag_s REAL", "lost INTEGER"):
        db.execute(f"ALTER TABLE checkpoints ADD COLUMN {column} NOT NULL DEFAULT 0")
    db.execute("CREATE TABLE checkpoint_habit (shares_folder INTEGER NOT NULL)")
    db.execute("INSERT INTO checkpoint_habit SELECT count(*) > 0 FROM jobs")


@migrations()
def keep_places_of_checkpoints(db: Database) -> None:
    """Adds the store of a checkpoint's content where that is not the server, and machines that do not reach theirs."""
    db.execute("ALTER TABLE checkpoints ADD COLUMN store TEXT NOT NULL DEFAULT ''")
    db.execute("ALTER TABLE nodes ADD COLUMN private INTEGER NOT NULL DEFAULT 0")


@migrations()
def keep_notifications(db: Database) -> None:
    """Adds users' channels, the notifications that wait for them, and what owners of active jobs were notified of."""
    db.execute(
        """CREATE TABLE channels (
        channel_id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, shown TEXT NOT NULL, sealed BLOB NOT NULL,
        kinds TEXT NOT NULL, added_at REAL NOT NULL, delivered INTEGER NOT NULL, failed INTEGER NOT NULL,
        dropped INTEGER NOT NULL, delivered_at REAL, problem TEXT NOT NULL)"""
    )
    db.execute(
        """CREATE TABLE notifications (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, notification_id TEXT NOT NULL, channel_id INTEGER NOT NULL,
        body TEXT NOT NULL, tries INTEGER NOT NULL, due_at REAL NOT NULL)"""
    )
    db.execute(
        "CREATE TABLE told (job_id INTEGER NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (job_id, kind)) WITHOUT ROWID"
    )


@migrations()
def keep_price_hours(db: Database) -> None:
    """Adds a table of hourly means of what one more accelerator of each pool was worth."""
    db.execute(
        """CREATE TABLE price_hours (
        pool_id TEXT NOT NULL, since_at REAL NOT NULL, until_at REAL NOT NULL, seconds REAL NOT NULL,
        price REAL NOT NULL, unit TEXT NOT NULL, usd_per_h REAL, rent_usd_per_h REAL NOT NULL,
        PRIMARY KEY (since_at, pool_id)) WITHOUT ROWID"""
    )


@migrations()
def keep_tools_of_machines(db: Database) -> None:
    """Adds the tools of machines, so that after a restart no job starts where it could not be prepared."""
    db.execute("ALTER TABLE nodes ADD COLUMN tools TEXT NOT NULL DEFAULT ''")


@migrations()
def keep_bookings(db: Database) -> None:
    """Adds the reservations of machines."""
    db.execute(
        """CREATE TABLE bookings (
        booking_id INTEGER PRIMARY KEY, project TEXT NOT NULL, body TEXT NOT NULL, from_at REAL NOT NULL,
        until_at REAL NOT NULL, created_at REAL NOT NULL, created_by TEXT NOT NULL, cancelled INTEGER NOT NULL)"""
    )


@migrations()
def keep_policy_shadow(db: Database) -> None:
    """Adds the policy in the shadow, and the state in which it began."""
    db.execute("CREATE TABLE policy_shadow (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL)")


@migrations()
def keep_launches(db: Database) -> None:
    """Adds machines that a provider has launched and that have not joined yet, so that each is paid for."""
    db.execute("ALTER TABLE rents ADD COLUMN launched TEXT NOT NULL DEFAULT '{}'")


@migrations()
def keep_credits(db: Database) -> None:
    """Adds credits of budgets, and use in accelerators of average speed."""
    db.execute("ALTER TABLE charges ADD COLUMN units REAL NOT NULL DEFAULT 0")
    db.execute(
        """CREATE TABLE credits (
        credit_id INTEGER PRIMARY KEY, at REAL NOT NULL, project TEXT NOT NULL, user TEXT NOT NULL, team TEXT NOT NULL,
        unit TEXT NOT NULL, amount REAL NOT NULL, created_by TEXT NOT NULL, reason TEXT NOT NULL)"""
    )


@migrations()
def find_attempts_by_machine(db: Database) -> None:
    """Adds an index to find what ran on a machine, for people who look for the machine that fails jobs."""
    db.execute("CREATE INDEX parts_node ON parts (node_id, job_id)")


@migrations()
def keep_notes_and_reports(db: Database) -> None:
    """Adds people's notes on jobs, and the reports that they publish, whose pages lie in the content store."""
    db.execute(
        """CREATE TABLE notes (
        note_id INTEGER PRIMARY KEY AUTOINCREMENT, job_id INTEGER NOT NULL, user TEXT NOT NULL, at REAL NOT NULL,
        text TEXT NOT NULL)"""
    )
    db.execute("CREATE INDEX notes_job ON notes (job_id, note_id)")
    db.execute(
        """CREATE TABLE reports (
        report_id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, project TEXT NOT NULL, user TEXT NOT NULL,
        published_at REAL NOT NULL, sha256 TEXT NOT NULL, tree TEXT NOT NULL, size_bytes INTEGER NOT NULL)"""
    )


@migrations()
def tell_departures_apart(db: Database) -> None:
    """Adds whether a machine leaves by a notice or by whose drain, and what holds a job once its attempt has ended.

    Until then the first was told by the words of the machine's detail, and the second by the reason of the stop.
    """
    db.execute("ALTER TABLE nodes ADD COLUMN notice_s REAL")
    db.execute("ALTER TABLE nodes ADD COLUMN drained_by TEXT NOT NULL DEFAULT ''")
    db.execute("ALTER TABLE attempts ADD COLUMN held_by TEXT")
    for sql in SQL_FOR_BOTH["tell_departures_apart"]:
        db.execute(sql)


@migrations()
def drop_shadow_notes_and_reports(db: Database) -> None:
    """Drops the policy in the shadow, notes on jobs and published reports, which no part of the server uses."""
    for sql in SQL_FOR_BOTH["drop_shadow_notes_and_reports"]:
        db.execute(sql)


@migrations()
def tell_preparing_parts(db: Database) -> None:
    """Adds whether the ranks of a part still bring what they need, which does not count as running."""
    db.execute("ALTER TABLE parts ADD COLUMN brings INTEGER NOT NULL DEFAULT 0")


@migrations()
def keep_speeds_per_project(db: Database) -> None:
    """Gives each project what was learnt of the kinds of its jobs: all projects shared it until then."""
    for sql in SQL_FOR_BOTH["keep_speeds_per_project"]:
        db.execute(sql)
