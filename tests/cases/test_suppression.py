"""Who is taken off a mail between two attempts gets it by no way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from sendonce.policy import RetryPolicy

if TYPE_CHECKING:
    from sendonce.policy import LanePolicy
    from tests.cases.conftest import Office


Lane = Callable[..., "LanePolicy"]


async def test_a_request_that_was_made_and_never_offered_is_made_anew(office: Office, lane: Lane) -> None:
    # Nobody listens, so that nothing can have been offered.
    await office.gateway.close()
    often = lane(retry=RetryPolicy(delays=(0.5,), jitter=0, max_attempts=100))
    async with office.worker(often, breaker_mails=1000):
        key = await office.enqueue(account="gateway", to=["ann@example.org", "bob@example.org"])
        await office.until_row("SELECT 1 FROM sendonce.email WHERE key = %s AND attempts >= 1", [key])
        await office.rows(
            "INSERT INTO sendonce.suppression (account, mailbox, reason, source, actor)"
            " VALUES ('gateway', 'bob@example.org', 'manual', 'test', 'me')"
        )
        await office.gateway.start()
        found = await office.until_stage(key, "sent", "dead", "unknown")
    assert (found["stage"], found["partial"]) == ("sent", True)
    assert [json.loads(mail.content)["to"] for mail in office.gateway.mailbox.mails()] == [["ann@example.org"]]
    recipients = await office.rows("SELECT stage FROM sendonce.recipient ORDER BY ordinal")
    assert [row["stage"] for row in recipients] == ["accepted", "suppressed"]
