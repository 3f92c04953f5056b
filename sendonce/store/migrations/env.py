"""Alembic's environment: the connection is handed in by :func:`sendonce.store.migrate.migrate`."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table="schema_version",
    version_table_schema="sendonce",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
