"""What must be true in the end. Pure: judged by the store's rows and the copies counted in the mailbox.

Nothing here asks what a worker believed: a copy is a copy that a server took responsibility for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Planned:
    """One mail that business code asked for, or tried to."""

    key: str
    recipients: tuple[str, ...]
    """Mailboxes, each used by no other mail."""
    story: str = ""
    """What happens to it; shown in the table. Mails without a story are summed up."""
    refused: frozenset[str] = frozenset()
    """Mailboxes that the server refuses for good."""
    uncertain: bool = False
    """Offered, and the answer lost where no provider can be asked: unknown, and at most one copy."""
    rolled_back: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Where the store says that a mail stands."""

    key: str
    account: str
    lane: str
    stage: str
    attempts: int
    reply: str
    open_alarms: tuple[str, ...] = ()


@dataclass(slots=True)
class Judged:
    """One mail's line."""

    plan: Planned
    row: Row | None
    copies: int
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """All lines, and what they come to."""

    lines: list[Judged]
    duplicates: int = 0
    """Copies beyond the first, of any recipient."""
    lost: int = 0
    """Recipients that should have a copy and have none."""
    stages: Counter[str] = field(default_factory=Counter)
    placed: int = 0
    rolled_back: int = 0

    @property
    def faults(self) -> list[str]:
        """Everything that is wrong, as sentences; empty when the promise was kept."""
        return [f"{line.plan.key}: {fault}" for line in self.lines for fault in line.faults]


def judge(plans: Iterable[Planned], rows: Mapping[str, Row], copies: Mapping[str, int]) -> Verdict:
    """Hold the rows and the copies (by mailbox) against the plan."""
    verdict = Verdict([])
    for plan in plans:
        line = Judged(plan, rows.get(plan.key), sum(copies.get(r, 0) for r in plan.recipients))
        verdict.lines.append(line)
        verdict.duplicates += sum(max(0, copies.get(r, 0) - 1) for r in plan.recipients)
        line.faults += [f"{copies[r]} copies for one recipient" for r in plan.recipients if copies.get(r, 0) > 1]
        if plan.rolled_back:
            verdict.rolled_back += 1
            if line.row is not None:
                line.faults.append("its transaction was rolled back, and there is a row")
            if line.copies:
                line.faults.append("its transaction was rolled back, and it was sent")
            continue
        verdict.placed += 1
        if line.row is None:
            line.faults.append("committed, and there is no row")
            verdict.lost += len(plan.recipients)
            continue
        verdict.stages[line.row.stage] += 1
        missing = [r for r in plan.recipients if r not in plan.refused and not copies.get(r, 0)]
        line.faults += ["a refused recipient got a copy" for r in plan.refused if copies.get(r, 0)]
        if plan.uncertain:
            _uncertain(line)
        else:
            verdict.lost += len(missing)
            line.faults += ["no copy for a recipient" for _ in missing]
            expected = "failed" if len(plan.refused) == len(plan.recipients) else "sent"
            if line.row.stage != expected:
                line.faults.append(f"stage {line.row.stage}, expected {expected}")
    return verdict


def _uncertain(line: Judged) -> None:
    assert line.row is not None
    if line.row.stage != "unknown":
        line.faults.append(f"stage {line.row.stage}, and it could not be known")
    elif "unknown" not in line.row.open_alarms:
        line.faults.append("unknown without an alarm")
