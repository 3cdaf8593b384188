"""The schema: every table of the ledger, and the triggers that make some of them append-only.

Append-only holds for every client that leaves the schema alone, whatever its settings: UPDATE, DELETE, and any INSERT
that meets an existing key (so also INSERT OR REPLACE) are refused. The one exception is a row that is being archived,
and it leaves a record that stays. Whoever drops a trigger is outside the promise.
"""

from __future__ import annotations

APPLICATION_ID = 0x53564147
"""Marks the file as a ledger (`PRAGMA application_id`): "SVAG" in ASCII."""
VERSION = 1
"""`PRAGMA user_version` of this schema."""


def append_only(table: str, *keys: tuple[str, ...], archived_by: str | None = None) -> tuple[str, ...]:
    """Return the triggers that make a table append-only.

    Parameters:
        table: The table's name.
        keys: Every unique key of the table, as tuples of columns.
        archived_by: The column that names a row in `archivable`, for a table whose rows may move to an archive.

    Returns:
        Three CREATE TRIGGER statements, with messages that begin "update refused", "delete refused", "replace refused".
    """
    taken = " OR ".join(
        f"EXISTS (SELECT 1 FROM {table} WHERE {' AND '.join(f'{column} IS NEW.{column}' for column in key)})"  # noqa: S608
        for key in keys
    )
    stays = "TRUE"
    if archived_by is not None:
        key = f"CAST(OLD.{archived_by} AS TEXT)"
        stays = f"NOT EXISTS (SELECT 1 FROM archivable WHERE table_name = '{table}' AND key = {key})"  # noqa: S608
    rules = (("update", "UPDATE", "TRUE"), ("delete", "DELETE", stays), ("replace", "INSERT", taken))
    return tuple(
        f"CREATE TRIGGER {table}_no_{name} BEFORE {action} ON {table} WHEN {condition} "
        f"BEGIN SELECT RAISE(ABORT, '{name} refused: {table} is append-only'); END"
        for name, action, condition in rules
    )


