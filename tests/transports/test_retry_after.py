"""Retry-After in all its forms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.activities.transports.retry_after import retry_after

NOW = datetime(2026, 8, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 7\t", 7.0),
        ("0", 0.0),
        ("Sat, 01 Aug 2026 12:01:30 GMT", 90.0),
        ("Saturday, 01-Aug-26 12:01:30 GMT", 90.0),
        ("Sat Aug  1 12:01:30 2026", 90.0),
        ("Sat, 01 Aug 2026 11:00:00 GMT", 0.0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0.0),
        ("Sat, 01 Aug 2026 12:00:60 GMT", 59.0),
    ],
)
def test_seconds_and_dates(value: str, seconds: float) -> None:
    assert retry_after(value, NOW) == seconds


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", " ", "soon", "-5", "+5", "1e999", "7.5", "7 s", "\u0667", "1_0", "nan", "inf", "9" * 5000),
        "Fri, 31 Dec 99999 23:59:59 GMT",
        "Sat, 31 Feb 2026 12:00:00 GMT",
        "Sat, 00 Aug 2026 12:00:00 GMT",
        "Sat, 01 Aug 0000 12:00:00 GMT",
        "Sat, 01 Aug 2026 25:00:00 GMT",
        "Sat, 01 Aug 2026 12:00:00 +0200",
        "2026-08-01T12:00:00Z",
    ],
)
def test_nonsense_is_no_wish(value: str | None) -> None:
    assert retry_after(value, NOW) is None


@given(st.text() | st.from_regex(r"\A[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4,5} [0-9:]{8} GMT\Z"))
def test_it_never_raises(value: str) -> None:
    found = retry_after(value, NOW)
    assert found is None or found >= 0


@given(st.timedeltas(min_value=timedelta(days=-300_000), max_value=timedelta(days=2_000_000)))
def test_a_date_gives_its_distance(distance: timedelta) -> None:
    when = (NOW + distance).replace(microsecond=0)
    written = format_datetime(when.astimezone(UTC), usegmt=True)
    assert retry_after(written, NOW) == max(0.0, (when - NOW).total_seconds())
