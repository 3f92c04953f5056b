"""The command ``stats``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sendonce import settings
from sendonce.cli.base import ConfigOption, JsonOption, app
from sendonce.cli.filters import instant
from sendonce.cli.operator import with_store
from sendonce.cli.output import ago, cell, plural, print_json, print_lines, print_wrapped, progress, span

if TYPE_CHECKING:
    from sendonce.store.stats import AccountNumbers, LaneLatency, Stats

BAR = 30
"""Columns of a chart's longest bar."""


@app.command()
def stats(
    since: Annotated[
        str, typer.Option("--since", metavar="WHEN", help="Mail enqueued since then: 30m, 24h, 7d, or a time (UTC).")
    ] = "24h",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What is outstanding, by stage, lane and account; which attempt succeeded; how long it took until mail was
    accepted, from when it was to be sent. Bounded: at most 200,000 rows are looked at for each part.

    JSON: one object: since, outstanding (stage, lane, account, count, due, oldest_due), outstanding_complete, ended (by
    stage), accounts (account, mails, sent, tried, first_try, by_attempt), latency (lane, sent, p50, p90, p99, worst in
    seconds, histogram), history_complete.
    """
    from sendonce.store import stats as numbers

    start = instant(since)
    url = settings.load(config, with_accounts=False).database_url

    async def run(connection: Any) -> Stats:
        return await numbers.read(connection, start)

    with progress("reading the store"):
        found = with_store(url, run)
    if as_json:
        print_json(asdict(found))
        return
    now = datetime.now(UTC)
    _outstanding(found, now)
    more = "" if found.history_complete else f", of which the newest {numbers.CAP} were looked at"
    typer.echo()
    print_wrapped(f"Enqueued since {cell(found.since)} UTC{more}: {_stages(found) or 'nothing'}")
    for account in found.accounts:
        _account(account)
    for lane in found.latency:
        _latency(lane, numbers.BUCKETS)


def _outstanding(found: Stats, now: datetime) -> None:
    total = sum(one.count for one in found.outstanding)
    typer.echo(f"Outstanding: {plural(total, 'mail')}{'' if found.outstanding_complete else ' or more'}")
    if total:
        print_lines(
            ("stage", "mails", "due", "oldest due", "account", "lane"),
            [
                ([one.stage, one.count, one.due, ago(one.oldest_due, now), one.account, one.lane], [])
                for one in found.outstanding
            ],
        )


def _stages(found: Stats) -> str:
    return ", ".join(f"{count} {stage}" for stage, count in found.ended.items())


def _account(account: AccountNumbers) -> None:
    rate = f"{100 * account.first_try / account.tried:.1f} %" if account.tried else "-"
    typer.echo()
    print_wrapped(
        f"Account {account.account}: {account.sent} of {plural(account.mails, 'mail')} sent; "
        f"{rate} of those tried at the first attempt"
    )
    most = max(account.by_attempt.values(), default=0)
    for attempt, count in sorted(account.by_attempt.items()):
        typer.echo(f"  attempt {attempt:<3} {_bar(count, most)} {count}")


def _latency(lane: LaneLatency, buckets: tuple[float, ...]) -> None:
    typer.echo()
    print_wrapped(
        f"Lane {lane.lane}: {plural(lane.sent, 'mail')} accepted; half within {span(lane.p50)}, "
        f"90 % {span(lane.p90)}, 99 % {span(lane.p99)}, all {span(lane.worst)}"
    )
    most = max(lane.histogram)
    names = [f"up to {span(end) if end >= 1 else f'{end:g} s'}" for end in buckets] + ["longer"]
    filled = [n for n, count in enumerate(lane.histogram) if count]
    for n in range(filled[0], filled[-1] + 1):
        typer.echo(f"  {names[n]:<12} {_bar(lane.histogram[n], most)} {lane.histogram[n]}")


def _bar(count: int, most: int) -> str:
    """A bar in eighths of a column; in plain characters where the terminal has no others."""
    eighths = round(BAR * 8 * count / most) if most else 0
    if not (sys.stdout.encoding or "").lower().startswith("utf"):
        return "#" * (eighths // 8 or (1 if count else 0))
    full, rest = divmod(max(eighths, 1 if count else 0), 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
