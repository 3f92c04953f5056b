"""How long what is kept, pure: content, records, keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sendonce.errors import ConfigurationError
from sendonce.policy import LanePolicy

ERASED = "erased:"
"""What the digest begins with that takes the place of an erased address."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How many days after its end what is kept of a mail. ``[retention]`` of the settings, bounds as there."""

    content_days: float = 7.0
    """Its content: parameters, text, ready-made MIME, attachments, the rendered bytes. Afterwards it cannot be
    requeued. 0: at once, by the next round of the upkeep."""
    record_days: float = 30.0
    """Everything else of it: recipients, attempts, transitions, events, evidence, alarms. Only its key stays."""
    forget_keys_days: float | None = None
    """Its key, so many days after it was enqueued. None: never. A key that is forgotten can send a second mail."""
    templates: Mapping[str, float] = field(default_factory=dict)
    """``content_days`` of mail that was made from these templates; wins over the lane's."""
    every_minutes: float = 5.0
    """Between two rounds of the upkeep."""

    def __post_init__(self) -> None:
        if self.forget_keys_days is not None and self.forget_keys_days < self.record_days:
            raise ConfigurationError(
                f"forget_keys_days = {self.forget_keys_days:g} is less than record_days = {self.record_days:g}: "
                "a key is kept at least as long as its mail; write more, or leave it out to keep keys for ever"
            )
        longer = {"content_days": self.content_days} | {f"templates.{name}": d for name, d in self.templates.items()}
        for name, days in longer.items():
            if days > self.record_days:
                raise ConfigurationError(
                    f"{name} = {days:g} is more than record_days = {self.record_days:g}, "
                    "after which the whole mail goes: write at most that"
                )

    def check_lanes(self, lanes: Mapping[str, LanePolicy]) -> None:
        """Raise ConfigurationError when a lane is to keep content longer than records are kept."""
        for name, lane in lanes.items():
            if lane.content_days is not None and lane.content_days > self.record_days:
                raise ConfigurationError(
                    f"lane {name!r}: content_days = {lane.content_days:g} is more than [retention] record_days = "
                    f"{self.record_days:g}: write at most that"
                )

    def content_days_of(self, lane: LanePolicy, template: str) -> float:
        """For mail of this lane, made from this template (``""``: from none)."""
        found = self.templates.get(template) if template else None
        if found is None:
            found = lane.content_days
        return self.content_days if found is None else found
