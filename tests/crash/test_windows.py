"""The answer to an accepted mail is lost, and nobody works until the provider's window is over, or nearly so.

Within it the same request is made again and the mail is sent, once. After it nothing is sent: what the provider can be
asked settles the mail, and otherwise it stays unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.crash.dying import Point, check, die
from tests.crash.world import WINDOW_MARGIN

if TYPE_CHECKING:
    from tests.crash.world import World

OUTAGE_SECONDS = 1800.0
SLACK = 30.0
"""For what the test itself takes."""

INSIDE = OUTAGE_SECONDS + WINDOW_MARGIN + SLACK
IN_THE_MARGIN = OUTAGE_SECONDS + WINDOW_MARGIN - SLACK
OUTSIDE = OUTAGE_SECONDS / 3

ENDS = {
    # Requests that were made, the stage, and what led to it.
    Point("resend", "accepted", window=INSIDE): (2, "sent", "answered"),
    Point("resend", "accepted", window=IN_THE_MARGIN): (1, "unknown", "silent"),
    Point("resend", "accepted", window=OUTSIDE): (1, "unknown", "silent"),
    Point("resend", "before settle", window=OUTSIDE): (1, "unknown", "silent"),
    Point("sparkpost", "accepted", window=OUTSIDE): (1, "sent", "look_up"),
    # What its key does is not confirmed: for however short a time it is not relied on.
    Point("brevo", "accepted"): (1, "sent", "look_up"),
    Point("brevo that finds nothing", "accepted"): (1, "unknown", "silent"),
}


async def test_an_outage_longer_than_the_window_ends_in_a_look_up_or_unknown_and_a_shorter_one_sent(
    world: World,
) -> None:
    mails = await die(world, list(ENDS), OUTAGE_SECONDS)
    await check(mails)
    for mail, wanted in zip(mails, ENDS.values(), strict=True):
        last = "SELECT to_stage, cause FROM sendonce.transition WHERE email_id = %s ORDER BY id DESC LIMIT 1"
        [ended] = await world.rows(last, [mail.email_id])
        assert (len(mail.posts()), ended["to_stage"], ended["cause"]) == wanted, str(mail.point)
        # The same request each time, under the same key: one copy of what it asks for.
        assert len({(request.key, request.body) for request in mail.posts()}) == 1, str(mail.point)
        assert world.copies(mail.key) == 1, str(mail.point)
