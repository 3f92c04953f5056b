"""Throughput and CPU as one SVG picture."""

from __future__ import annotations

from html import escape
from statistics import median

from bench.measure import short, spread
from bench.throughput import RELAY, Throughput

COLOURS = {"store": "#4878a8", "Temporal": "#8c6bb1", "worker": "#e08a3c", "enqueueing": "#b8b8b8"}
LEFT, BAR, ROW, GAP, PANEL = 130, 18, 30, 60, 330
WIDTH = LEFT + 2 * PANEL + GAP + 60


def picture(found: Throughput) -> str:
    """Two panels of bars: how many per second, with the spread of the rounds, and CPU per 1,000, by process."""
    names = list(found.rounds)
    height = 70 + ROW * len(names) + 30
    rates = {name: spread([one.per_second for one in found.rounds[name]]) for name in names}
    cpu = {
        name: {part: median(one.cpu[part] for one in rounds) for part in rounds[0].cpu if part != RELAY}
        for name, rounds in found.rounds.items()
    }
    fastest = max(rate.high for rate in rates.values())
    dearest = max(sum(parts.values()) for parts in cpu.values()) or 1.0
    second = LEFT + PANEL + GAP
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(LEFT, 24, "mails per second (lines: least to most)", bold=True),
        _text(second, 24, "CPU seconds per 1,000 mails", bold=True),
    ]
    for n, name in enumerate(names):
        y = 44 + ROW * n
        middle = y + BAR / 2
        rate = rates[name]
        width = PANEL * rate.median / fastest
        low, high = (LEFT + PANEL * value / fastest for value in (rate.low, rate.high))
        lines += [
            _text(LEFT - 8, middle + 4, name, end=True),
            _bar(LEFT, y, width, "#5a9a68"),
            f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="black"/>',
            _text(max(LEFT + width, high) + 6, middle + 4, short(rate.median)),
        ]
        x = float(second)
        for part, seconds in cpu[name].items():
            wide = PANEL * seconds / dearest
            lines.append(_bar(x, y, wide, COLOURS[part]))
            x += wide
        lines.append(_text(x + 6, middle + 4, short(median(one.cpu_total for one in found.rounds[name]))))
    x = second
    for part, colour in COLOURS.items():
        lines += [_bar(x, height - 26, 12, colour, 12), _text(x + 17, height - 16, part)]
        x += 85
    return "\n".join([*lines, "</svg>"]) + "\n"


def _bar(x: float, y: float, width: float, colour: str, height: int = BAR) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, *, end: bool = False, bold: bool = False) -> str:
    more = (' text-anchor="end"' if end else "") + (' font-weight="bold"' if bold else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'
