"""The tables as SQLAlchemy sees them, for queries that are put together at run time.

The SQL files in ``migrations`` create the schema and explain each column; a test holds this mirror to be exact.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    UUID,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

metadata = MetaData(
    schema="sendonce",
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    },
)

_INSTANT = DateTime(timezone=True)
_CLOCK = text("sendonce.clock()")
_NO = text("false")
_ZERO = text("0")
_EMPTY = text("''")
_RANDOM = "sha256((uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())))"
_BLOCK = f"({_RANDOM} || {_RANDOM})"


def _serial() -> Column[int]:
    return Column("id", BigInteger, Identity(always=True), primary_key=True)


def _of_email(**options: Any) -> Column[Any]:
    return Column("email_id", UUID, ForeignKey("sendonce.email.id", ondelete="CASCADE"), nullable=False, **options)


installation = Table(
    "installation",
    metadata,
    Column("one", Boolean, CheckConstraint("one", name="one"), primary_key=True, server_default=text("true")),
    Column("id", UUID, nullable=False, server_default=text("gen_random_uuid()")),
    Column(
        "secrets",
        ARRAY(LargeBinary),
        nullable=False,
        server_default=text(f"ARRAY[{_RANDOM}]"),
    ),
    CheckConstraint("cardinality(secrets) > 0", name="secrets"),
    Column("mailbox_keys", ARRAY(LargeBinary), nullable=False, server_default=text(f"ARRAY[{_BLOCK}, {_BLOCK}]")),
    CheckConstraint("cardinality(mailbox_keys) = 2", name="mailbox_keys"),
    Column("notify", Boolean, nullable=False, server_default=text("true")),
    Column("oldest_revision", Text, nullable=False, server_default=text("'0001'")),
    Column("created_at", _INSTANT, nullable=False, server_default=text("clock_timestamp()")),
)

email_key = Table(
    "email_key",
    metadata,
    Column("account", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("email_id", UUID, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("created_at", _INSTANT, nullable=False),
)

email = Table(
    "email",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("account", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("to_domains", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("from_domain", Text, nullable=False, server_default=text("''")),
    Column("stage", Text, nullable=False, server_default=text("'pending'")),
    Column("rest_stage", Text, nullable=False, server_default=text("'pending'")),
    Column("partial", Boolean, nullable=False, server_default=_NO),
    Column("maybe_accepted", Boolean, nullable=False, server_default=_NO),
    Column("created_at", _INSTANT, nullable=False),
    Column("send_after", _INSTANT),
    Column("expires_at", _INSTANT),
    Column("next_attempt_at", _INSTANT),
    Column("retry", JSONB),
    Column("unknown_policy", Text),
    Column("open_ordinals", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    Column("generation", Integer, nullable=False, server_default=text("1")),
    Column("generation_open", Boolean, nullable=False, server_default=_NO),
    Column("attempts", Integer, nullable=False, server_default=_ZERO),
    Column("claims", Integer, nullable=False, server_default=_ZERO),
    Column("lapses", Integer, nullable=False, server_default=_ZERO),
    Column("resends", Integer, nullable=False, server_default=_ZERO),
    Column("requeue_floor", Integer, nullable=False, server_default=_ZERO),
    Column("first_attempt_at", _INSTANT),
    Column("pause_base", Interval, nullable=False, server_default=text("'0'::interval")),
    Column("lease_id", UUID),
    Column("lease_until", _INSTANT),
    Column("lease_worker", Text),
    Column("lease_alone", Boolean, nullable=False, server_default=_NO),
    Column("claimed_at", _INSTANT),
    Column("begun_at", _INSTANT),
    Column("answer_by", _INSTANT),
    Column("replay_until", _INSTANT),
    Column("unknown_since", _INSTANT),
    Column("close_at", _INSTANT),
    Column("alarm_at", _INSTANT),
    Column("look_up_at", _INSTANT),
    Column("look_ups", Integer, nullable=False, server_default=_ZERO),
    Column("started_at", _INSTANT),
    Column("seen_at", _INSTANT),
    Column("starts", Integer, nullable=False, server_default=_ZERO),
    Column("fairness_key", Text, nullable=False, server_default=text("''")),
    Column("has_topic", Boolean, nullable=False, server_default=_NO),
    Column("watched", Boolean, nullable=False, server_default=_NO),
    Column("slot_account", Text),
    Column("slot_until", _INSTANT),
    Column("cancel_requested_at", _INSTANT),
    Column("superseded_by", Text),
    Column("held_why", Text),
    Column("held_since", _INSTANT),
    Column("final_at", _INSTANT),
    Column("last_code", Integer),
    Column("last_enhanced", Text),
    Column("template", Text, nullable=False, server_default=_EMPTY),
    Column("content_erased_at", _INSTANT),
    CheckConstraint(
        "stage IN ('pending', 'claimed', 'transmitting', 'unknown', 'sent', 'failed', 'dead', 'expired', 'cancelled')",
        name="stage",
    ),
    CheckConstraint("rest_stage IN ('pending', 'unknown')", name="rest_stage"),
    CheckConstraint("unknown_policy IN ('hold', 'resend')", name="unknown_policy"),
    postgresql_with={
        "fillfactor": 80,
        "autovacuum_vacuum_scale_factor": 0.02,
        "autovacuum_vacuum_cost_delay": 1,
    },
)
Index(
    "ix_email_unstarted",
    email.c.lane,
    email.c.account,
    email.c.fairness_key,
    email.c.next_attempt_at,
    email.c.id,
    postgresql_where=text("stage = 'pending' AND started_at IS NULL"),
)
Index(
    "ix_email_expiring",
    email.c.expires_at,
    postgresql_where=text("stage = 'pending' AND expires_at IS NOT NULL"),
)
Index(
    "ix_email_waiting",
    email.c.lane,
    email.c.next_attempt_at,
    email.c.id,
    postgresql_include=["account", "stage"],
    postgresql_where=text("stage IN ('pending', 'unknown') AND started_at IS NOT NULL"),
)
Index(
    "ix_email_held",
    email.c.lane,
    email.c.id,
    postgresql_include=["account", "stage"],
    postgresql_where=text("stage IN ('claimed', 'transmitting')"),
)
Index("ix_email_close", email.c.close_at, postgresql_where=text("stage = 'unknown'"))
Index("ix_email_look_up", email.c.account, email.c.look_up_at, postgresql_where=text("stage = 'unknown'"))
Index("ix_email_alarm", email.c.alarm_at, postgresql_where=text("alarm_at IS NOT NULL"))
Index(
    "ix_email_content_kept",
    email.c.lane,
    email.c.template,
    email.c.final_at,
    postgresql_where=text("final_at IS NOT NULL AND content_erased_at IS NULL"),
)
Index("ix_email_final", email.c.final_at, email.c.id, postgresql_where=text("final_at IS NOT NULL"))
Index("ix_email_created", email.c.created_at, email.c.id)
Index("ix_email_stage", email.c.stage, email.c.created_at, email.c.id, postgresql_where=text("stage <> 'sent'"))

email_content = Table(
    "email_content",
    metadata,
    _of_email(primary_key=True),
    Column("message_id", Text, nullable=False),
    Column("content", JSONB, nullable=False),
    Column("requested_by", Text),
    Column("traceparent", Text),
)

attachment = Table(
    "attachment",
    metadata,
    _of_email(primary_key=True),
    Column("ordinal", Integer, primary_key=True, autoincrement=False),
    Column("filename", Text, nullable=False),
    Column("content_type", Text, nullable=False),
    Column("content_id", Text),
    Column("inline", Boolean, nullable=False, server_default=_NO),
    Column("alternative", Boolean, nullable=False, server_default=_NO),
    Column("content", LargeBinary, nullable=False),
)

recipient = Table(
    "recipient",
    metadata,
    _of_email(primary_key=True),
    Column("ordinal", Integer, primary_key=True, autoincrement=False),
    Column("mailbox", Text, nullable=False),
    Column("stage", Text, nullable=False, server_default=text("'outstanding'")),
    Column("code", Integer),
    Column("enhanced", Text),
    Column("reply_text", Text),
    Column("provider_id", Text),
    Column("attempt_id", UUID),
    Column("changed_at", _INSTANT),
    Column("delivery", Text),
    Column("delivery_at", _INSTANT),
    CheckConstraint(
        "stage IN ('outstanding', 'accepted', 'refused', 'deferred', 'unanswered', 'suppressed')", name="stage"
    ),
    CheckConstraint(
        "delivery IN ('accepted', 'delayed', 'soft_bounced', 'delivered', 'dropped', 'bounced', 'complained')",
        name="delivery",
    ),
)
Index("ix_recipient_mailbox", func.lower(recipient.c.mailbox))
Index("ix_recipient_provider", recipient.c.provider_id, postgresql_where=text("provider_id IS NOT NULL"))

pinned = Table(
    "pinned",
    metadata,
    _of_email(primary_key=True),
    Column("slot", Text, primary_key=True),
    Column("method", Text, nullable=False, server_default=_EMPTY),
    Column("url", Text, nullable=False, server_default=_EMPTY),
    Column("headers", JSONB, nullable=False, server_default=text("'[]'")),
    Column("body", LargeBinary, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("pinned_at", _INSTANT, nullable=False, server_default=_CLOCK),
)

generation = Table(
    "generation",
    metadata,
    _of_email(primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("slot", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("envelope", ARRAY(Integer), nullable=False),
    Column("provider_key", Text, nullable=False),
    Column("identity", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("first_begun_at", _INSTANT, nullable=False),
)

attempt = Table(
    "attempt",
    metadata,
    Column("id", UUID, primary_key=True),
    _of_email(),
    Column("number", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("account", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("worker", Text, nullable=False),
    Column("claimed_at", _INSTANT, nullable=False),
    Column("begun_at", _INSTANT),
    Column("offered", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    Column("answers", JSONB, nullable=False, server_default=text("'{}'")),
    Column("counted", Boolean, nullable=False, server_default=_NO),
    Column("ended_at", _INSTANT),
    Column("ended_why", Text),
    CheckConstraint("mode IN ('send', 'replay', 'resend')", name="mode"),
    Index("ix_attempt_email", "email_id", "number"),
)

evidence = Table(
    "evidence",
    metadata,
    _serial(),
    _of_email(),
    Column("ordinal", Integer, nullable=False),
    Column("accepted", Boolean, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("source", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("recorded_at", _INSTANT, nullable=False, server_default=_CLOCK),
    Column("after_final", Boolean, nullable=False, server_default=_NO),
    UniqueConstraint("email_id", "source", "event_id", "ordinal", name="uq_evidence_event"),
)

transition = Table(
    "transition",
    metadata,
    _serial(),
    _of_email(),
    Column("at", _INSTANT, nullable=False, server_default=_CLOCK),
    Column("from_stage", Text),
    Column("to_stage", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("attempt_id", UUID),
    Column("because", Text),
    Index("ix_transition_email", "email_id", "id"),
)

alarm = Table(
    "alarm",
    metadata,
    _serial(),
    Column("at", _INSTANT, nullable=False, server_default=_CLOCK),
    Column("kind", Text, nullable=False),
    Column("email_id", UUID),
    Column("account", Text),
    Column("detail", Text, nullable=False, server_default=_EMPTY),
    Column("closes", BigInteger, ForeignKey("sendonce.alarm.id", name="fk_alarm_closes")),
)
Index("ix_alarm_email", alarm.c.email_id, alarm.c.kind)
Index("ix_alarm_unserved", alarm.c.id, postgresql_where=text("kind = 'unserved'"))
Index("ix_alarm_paused", alarm.c.account, postgresql_where=text("kind = 'account_paused' AND closes IS NULL"))
Index("ix_alarm_closes", alarm.c.closes, postgresql_where=text("closes IS NOT NULL"))

account = Table(
    "account",
    metadata,
    Column("name", Text, primary_key=True),
    Column("settings_digest", Text, primary_key=True),
    Column("from_domain", Text, primary_key=True, server_default=text("''")),
    Column("paused_at", _INSTANT),
    Column("pause_why", Text),
    Column("faults", Integer, nullable=False, server_default=_ZERO),
    Column("probe_at", _INSTANT),
    Column("probe_until", _INSTANT),
    Column("probe_taken_at", _INSTANT),
    Column("probe_email", UUID),
    Column("paused_total", Interval, nullable=False, server_default=text("'0'::interval")),
    Column("fault_email", UUID),
    Column("worked_at", _INSTANT),
)

rate = Table(
    "rate",
    metadata,
    Column("account", Text, primary_key=True),
    Column("version", BigInteger, nullable=False, server_default=_ZERO),
    Column("state", JSONB, nullable=False, server_default=text("'{}'")),
)

suppression = Table(
    "suppression",
    metadata,
    Column("account", Text, primary_key=True),
    Column("mailbox", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("email_id", UUID),
    Column("actor", Text, nullable=False),
    Column("note", Text),
    Column("at", _INSTANT, nullable=False, server_default=_CLOCK),
    CheckConstraint("reason IN ('bounced', 'complained', 'manual')", name="reason"),
)

event = Table(
    "event",
    metadata,
    _serial(),
    Column("account", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("proven", Boolean, nullable=False),
    Column("happened_at", _INSTANT),
    Column("received_at", _INSTANT, nullable=False, server_default=_CLOCK),
    Column("email_id", UUID, ForeignKey("sendonce.email.id", name="fk_event_email", ondelete="CASCADE")),
    Column("ordinal", Integer),
    Column("claimed_id", Text, nullable=False),
    Column("provider_id", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("recipient", Text, nullable=False),
    Column("code", Integer),
    Column("enhanced", Text),
    Column("reply_text", Text),
    Column("handed_at", _INSTANT),
    UniqueConstraint("account", "source", "event_id", "recipient", name="uq_event"),
)
Index("ix_event_email", event.c.email_id, event.c.id, postgresql_where=text("email_id IS NOT NULL"))
Index("ix_event_parked", event.c.received_at, postgresql_where=text("email_id IS NULL"))
Index(
    "ix_event_unhanded",
    event.c.kind,
    text("(id + 0)"),
    postgresql_where=text("handed_at IS NULL AND proven AND email_id IS NOT NULL"),
)

operator_action = Table(
    "operator_action",
    metadata,
    _of_email(primary_key=True),
    Column("action_id", Text, primary_key=True),
    Column("action", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("at", _INSTANT, nullable=False, server_default=_CLOCK),
)

hold = Table(
    "hold",
    metadata,
    _serial(),
    Column("scope", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("since", _INSTANT, nullable=False, server_default=_CLOCK),
    Column("actor", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("ended_at", _INSTANT),
    Column("ended_by", Text),
    CheckConstraint("scope IN ('lane', 'template', 'tenant', 'account')", name="scope"),
    CheckConstraint("name <> ''", name="name"),
)
Index("ix_hold_standing", hold.c.scope, hold.c.name, unique=True, postgresql_where=text("ended_at IS NULL"))

sent_again = Table(
    "sent_again",
    metadata,
    _of_email(primary_key=True),
    Column("of_email", UUID, nullable=False),
    Column("at", _INSTANT, nullable=False, server_default=_CLOCK),
    Column("actor", Text, nullable=False),
)
Index("ix_sent_again_of", sent_again.c.of_email)

reveal = Table(
    "reveal",
    metadata,
    _serial(),
    Column("at", _INSTANT, nullable=False, server_default=_CLOCK),
    Column("actor", Text, nullable=False),
    Column("command", Text, nullable=False),
    Column("email_id", UUID),
    Column("account", Text),
    Column("key", Text),
)
Index("ix_reveal_email", reveal.c.email_id, postgresql_where=text("email_id IS NOT NULL"))

acknowledgement = Table(
    "acknowledgement",
    metadata,
    Column(
        "alarm_id",
        BigInteger,
        ForeignKey("sendonce.alarm.id", name="fk_acknowledgement_alarm", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("at", _INSTANT, nullable=False, server_default=_CLOCK),
    Column("actor", Text, nullable=False),
    Column("note", Text),
)

topic = Table(
    "topic",
    metadata,
    _of_email(primary_key=True),
    Column("account", Text, nullable=False),
    Column("topic", Text, nullable=False),
    Column("number", BigInteger, Identity(always=True), nullable=False),
    Column("looked", Boolean, nullable=False),
    Index("ix_topic_order", "account", "topic", "number"),
    Index("ix_topic_unlooked", "number", postgresql_where=text("NOT looked")),
)

final_watch = Table(
    "final_watch",
    metadata,
    _of_email(primary_key=True),
    Column("workflow_id", Text, primary_key=True),
    Column("signal", Text, primary_key=True),
)

final = Table(
    "final",
    metadata,
    _serial(),
    _of_email(),
    Column("workflow_id", Text, nullable=False),
    Column("signal", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("partial", Boolean, nullable=False),
    Column("maybe_accepted", Boolean, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("code", Integer),
    Column("enhanced", Text),
    Column("superseded_by", Text),
    Column("at", _INSTANT, nullable=False),
    Column("handed_at", _INSTANT),
    Column("tries", Integer, nullable=False, server_default=_ZERO),
    Column("try_at", _INSTANT, nullable=False),
    Index("ix_final_email", "email_id", "id"),
    Index("ix_final_unhanded", text("(id + 0)"), postgresql_where=text("handed_at IS NULL AND workflow_id = ''")),
    Index("ix_final_untold", "try_at", postgresql_where=text("handed_at IS NULL AND workflow_id <> ''")),
)

wake = Table(
    "wake",
    metadata,
    Column("email_id", UUID, primary_key=True),
    Column("at", _INSTANT, nullable=False, server_default=_CLOCK),
)

process = Table(
    "process",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("lanes", ARRAY(Text), nullable=False),
    Column("started_at", _INSTANT, nullable=False),
    Column("beat_at", _INSTANT, nullable=False),
    Column("replaces", Text),
)

process_loop = Table(
    "process_loop",
    metadata,
    Column(
        "process_id",
        Text,
        ForeignKey("sendonce.process.id", name="fk_process_loop_process", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("name", Text, primary_key=True),
    Column("beat_at", _INSTANT, nullable=False),
    Column("patience", Double, nullable=False),
)

alarm_state = Table(
    "alarm_state",
    metadata,
    Column(
        "alarm_id",
        BigInteger,
        ForeignKey("sendonce.alarm.id", name="fk_alarm_state_alarm", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("kind", Text, nullable=False),
    Column("open", Boolean, nullable=False),
    Column("taken_at", _INSTANT),
)
Index("ix_alarm_state_new", alarm_state.c.alarm_id, postgresql_where=text("taken_at IS NULL"))
Index("ix_alarm_state_open", alarm_state.c.kind, postgresql_where=text("open"))

alarm_notice = Table(
    "alarm_notice",
    metadata,
    Column("sink", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("account", Text, primary_key=True, server_default=_EMPTY),
    Column("ended", Boolean, primary_key=True),
    Column("waiting", BigInteger, nullable=False, server_default=_ZERO),
    Column("examples", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
    Column("first_at", _INSTANT, nullable=False),
    Column("last_at", _INSTANT, nullable=False),
    Column("told", Integer, nullable=False, server_default=_ZERO),
    Column("due_at", _INSTANT, nullable=False),
    Column("failures", Integer, nullable=False, server_default=_ZERO),
    Column("lease", UUID),
    Column("lease_until", _INSTANT),
)
Index("ix_alarm_notice_due", alarm_notice.c.sink, alarm_notice.c.due_at, postgresql_where=text("waiting > 0"))

alarm_condition = Table(
    "alarm_condition",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("about", Text, primary_key=True),
    Column("alarm_id", BigInteger),
    Column("since", _INSTANT, nullable=False, server_default=_CLOCK),
)

gauge = Table(
    "gauge",
    metadata,
    Column("one", Boolean, CheckConstraint("one", name="one"), primary_key=True, server_default=text("true")),
    Column("at", _INSTANT, nullable=False, server_default=text("'-infinity'")),
    Column("sample", JSONB, nullable=False, server_default=text("'{}'")),
    Column("history", JSONB, nullable=False, server_default=text("'[]'")),
)

erasure = Table(
    "erasure",
    metadata,
    _serial(),
    Column("digest", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("because", Text),
    Column("withdraw", Boolean, nullable=False),
    Column("asked_at", _INSTANT, nullable=False, server_default=_CLOCK),
    Column("searched_at", _INSTANT),
    Column("finished_at", _INSTANT),
    Column("done", JSONB, nullable=False, server_default=text("'{}'")),
    Index("ix_erasure_digest", "digest"),
)

erasure_mail = Table(
    "erasure_mail",
    metadata,
    _of_email(primary_key=True),
    Column(
        "erasure_id",
        BigInteger,
        ForeignKey("sendonce.erasure.id", name="fk_erasure_mail_erasure", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("ordinals", ARRAY(Integer), nullable=False),
)

key_walk = Table(
    "key_walk",
    metadata,
    Column("one", Boolean, CheckConstraint("one", name="one"), primary_key=True, server_default=text("true")),
    Column("account", Text, nullable=False, server_default=_EMPTY),
    Column("key", Text, nullable=False, server_default=_EMPTY),
)

continuity = Table(
    "continuity",
    metadata,
    Column("one", Boolean, CheckConstraint("one", name="one"), primary_key=True, server_default=text("true")),
    Column("system_id", Text),
    Column("timeline", Integer),
    Column("database_oid", BigInteger),
    Column("epoch", Integer, nullable=False, server_default=_ZERO),
    Column("seen_at", _INSTANT),
    Column("halted_at", _INSTANT),
    Column("halted_why", Text),
    Column("allowed_at", _INSTANT),
    Column("allowed_by", Text),
)
