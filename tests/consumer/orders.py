"""Workflows of an application, as its team writes them: run in the default sandbox, and read by type checkers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from temporalio import workflow

import sendonce.workflow
from sendonce.workflow import EmailFinal, MailCancelled, MailFailed, MailMissing, MailNotSent


@dataclass
class Mail:
    """What an activity of the application's own returned after it had enqueued and committed."""

    key: str
    prefix: str
    account: str = "default"
    lane: str = "default"


@workflow.defn
class Confirm:
    """Sends, and fails with the mail."""

    @workflow.run
    async def run(self, mail: Mail) -> EmailFinal:
        """Its result is the mail's."""
        return await sendonce.workflow.send(
            mail.key, account=mail.account, lane=mail.lane, task_queue_prefix=mail.prefix
        )


@workflow.defn
class ConfirmAll:
    """Sends several, and says what became of each."""

    @workflow.run
    async def run(self, mails: list[Mail]) -> list[str]:
        """One word for each mail."""
        return list(await asyncio.gather(*(self._say(mail) for mail in mails)))

    async def _say(self, mail: Mail) -> str:
        try:
            final = await sendonce.workflow.send(mail.key, account=mail.account, task_queue_prefix=mail.prefix)
        except MailFailed as error:
            return f"refused {error.final.code}"
        except MailCancelled as error:
            return f"replaced by {error.final.superseded_by[-1:]}"
        except MailNotSent as error:
            return f"{error.type}, maybe accepted: {error.final.maybe_accepted}"
        except MailMissing as error:
            return str(error.type)
        return f"sent after {final.attempts}"


@workflow.defn
class Listen:
    """Waits for the signal that ``on_final`` names."""

    def __init__(self) -> None:
        self._ends: dict[int, EmailFinal] = {}

    @workflow.signal
    def mail_ended(self, final: EmailFinal) -> None:
        """The same end twice is one."""
        self._ends[final.id] = final

    @workflow.run
    async def run(self, wanted: int) -> list[EmailFinal]:
        """So many mails are awaited."""
        await workflow.wait_condition(lambda: len(self._ends) >= wanted)
        return list(self._ends.values())
