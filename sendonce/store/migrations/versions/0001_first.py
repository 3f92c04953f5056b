"""The first schema: tables, and the functions that any language can call."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FILES = (
    "0001_tables.sql",
    "0001_continuity.sql",
    "0001_actions.sql",
    "0001_erasure.sql",
    "0001_watching.sql",
    "0001_operators.sql",
    "0001_take_events.sql",
    "0001_topics.sql",
    "0001_finals.sql",
    "0001_enqueue.sql",
    "0001_asking.sql",
    "0001_roles.sql",
)
"""In the order in which they are executed."""


def upgrade() -> None:
    """Create everything. The SQL stands in files beside this one, to be read as SQL."""
    here = Path(__file__).parent
    for name in FILES:
        # psycopg itself: a file holds many statements, and no colon or percent sign in it is a parameter.
        driver = op.get_bind().connection.driver_connection
        assert driver is not None
        driver.execute((here / name).read_text(encoding="utf-8"))


def downgrade() -> None:
    """There is nothing older to go back to."""
    raise NotImplementedError("0001 is the first schema; drop the schema 'sendonce' by hand to remove it")
