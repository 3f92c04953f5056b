"""The e-mail backend: Django's mail becomes rows in the transaction that is open."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from django.core.mail.backends.base import BaseEmailBackend
from django.db import Error, connections, transaction

from sendonce import ConfigurationError, Enqueued, IdempotencyConflict, InvalidEmail, StoreNotReady, enqueue_many
from sendonce.django.conversion import outgoing
from sendonce.django.options import Options, load, starter

if TYPE_CHECKING:
    from django.core.mail import EmailMessage

    from sendonce import OutgoingEmail

logger = logging.getLogger(__name__)


class EmailBackend(BaseEmailBackend):
    """Enqueues instead of sending, through Django's own connection: sent once the transaction commits.

    Outside ``atomic`` each call is a transaction of its own. Every message needs a key
    (:func:`~sendonce.django.conversion.outgoing` says where it comes from). Messages of one call are written all or
    none, unless ``fail_silently``: then each by itself, and one that is invalid, whose key is taken by other content,
    or that the store does not take, is logged by its key and not counted. What no mail could get through is raised all
    the same: :class:`~sendonce.errors.ConfigurationError`, for a missing key too.
    """

    def __init__(self, fail_silently: bool = False, **kwargs: Any) -> None:
        """``fail_silently`` is also an option in ``MAILERS`` (Django 6.1), the only one."""
        super().__init__(**kwargs)
        self.fail_silently = fail_silently

    def send_messages(self, email_messages: Iterable[EmailMessage]) -> int:
        """Enqueue them; returns how many are in the store now, those that were there already included."""
        options = load()
        rule = options.rule()
        wanted = [message for message in email_messages or () if message.recipients()]
        if not self.fail_silently:
            return len(_enqueue([outgoing(message, options, rule) for message in wanted], options))
        count = 0
        for message in wanted:
            try:
                count += len(_enqueue([outgoing(message, options, rule)], options))
            except (InvalidEmail, IdempotencyConflict, StoreNotReady, Error) as error:
                key = f" key={error.key}" if isinstance(error, IdempotencyConflict) else ""
                logger.warning("a mail was not enqueued:%s %s", key, type(error).__name__)
        return count


def _enqueue(emails: list[OutgoingEmail], options: Options) -> list[Enqueued]:
    if not emails:
        return []
    connection = connections[options.database]
    # Inside of the caller's transaction this is a savepoint: what fails here leaves that one usable.
    with transaction.atomic(using=options.database):
        connection.validate_no_broken_transaction()
        # Not by a cursor of Django's, which logs statements with their parameters when DEBUG is on: those are mails.
        with connection.wrap_database_errors:
            mails = enqueue_many(driver(connection, options.database), emails)
        if (starts := starter(options)) is not None:
            transaction.on_commit(partial(starts.start, *mails), using=options.database, robust=True)
    return mails


def driver(connection: Any, alias: str) -> psycopg.Connection[Any]:
    found = connection.connection
    if not isinstance(found, psycopg.Connection):
        raise ConfigurationError(
            f"database {alias!r} is not reached by psycopg 3: use the engine django.db.backends.postgresql, "
            "and uninstall psycopg2 if psycopg 3 is not used beside it; or name another alias in SENDONCE['DATABASE']"
        )
    return found
