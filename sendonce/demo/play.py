"""The demo, in order: what the bookstore does, and what goes wrong around it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from psycopg.rows import dict_row

from sendonce.demo.shop import Bookstore, PaymentDeclined
from sendonce.demo.verdict import Planned, Row, Verdict, judge
from sendonce.demo.world import DemoFailed, World
from sendonce.message import OutgoingEmail
from sendonce.stages import FINAL
from sendonce.testing import http_misbehaviour as http
from sendonce.testing import smtp_misbehaviour as smtp

SHOP = "Bookstore <orders@bookstore.example>"
THROTTLED = "news@bookstore.example"
STEP_SECONDS = 30.0
"""How long one step may take."""

END_SECONDS = 90.0
"""How long the end is awaited, from the last event on, before the demo says what did not end."""

ROWS = """
SELECT e.key, e.account, e.lane, e.stage, e.attempts, e.next_attempt_at IS NULL AS held,
    concat_ws(' ', e.last_code, e.last_enhanced) AS reply,
    coalesce((SELECT array_agg(a.kind) FROM sendonce.alarm a WHERE a.email_id = e.id AND a.closes IS NULL
        AND NOT EXISTS (SELECT FROM sendonce.alarm c WHERE c.closes = a.id)), '{}') AS alarms
FROM sendonce.email e ORDER BY e.created_at
"""


@dataclass(slots=True)
class Played:
    """What came of it."""

    verdict: Verdict
    kills: int
    login_code_seconds: float
    seconds: float


class Play:
    """One performance in ``world``."""

    def __init__(self, world: World, shop: Bookstore, *, mails: int, begun: float) -> None:
        """``mails``: how many bulk mails are in the way of the login code; 10 to 2000. ``begun``: monotonic time."""
        self.world = world
        self.shop = shop
        self.mails = mails
        self.plans: list[Planned] = []
        self._numbers = itertools.count(1)
        self._begun = begun

    async def run(self) -> Played:
        """Play it all and judge the end."""
        say = self.world.say
        await asyncio.to_thread(self.shop.open)
        self._script()

        say("orders come in; five payments are declined, and five customers press the button twice")
        await self._ordinary_orders()
        await self._kill("smtp:rcpt", "killed before anything was offered")
        await self._kill("smtp:dot", "SMTP: killed between accepted and marked", uncertain=True)
        await self._troubled_orders()
        await self._kill("http:accepted", "Resend: killed between accepted and marked", account="receipts")

        say(f"{self.mails} newsletters are queued; a login code is asked for in the middle of them")
        login = await self._login_code_amid_bulk()

        say("Temporal is killed; orders go on; Temporal comes back")
        restarting = asyncio.create_task(self.world.restart_temporal())
        for _ in range(3):
            await self._order("ordered while Temporal was down")
        await restarting

        say("waiting until every mail has ended, or is unknown with its alarm")
        rows = await self._end()
        verdict = judge(self.plans, rows, self.copies())
        return Played(verdict, self.world.kills, login, time.monotonic() - self._begun)

    def _script(self) -> None:
        """How the servers misbehave, besides killing the worker."""
        greylist = smtp.greylist()
        seen = greylist.when
        assert seen is not None
        greylist.when = lambda mailbox: mailbox.startswith("greylisted") and seen(mailbox)
        throttle = smtp.shut_down("mail", times=1)
        throttle.when = lambda sender: sender == THROTTLED
        refuse = smtp.reject_mailbox("")
        refuse.when = lambda mailbox: mailbox.startswith("nobody")
        cut = smtp.cut_after_dot()
        cut.when = lambda mailboxes: mailboxes.startswith("cut")
        self.world.smtp.script.add(greylist, throttle, refuse, cut)
        for provider in (self.world.resend, self.world.postmark):
            lose = http.lose_answer(times=1)
            lose.when = lambda mailboxes: mailboxes.startswith("lost")
            provider.script.add(lose)

    def _plan(
        self,
        story: str,
        names: tuple[str, ...] = ("reader",),
        *,
        refused: tuple[str, ...] = (),
        uncertain: bool = False,
        rolled_back: bool = False,
        what: str = "order",
    ) -> Planned:
        number = next(self._numbers)
        mailboxes = tuple(f"{name}-{number:04d}@example.org" for name in names)
        plan = Planned(
            f"{what}-{number:04d}",
            mailboxes,
            story,
            frozenset(m for m in mailboxes if m.partition("-")[0] in refused),
            uncertain,
            rolled_back,
        )
        self.plans.append(plan)
        return plan

    @staticmethod
    def _mail(plan: Planned, *, account: str = "default", lane: str = "default", sender: str = SHOP) -> OutgoingEmail:
        return OutgoingEmail(
            key=plan.key,
            account=account,
            lane=lane,
            sender=sender,
            to=plan.recipients,
            subject=f"Your {plan.key.replace('-', ' ')}",
            text="Thank you.",
            requested_by="bookstore",
        )

    async def _order(
        self,
        story: str,
        names: tuple[str, ...] = ("reader",),
        *,
        account: str = "default",
        sender: str = SHOP,
        refused: tuple[str, ...] = (),
        uncertain: bool = False,
    ) -> Planned:
        plan = self._plan(story, names, refused=refused, uncertain=uncertain)
        await asyncio.to_thread(self.shop.order, self._mail(plan, account=account, sender=sender))
        return plan

    async def _ordinary_orders(self) -> None:
        for _ in range(10):
            await self._order("ordinary orders")
        for _ in range(5):
            plan = self._plan("payment declined: rolled back", rolled_back=True)
            try:
                await asyncio.to_thread(self.shop.order, self._mail(plan), declined=True)
            except PaymentDeclined:
                continue
            raise DemoFailed("a declined payment went through")
        for _ in range(5):
            plan = self._plan("enqueued twice at the same time")
            both = await asyncio.gather(
                *(asyncio.to_thread(self.shop.order, self._mail(plan)) for _ in range(2)),
            )
            if sorted(one.created for one in both) != [False, True]:
                raise DemoFailed("two concurrent orders under one key were not one mail")

    async def _troubled_orders(self) -> None:
        await self._order("greylisted: 451, then 250", ("greylisted",))
        await self._order("no such mailbox: 550 5.1.1", ("nobody",), refused=("nobody",))
        await self._order("one of three recipients refused", ("ann", "nobody", "ben"), refused=("nobody",))
        await self._order("throttled: 421, then accepted", sender=THROTTLED)
        await self._order("SMTP: taken, and the line cut without an answer", ("cut",), uncertain=True)
        await self._order("Resend: answer lost, asked again under its key", ("lost",), account="receipts")
        await self._order("Postmark: answer lost, found by looking it up", ("lost",), account="shipping")
        self.world.resend.script.add(http.unavailable(times=3))
        await self._order("Resend: 503 for a while", account="receipts")

    async def _kill(self, point: str, story: str, *, account: str = "default", uncertain: bool = False) -> None:
        """An order whose worker is killed when the server comes to ``point``; then a new worker."""
        plan = self._plan(story, ("victim",), uncertain=uncertain)
        killed = self.world.kill_at(point, plan.key, plan.recipients[0])
        await asyncio.to_thread(self.shop.order, self._mail(plan, account=account))
        await self._until(killed.is_set, f"the worker never came to {point}")
        self.world.say(f"worker killed ({story}); starting another")
        await self.world.start_worker()

    async def _login_code_amid_bulk(self) -> float:
        bulk = [self._plan("newsletters", what="news") for _ in range(self.mails)]
        mails = [self._mail(plan, lane="bulk") for plan in bulk]
        await asyncio.to_thread(self.shop.notify, *mails)

        def arrived(*plans: Planned) -> int:
            copies = self.copies()
            return sum(copies[plan.recipients[0]] for plan in plans)

        await self._until(lambda: arrived(*bulk) >= max(1, self.mails // 5), "too few newsletters arrived")
        login = self._plan("login code in the middle of the newsletters", what="login")
        await asyncio.to_thread(self.shop.notify, self._mail(login, lane="critical"))
        committed = time.monotonic()
        await self._until(lambda: arrived(login) > 0, "the login code did not arrive")
        seconds = time.monotonic() - committed
        waiting = self.mails - arrived(*bulk)
        self.world.say(f"the login code arrived {seconds:.2f} s after its commit, {waiting} newsletters before theirs")
        return seconds

    @staticmethod
    async def _until(there: Callable[[], bool], complaint: str) -> None:
        end = time.monotonic() + STEP_SECONDS
        while not there():
            if time.monotonic() > end:
                raise DemoFailed(f"{complaint} within {STEP_SECONDS:g} s")
            await asyncio.sleep(0.005)

    def copies(self) -> Counter[str]:
        """Copies by mailbox, as the servers took them."""
        return Counter(recipient for mail in self.world.mailbox.mails() for recipient in mail.recipients)

    async def rows(self) -> dict[str, Row]:
        """Where the store says that every mail stands."""
        connection = await psycopg.AsyncConnection.connect(self.world.database_url, autocommit=True)
        async with connection, connection.cursor(row_factory=dict_row) as cursor:
            found = await (await cursor.execute(ROWS)).fetchall()
        return {
            r["key"]: Row(r["key"], r["account"], r["lane"], r["stage"], r["attempts"], r["reply"], tuple(r["alarms"]))
            for r in found
        }

    async def _end(self) -> dict[str, Row]:
        end = time.monotonic() + END_SECONDS
        while True:
            rows = await self.rows()
            open_ = [r.key for r in rows.values() if r.stage not in FINAL and not self._alarmed(r)]
            if not open_ or time.monotonic() > end:
                # What did not end is a fault that the verdict names.
                return rows
            await asyncio.sleep(0.2)

    @staticmethod
    def _alarmed(row: Row) -> bool:
        return row.stage == "unknown" and "unknown" in row.open_alarms
