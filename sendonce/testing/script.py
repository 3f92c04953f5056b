"""How a playing server is told to misbehave: rules, asked in order at every point of its protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Act = TypeVar("Act")


@dataclass(slots=True)
class Rule(Generic[Act]):
    """At point ``at``, do ``act`` instead of the usual thing."""

    at: str
    act: Act
    times: int | None = None
    """How often the rule applies; None: every time."""
    when: Callable[[str], bool] | None = None
    """Asked with the argument of the point: a mailbox (after acceptance all of them), a URL path. None: always."""


class Script(Generic[Act]):
    """The rules of one server. Empty: it accepts everything."""

    def __init__(self, *rules: Rule[Act]) -> None:
        self.rules = list(rules)

    def add(self, *rules: Rule[Act]) -> None:
        """Append rules; they are asked after those that are there."""
        self.rules.extend(rules)

    def clear(self) -> None:
        """Forget all rules: behave again."""
        self.rules.clear()

    def pick(self, at: str, argument: str = "") -> Act | None:
        """The act of the first rule that applies here, used up once; None: behave."""
        for rule in self.rules:
            if rule.at != at or rule.times == 0 or (rule.when is not None and not rule.when(argument)):
                continue
            if rule.times is not None:
                rule.times -= 1
            return rule.act
        return None
