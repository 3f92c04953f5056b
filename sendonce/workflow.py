"""For workflows of your own: send a mail that an activity of yours has enqueued, and learn how it ended.

Import it in workflow code as it is, sandbox on. The mail itself never enters your history: only its key does.
"""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ApplicationError, ChildWorkflowError

from sendonce.workflows.outcome import EmailOutcome
from sendonce.workflows.port import NO_SUCH_ROW, Awaited, EmailFinal, task_queue

__all__ = [
    "EmailFinal",
    "MailCancelled",
    "MailDead",
    "MailExpired",
    "MailFailed",
    "MailMissing",
    "MailNotSent",
    "send",
]


class MailNotSent(ApplicationError):
    """A mail ended, and not as ``sent``. Uncaught, it fails your workflow with the stage as the failure's type."""

    def __init__(self, final: EmailFinal) -> None:
        doubt = ", may have been accepted" if final.maybe_accepted else ""
        super().__init__(
            f"the mail with key {final.key!r} in account {final.account!r} is {final.stage}: "
            f"{final.attempts} attempts, last reply {final.code} {final.enhanced}".rstrip()
            + doubt,
            type=final.stage,
            non_retryable=True,
        )
        self.final = final
        """How it ended."""


class MailFailed(MailNotSent):
    """Refused for good."""


class MailDead(MailNotSent):
    """Its attempts or its age ran out."""


class MailExpired(MailNotSent):
    """Its ``expires_at`` passed."""


class MailCancelled(MailNotSent):
    """Withdrawn, or replaced by a newer mail of its topic: ``final.superseded_by``."""


class MailMissing(ApplicationError):
    """There is no such mail in the store: its transaction was not committed, or it has been erased."""

    def __init__(self, account: str, key: str) -> None:
        super().__init__(f"no mail with key {key!r} in account {account!r}", type=NO_SUCH_ROW, non_retryable=True)


_BY_STAGE = {"failed": MailFailed, "dead": MailDead, "expired": MailExpired, "cancelled": MailCancelled}


async def send(
    key: str, *, account: str = "default", lane: str = "default", task_queue_prefix: str = "sendonce"
) -> EmailFinal:
    """Wait until the mail under ``key`` has been sent, and return how; to be awaited in a workflow.

    First let an activity of yours enqueue the mail and commit. A worker then sends it whether or not anybody waits. The
    wait is a child workflow, ``EmailOutcome``, on the task queue of ``lane``, any lane that a worker serves. It ends
    with its parent or when the call is cancelled; the mail goes on, and a second call waits for the same mail.

    Raises :class:`MailFailed`, :class:`MailDead`, :class:`MailExpired` or :class:`MailCancelled` (all of them
    :class:`MailNotSent`) by the stage in which it ended, :class:`MailMissing` when there is no such mail, and
    ``ChildWorkflowError`` when the child workflow was ended by somebody.
    """
    try:
        final = await workflow.execute_child_workflow(
            EmailOutcome.run,
            Awaited(key, account),
            task_queue=task_queue(task_queue_prefix, lane),
            # Nothing is lost with it, and nothing is to be cleaned up.
            parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
            cancellation_type=workflow.ChildWorkflowCancellationType.TRY_CANCEL,
        )
    except ChildWorkflowError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type == NO_SUCH_ROW:
            raise MailMissing(account, key) from None
        raise
    if final.stage != "sent":
        raise _BY_STAGE.get(final.stage, MailNotSent)(final)
    return final
