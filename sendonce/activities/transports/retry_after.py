"""``Retry-After`` (RFC 9110 10.2.3) as seconds. Pure: the clock is passed in."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_SECONDS = re.compile(r"[0-9]{1,10}")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
# RFC 9110 5.6.7: the one form to write, and two obsolete ones that must be read.
_DATES = tuple(
    re.compile(form)
    for form in (
        rf"{_DAY}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT",
        rf"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT",
        rf"{_DAY} {_MONTH} (?P<day>[ 0-9][0-9]) {_TIME} (?P<year>[0-9]{{4}})",
    )
)


def retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds from ``now`` (aware) that the header asks to wait; 0 for a time in the past.

    None for no header and for nonsense, which leaves the wait to our own policy. Never raises, and is not capped: the
    retry policy does that.

    >>> retry_after("7", datetime(2026, 1, 1, tzinfo=UTC))
    7.0
    >>> retry_after("Thu, 01 Jan 2026 00:01:30 GMT", datetime(2026, 1, 1, tzinfo=UTC))
    90.0
    >>> retry_after("soon", datetime(2026, 1, 1, tzinfo=UTC)) is None
    True
    """
    text = (value or "").strip(" \t")
    if _SECONDS.fullmatch(text):
        return float(text)
    when = _http_date(text, now)
    return None if when is None else max(0.0, (when - now).total_seconds())


def _http_date(text: str, now: datetime) -> datetime | None:
    for form in _DATES:
        found = form.fullmatch(text)
        if found is None:
            continue
        year = int(found["year"])
        if len(found["year"]) == 2:
            # More than 50 years ahead means the past century.
            year += now.year // 100 * 100
            year -= 100 if year > now.year + 50 else 0
        month, day = _MONTHS.index(found["month"]) + 1, int(found["day"])
        # A leap second is taken as the one before it.
        second = min(int(found["second"]), 59) if found["second"] == "60" else int(found["second"])
        try:
            return datetime(year, month, day, int(found["hour"]), int(found["minute"]), second, tzinfo=UTC)
        except ValueError:
            return None
    return None