BASE = (
    """
    CREATE TABLE settings (
        name  TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    # An automatic key stands as -1 in a BEFORE INSERT trigger, so a row -1 would block every append: hence the CHECK.
    """
    CREATE TABLE events (
        seq     INTEGER PRIMARY KEY CHECK (seq > 0),
        at      TEXT NOT NULL,
        kind    TEXT NOT NULL,
        actor   TEXT NOT NULL,
        subject TEXT NOT NULL,
        detail  TEXT NOT NULL CHECK (json_valid(detail))
    ) STRICT
    """,
    *append_only("events", ("seq",), archived_by="seq"),
    """
    CREATE TRIGGER events_only_grow BEFORE INSERT ON events
    WHEN NEW.seq BETWEEN 1 AND (SELECT max(seq) FROM events) AND NOT EXISTS (SELECT 1 FROM events WHERE seq = NEW.seq)
    BEGIN SELECT RAISE(ABORT, 'insert refused: the number of an event is never used again'); END
    """,
)

AUTOMATION: tuple[str, ...] = (
    # `cursor_at` is the first slot without a row in automation_slots; `next_run_at` is when to look again. They differ
    # only while a run is open. `revision` grows with every change and is what a decision is compared against.
    """
    CREATE TABLE automations (
        automation_id      TEXT PRIMARY KEY,
        payload            TEXT NOT NULL,
        interval_seconds   REAL NOT NULL CHECK (interval_seconds >= 1),
        first_run_at       TEXT NOT NULL,
        max_failures       INTEGER NOT NULL CHECK (max_failures >= 1),
        catch_up           TEXT NOT NULL CHECK (catch_up IN ('once', 'skip')),
        grace_seconds      REAL NOT NULL CHECK (grace_seconds >= 0),
        lease_seconds      REAL NOT NULL CHECK (lease_seconds >= 1),
        retry_seconds      REAL CHECK (retry_seconds >= 0),  -- NULL: the interval
        version            INTEGER NOT NULL DEFAULT 1,
        revision           INTEGER NOT NULL DEFAULT 1,
        enabled            INTEGER NOT NULL DEFAULT 1 CHECK (enabled IN (0, 1)),
        disabled_reason    TEXT,
        disabled_at        TEXT,
        condition_state    TEXT NOT NULL DEFAULT '{}' CHECK (json_type(condition_state) = 'object'),
        failure_count      INTEGER NOT NULL DEFAULT 0,
        condition_failures INTEGER NOT NULL DEFAULT 0,  -- how many of them, at the end of the row, are the condition's
        quiet_ticks        INTEGER NOT NULL DEFAULT 0,
        last_status        TEXT,
        next_run_at        TEXT NOT NULL,
        cursor_at          TEXT NOT NULL,
        floor_at           TEXT NOT NULL,  -- the earliest due time that someone asked for
        epoch              INTEGER NOT NULL DEFAULT 0,  -- how often the clock was found to have stepped back
        created_at         TEXT NOT NULL,
        CHECK (enabled = (disabled_at IS NULL))
    ) STRICT
    """,
    "CREATE INDEX automations_due ON automations (next_run_at) WHERE enabled = 1",
    # A due time more than an interval ahead that nobody asked for: how far, in seconds, is what the index is sorted by.
    """
    CREATE INDEX automations_ahead ON automations (julianday(next_run_at) * 86400 - interval_seconds)
    WHERE enabled = 1 AND floor_at < next_run_at
    """,
    """
    CREATE TABLE automation_runs (
        run_id           TEXT PRIMARY KEY,
        automation_id    TEXT NOT NULL REFERENCES automations (automation_id),
        slot_at          TEXT NOT NULL,
        slot_seq         INTEGER NOT NULL,
        message          TEXT NOT NULL,
        status           TEXT NOT NULL CHECK (status IN ('RUNNING', 'SUCCEEDED', 'FAILED', 'ABANDONED')),
        attempt          INTEGER NOT NULL DEFAULT 1,  -- fences the commit
        version          INTEGER NOT NULL,  -- of the definition under which this attempt began
        holder           TEXT NOT NULL,
        claimed_at       TEXT NOT NULL,
        lease_expires_at TEXT NOT NULL,
        lease_expired_at TEXT,  -- when a call found it over; such a lease never lives again
        renewals         INTEGER NOT NULL DEFAULT 0,
        interruptions    INTEGER NOT NULL DEFAULT 0,
        ended_at         TEXT,
        error            TEXT
    ) STRICT
    """,
    """
    CREATE UNIQUE INDEX automation_runs_one_open ON automation_runs (automation_id)
    WHERE status IN ('RUNNING', 'FAILED')
    """,
    # What became of each slot, as ranges. A row with slots = 0 is a run that took the place of another within its slot.
    """
    CREATE TABLE automation_slots (
        automation_id TEXT NOT NULL REFERENCES automations (automation_id),
        seq           INTEGER NOT NULL,
        epoch         INTEGER NOT NULL,
        first_slot    TEXT NOT NULL,
        last_slot     TEXT NOT NULL,
        slots         INTEGER NOT NULL CHECK (slots >= 0),
        fate          TEXT NOT NULL CHECK (fate IN ('RUNNING', 'SUCCEEDED', 'FAILED', 'ABANDONED', 'NO_FIRE',
                      'CONDITION_FAILED', 'COALESCED', 'MISSED', 'DISABLED', 'SKIPPED')),
        run_id        TEXT REFERENCES automation_runs (run_id) DEFERRABLE INITIALLY DEFERRED,
        late_seconds  REAL NOT NULL,  -- the largest lateness in the range
        noted_at      TEXT NOT NULL,
        PRIMARY KEY (automation_id, seq),
        CHECK (first_slot <= last_slot)
    ) STRICT, WITHOUT ROWID
    """,
)

HEARTBEAT: tuple[str, ...] = (
    """
    CREATE TABLE heartbeats (
        source   TEXT PRIMARY KEY,
        first_at TEXT NOT NULL,
        last_at  TEXT NOT NULL,  -- of the latest beat to arrive, whatever its clock said
        beats    INTEGER NOT NULL DEFAULT 1
    ) STRICT, WITHOUT ROWID
    """,
)

PULSE: tuple[str, ...] = (
    """
    CREATE TABLE signals (
        seq              INTEGER PRIMARY KEY CHECK (seq > 0),
        signal_id        TEXT NOT NULL UNIQUE,
        kind             TEXT NOT NULL,
        payload          TEXT NOT NULL,
        payload_sha256   TEXT,  -- set when the payload has moved to an archive: its id stays taken
        recorded_at      TEXT NOT NULL,
        status           TEXT NOT NULL DEFAULT 'WAITING' CHECK (status IN ('WAITING', 'RUNNING', 'FAILED', 'SUCCEEDED',
                         'DECLINED', 'GIVEN_UP')),
        due_at           TEXT,  -- after a failure: when to try again
        run_id           TEXT UNIQUE,  -- given by the first claim, kept by every later one
        attempt          INTEGER NOT NULL DEFAULT 0,  -- fences the commit
        failure_count    INTEGER NOT NULL DEFAULT 0,
        holder           TEXT,
        lease_seconds    REAL,
        lease_expires_at TEXT,
        lease_expired_at TEXT,  -- when a call found it over; such a lease never lives again
        interruptions    INTEGER NOT NULL DEFAULT 0,
        revision         INTEGER NOT NULL DEFAULT 1,
        ended_at         TEXT,
        error            TEXT
    ) STRICT
    """,
    "CREATE INDEX signals_open ON signals (seq) WHERE status IN ('WAITING', 'RUNNING', 'FAILED')",
)

CONTEXT: tuple[str, ...] = (
    """
    CREATE TABLE transcript_messages (
        session_id   TEXT    NOT NULL,
        seq          INTEGER NOT NULL CHECK (seq > 0),
        role         TEXT    NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
        content      TEXT    NOT NULL,
        tool_calls   TEXT    NOT NULL CHECK (json_valid(tool_calls)),
        tool_call_id TEXT    CHECK (tool_call_id IS NULL OR role = 'tool'),
        exchange     INTEGER CHECK (exchange <= seq),
        created_at   TEXT    NOT NULL,
        PRIMARY KEY (session_id, seq),
        FOREIGN KEY (session_id, exchange) REFERENCES transcript_messages (session_id, seq),
        CHECK ((exchange IS NULL) = (role IN ('system', 'user'))),
        CHECK (tool_calls = '[]' OR role = 'assistant')
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX transcript_messages_of_exchange ON transcript_messages (session_id, exchange, seq)",
    *append_only("transcript_messages", ("session_id", "seq")),
    # `through_seq` refers to a row, so that no marker can reach beyond the end of its transcript.
    """
    CREATE TABLE context_compactions (
        session_id      TEXT    NOT NULL,
        marker          INTEGER NOT NULL CHECK (marker > 0),
        through_seq     INTEGER NOT NULL,
        ranges          TEXT    NOT NULL CHECK (json_valid(ranges)),
        summary         TEXT    NOT NULL,
        previous_digest TEXT    NOT NULL,
        digest          TEXT    NOT NULL,
        created_at      TEXT    NOT NULL,
        PRIMARY KEY (session_id, marker),
        FOREIGN KEY (session_id, through_seq) REFERENCES transcript_messages (session_id, seq)
    ) STRICT, WITHOUT ROWID
    """,
    *append_only("context_compactions", ("session_id", "marker")),
    # What follows is an index over the two tables above: it makes the next chunk and the view cost what they hold.
    """
    CREATE TABLE context_exchanges (
        session_id TEXT    NOT NULL,
        first_seq  INTEGER NOT NULL,
        last_seq   INTEGER NOT NULL CHECK (last_seq >= first_seq),
        rows       INTEGER NOT NULL,
        results    INTEGER NOT NULL,
        waiting    INTEGER NOT NULL CHECK (waiting >= 0),
        declared   INTEGER NOT NULL CHECK (declared IN (0, 1)),
        marker     INTEGER CHECK (marker IS NULL OR waiting = 0),
        PRIMARY KEY (session_id, first_seq),
        FOREIGN KEY (session_id, first_seq) REFERENCES transcript_messages (session_id, seq),
        FOREIGN KEY (session_id, last_seq) REFERENCES transcript_messages (session_id, seq),
        FOREIGN KEY (session_id, marker) REFERENCES context_compactions (session_id, marker)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX context_exchanges_of_marker ON context_exchanges (session_id, marker, waiting, first_seq)",
    "CREATE INDEX context_exchanges_covered ON context_exchanges (session_id, last_seq) WHERE marker IS NOT NULL",
    """
    CREATE TRIGGER context_exchanges_covered_once BEFORE UPDATE ON context_exchanges WHEN OLD.marker IS NOT NULL
    BEGIN SELECT RAISE(ABORT, 'update refused: the exchange is covered by a marker'); END
    """,
    """
    CREATE TRIGGER context_exchanges_no_delete BEFORE DELETE ON context_exchanges
    BEGIN SELECT RAISE(ABORT, 'delete refused: an exchange stays as long as its rows'); END
    """,
    # A call is here from its declaration to its result.
    """
    CREATE TABLE context_open_calls (
        session_id TEXT    NOT NULL,
        call_id    TEXT    NOT NULL,
        first_seq  INTEGER NOT NULL,
        PRIMARY KEY (session_id, call_id),
        FOREIGN KEY (session_id, first_seq) REFERENCES context_exchanges (session_id, first_seq)
    ) STRICT, WITHOUT ROWID
    """,
)

SESSIONS: tuple[str, ...] = (
    # The single source of incarnations and boots. It may only grow, so that neither starts again when a row is purged.
    """
    CREATE TABLE coordination_counters (
        kind    TEXT NOT NULL CHECK (kind IN ('boot', 'incarnation')),
        subject TEXT NOT NULL,
        last    INTEGER NOT NULL CHECK (last >= 1),
        PRIMARY KEY (kind, subject)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TRIGGER coordination_counters_grow BEFORE UPDATE ON coordination_counters
    WHEN NEW.kind IS NOT OLD.kind OR NEW.subject IS NOT OLD.subject OR NEW.last <= OLD.last
    BEGIN SELECT RAISE(ABORT, 'update refused: coordination_counters only grow'); END
    """,
    *append_only("coordination_counters", ("kind", "subject"))[1:],
    """
    CREATE TABLE hosts (
        host_id       TEXT PRIMARY KEY,
        boot          INTEGER NOT NULL CHECK (boot >= 1),
        registered_at TEXT NOT NULL,
        expires_at    TEXT NOT NULL,
        renewals      INTEGER NOT NULL DEFAULT 0,
        expired_at    TEXT  -- when a call found the lease expired; such a lease never lives again
    ) STRICT
    """,
    # One row per session: its latest claim. Earlier ones stand in the events. No foreign key: any row may be purged.
    """
    CREATE TABLE session_claims (
        session_id  TEXT PRIMARY KEY,
        host_id     TEXT NOT NULL,
        boot        INTEGER NOT NULL,
        incarnation INTEGER NOT NULL CHECK (incarnation >= 1),
        claimed_at  TEXT NOT NULL,
        expires_at  TEXT NOT NULL,
        renewals    INTEGER NOT NULL DEFAULT 0,
        ended       TEXT CHECK (
            ended IN ('EXPIRED', 'HOST_EXPIRED', 'HOST_RESTARTED', 'HOST_UNKNOWN', 'RELEASED', 'FINISHED')),
        ended_at    TEXT,
        CHECK ((ended IS NULL) = (ended_at IS NULL))
    ) STRICT
    """,
    """
    CREATE TABLE session_completions (
        session_id   TEXT PRIMARY KEY,
        host_id      TEXT NOT NULL,
        incarnation  INTEGER NOT NULL,
        result       TEXT NOT NULL,
        completed_at TEXT NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    *append_only("session_completions", ("session_id",)),
    """
    CREATE TABLE refused_results (
        refusal_seq   INTEGER PRIMARY KEY CHECK (refusal_seq > 0),
        session_id    TEXT NOT NULL,
        host_id       TEXT NOT NULL,
        incarnation   INTEGER NOT NULL,
        result        TEXT NOT NULL CHECK (length(CAST(result AS BLOB)) <= 16384),
        result_bytes  INTEGER NOT NULL,
        result_digest TEXT NOT NULL,
        why           TEXT NOT NULL,
        refused_at    TEXT NOT NULL
    ) STRICT
    """,
    *append_only("refused_results", ("refusal_seq",), archived_by="refusal_seq"),
    "CREATE INDEX refused_results_by_session ON refused_results (session_id, host_id, incarnation)",
)

DELIVERY: tuple[str, ...] = (
    # `attempt_*` and `lease_expires_at` describe the open attempt; when it ends, its row goes to delivery_attempts.
    """
    CREATE TABLE deliveries (
        delivery_id      TEXT PRIMARY KEY,
        payload          TEXT NOT NULL CHECK (json_valid(payload)),
        payload_sha256   TEXT,  -- set when the payload has moved to an archive: its id stays taken
        status           TEXT NOT NULL CHECK (status IN ('PENDING', 'DELIVERED', 'DEAD')),
        attempts         INTEGER NOT NULL CHECK (attempts >= 0),
        max_attempts     INTEGER NOT NULL CHECK (max_attempts >= 1),
        process_after    TEXT NOT NULL,
        enqueued_at      TEXT,  -- NULL while only a failure has named this id
        attempt_id       TEXT UNIQUE,
        attempt_number   INTEGER,
        attempt_begun_at TEXT,
        lease_expires_at TEXT,
        ended_at         TEXT,
        reason           TEXT CHECK (reason IN ('PERMANENT', 'MAX_ATTEMPTS')),
        CHECK ((status = 'PENDING') = (ended_at IS NULL)),
        CHECK ((status = 'DEAD') = (reason IS NOT NULL)),
        CHECK (attempt_id IS NULL OR
               (attempt_number IS NOT NULL AND attempt_begun_at IS NOT NULL AND lease_expires_at IS NOT NULL))
    ) STRICT
    """,
    "CREATE INDEX deliveries_pending ON deliveries (process_after) WHERE status = 'PENDING'",
    "CREATE INDEX deliveries_open ON deliveries (lease_expires_at) WHERE attempt_id IS NOT NULL",
    """
    CREATE TABLE delivery_attempts (
        attempt_id    TEXT PRIMARY KEY,
        delivery_id   TEXT NOT NULL,
        number        INTEGER NOT NULL CHECK (number >= 1),
        outcome       TEXT NOT NULL CHECK (outcome IN ('FAILED', 'SUCCEEDED', 'LAPSED', 'ABANDONED')),
        begun_at      TEXT NOT NULL,
        ended_at      TEXT NOT NULL,
        error         TEXT,
        process_after TEXT,
        UNIQUE (delivery_id, number)
    ) STRICT, WITHOUT ROWID
    """,
    *append_only("delivery_attempts", ("attempt_id",), ("delivery_id", "number"), archived_by="attempt_id"),
)

MEMORY: tuple[str, ...] = (
    # `revision` grows within one visibility at each change, so that a reader who kept the rows it saw asks only for
    # what is new or retired since. `words` are the content's words, parted once, when it is stored.
    """
    CREATE TABLE memories (
        seq             INTEGER PRIMARY KEY CHECK (seq > 0),
        memory_id       TEXT NOT NULL UNIQUE,
        visibility      TEXT NOT NULL CHECK (
                            visibility = 'public' OR (substr(visibility, 1, 6) = 'actor:' AND length(visibility) > 6)
                        ),
        revision        INTEGER NOT NULL CHECK (revision > 0),
        content         TEXT,
        words           TEXT,
        importance      REAL CHECK (importance BETWEEN 0 AND 1),
        embedding       BLOB CHECK (length(embedding) > 0 AND length(embedding) % 4 = 0),
        embedding_model TEXT,
        created_at      TEXT NOT NULL CHECK (length(created_at) = 27),
        digest          TEXT NOT NULL CHECK (length(digest) = 64),
        superseded_by   TEXT REFERENCES memories (memory_id) DEFERRABLE INITIALLY DEFERRED,
        superseded_at   TEXT,
        forgotten_at    TEXT,
        UNIQUE (visibility, revision),
        CHECK ((superseded_by IS NULL) = (superseded_at IS NULL)),
        CHECK (
            CASE WHEN forgotten_at IS NULL
                THEN content IS NOT NULL AND words IS NOT NULL AND importance IS NOT NULL
                ELSE coalesce(content, words, importance, embedding, embedding_model) IS NULL
            END
        )
    ) STRICT
    """,
    # A memory is superseded or forgotten, never edited: what was recalled can be told from what is known now.
    """
    CREATE TRIGGER memories_no_update BEFORE UPDATE ON memories
    WHEN NEW.seq IS NOT OLD.seq OR NEW.memory_id IS NOT OLD.memory_id OR NEW.visibility IS NOT OLD.visibility
        OR NEW.created_at IS NOT OLD.created_at OR NEW.digest IS NOT OLD.digest OR NEW.revision <= OLD.revision
        OR (OLD.superseded_by IS NOT NULL AND NEW.superseded_by IS NOT OLD.superseded_by)
        OR (OLD.forgotten_at IS NOT NULL AND NEW.forgotten_at IS NOT OLD.forgotten_at)
        OR (NEW.forgotten_at IS NULL AND (
            NEW.content IS NOT OLD.content OR NEW.words IS NOT OLD.words OR NEW.importance IS NOT OLD.importance
            OR NEW.embedding IS NOT OLD.embedding OR NEW.embedding_model IS NOT OLD.embedding_model))
    BEGIN SELECT RAISE(ABORT, 'update refused: a memory is superseded or forgotten, never edited'); END
    """,
    """
    CREATE TRIGGER memories_no_delete BEFORE DELETE ON memories
    BEGIN SELECT RAISE(ABORT, 'delete refused: a memory is forgotten, its id stays taken'); END
    """,
    """
    CREATE TRIGGER memories_no_replace BEFORE INSERT ON memories
    WHEN EXISTS (SELECT 1 FROM memories WHERE seq IS NEW.seq OR memory_id IS NEW.memory_id)
    BEGIN SELECT RAISE(ABORT, 'replace refused: the id is taken'); END
    """,
)

ARCHIVE: tuple[str, ...] = (
    # One row per archive. `event_seq` is the number that its event `ledger.archived` is going to have: until an event
    # has that number, rows may leave; from then on none may. So each row that left stands behind a row here.
    """
    CREATE TABLE archives (
        archive     INTEGER PRIMARY KEY CHECK (archive > 0),
        before      TEXT NOT NULL,
        file        TEXT NOT NULL,
        digest      TEXT NOT NULL UNIQUE CHECK (length(digest) = 64),
        counts      TEXT NOT NULL CHECK (json_valid(counts)),
        event_seq   INTEGER NOT NULL UNIQUE,
        archived_at TEXT NOT NULL
    ) STRICT
    """,
    *append_only("archives", ("archive",), ("digest",), ("event_seq",)),
    """
    CREATE TRIGGER archives_end_with_an_event BEFORE INSERT ON archives
    WHEN NEW.event_seq IS NOT (SELECT max(seq) + 1 FROM events)
    BEGIN SELECT RAISE(ABORT, 'insert refused: the next event ends an archive'); END
    """,
    # What is leaving, row by row; filled and emptied in the transaction of one archive.
    """
    CREATE TABLE archiving (
        table_name TEXT NOT NULL,
        key        TEXT NOT NULL,
        PRIMARY KEY (table_name, key)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE VIEW archivable AS SELECT table_name, key FROM archiving
    WHERE EXISTS (SELECT 1 FROM archives WHERE event_seq > (SELECT max(seq) FROM events))
    """,
)

SCHEMA: tuple[str, ...] = (
    *BASE,
    *AUTOMATION,
    *HEARTBEAT,
    *PULSE,
    *CONTEXT,
    *SESSIONS,
    *DELIVERY,
    *MEMORY,
    *ARCHIVE,
)
"""Every statement, in order."""
