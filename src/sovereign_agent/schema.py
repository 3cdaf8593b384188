"""The schema: every table of the ledger, and the triggers that make some of them append-only.

Append-only holds for every client that leaves the schema alone, whatever its settings: UPDATE, DELETE, and any INSERT
that meets an existing key (so also INSERT OR REPLACE) are refused. Whoever drops a trigger is outside the promise.
"""

from __future__ import annotations

APPLICATION_ID = 0x53564147
"""Marks the file as a ledger (`PRAGMA application_id`): "SVAG" in ASCII."""
VERSION = 1
"""`PRAGMA user_version` of this schema."""


def append_only(table: str, *keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the triggers that make a table append-only.

    Parameters:
        table: The table's name.
        keys: Every unique key of the table, as tuples of columns.

    Returns:
        Three CREATE TRIGGER statements, whose messages begin with "update refused", "delete refused", "replace refused".
    """
    taken = " OR ".join(
        f"EXISTS (SELECT 1 FROM {table} WHERE {' AND '.join(f'{column} IS NEW.{column}' for column in key)})"
        for key in keys
    )
    return (
        f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'update refused: {table} is append-only'); END",
        f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'delete refused: {table} is append-only'); END",
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN {taken} "
        f"BEGIN SELECT RAISE(ABORT, 'replace refused: {table} is append-only'); END",
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
    *append_only("events", ("seq",)),
)

AUTOMATION: tuple[str, ...] = ()

HEARTBEAT: tuple[str, ...] = ()

PULSE: tuple[str, ...] = ()

CONTEXT: tuple[str, ...] = ()

SESSIONS: tuple[str, ...] = ()

DELIVERY: tuple[str, ...] = ()

MEMORY: tuple[str, ...] = ()

SCHEMA: tuple[str, ...] = (
    *BASE,
    *AUTOMATION,
    *HEARTBEAT,
    *PULSE,
    *CONTEXT,
    *SESSIONS,
    *DELIVERY,
    *MEMORY,
)
"""Every statement, in order."""
