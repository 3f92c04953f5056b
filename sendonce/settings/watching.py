"""The sections about watching: ``[alarms]``, ``[sinks.<name>]``, ``[watch]``, ``[traces]``, ``[log]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

if TYPE_CHECKING:
    from sendonce.watching.config import Watching
    from sendonce.watching.sinks import Sink


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class AlarmSettings(_Section):
    """``[alarms]``: when something is wrong that is about no single mail, and how often it is told."""

    source: str = Field(default="sendonce", min_length=1, max_length=100)
    """What messages begin with: which installation speaks."""
    repeat_seconds: tuple[float, ...] = Field(default=(60.0, 300.0, 900.0, 3600.0), strict=False)
    """After the first message about alarms of one kind and account, the least waits until the next ones, which say how
    many there were; the last one repeats. After the longest without such alarms the first is told at once again. 1 to
    86400 each."""
    oldest_due_seconds: float = Field(default=900.0, ge=0, le=604800)
    """The oldest mail of a lane may be due for so long before that is an alarm; 0: for ever. 0 to 604800, default
    900."""
    backlog_mails: int = Field(default=10_000, ge=0, le=100_000)
    """So many mails of an account may be due; more, and half as many again as ten minutes before, is an alarm. 0: any
    number. 0 to 100000, default 10000."""
    old_transaction_seconds: float = Field(default=900.0, ge=0, le=604800)
    """A transaction of the database, whoever's it is, may be open for so long before that is an alarm; 0: for ever.
    0 to 604800, default 900."""

    @field_validator("repeat_seconds")
    @classmethod
    def _waits(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or any(not 1 <= wait <= 86400 for wait in value):
            raise ValueError("must be one or more numbers of seconds, from 1 to 86400")
        return value


class SinkSettings(_Section):
    """``[sinks.<name>]``: whom alarms are told, besides the log."""

    type: Literal["webhook", "slack", "command"]
    """``webhook`` posts JSON, ``slack`` what Slack's incoming webhooks take, ``command`` runs a program."""
    url: SecretStr | None = None
    """Of a webhook: where to post to, ``https://…``, or ``http://…``. A secret."""
    headers: dict[str, SecretStr] = Field(default={})
    """Of a webhook: sent with each request. The values are secrets."""
    body: dict[str, Any] | None = None
    """Of a webhook: a JSON object with placeholders. Default: the whole message."""
    command: tuple[str, ...] = Field(default=(), strict=False)
    """Of a command: program and arguments, run without a shell."""
    timeout_seconds: float = Field(default=10.0, ge=0.1, le=30)
    """How long a message may take; a command is killed then. 0.1 to 30, default 10."""
    ends: bool = False
    """Tell when alarms are over, too."""
    kinds: tuple[str, ...] = Field(default=(), strict=False)
    """Only these kinds of alarms. Default: all."""

    @field_validator("url")
    @classmethod
    def _http(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(("https://", "http://")):
            raise ValueError("must begin with https:// or http://")
        return value

    @field_validator("body")
    @classmethod
    def _fillable(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        from sendonce.watching.sinks import check_body

        check_body(value)
        return value

    @model_validator(mode="after")
    def _fits(self) -> SinkSettings:
        if self.type == "command":
            if not self.command or self.url is not None or self.headers or self.body is not None:
                raise ValueError('a command needs command = ["program", "argument"], and nothing of a webhook')
        elif self.url is None or self.command:
            raise ValueError(f"a {self.type} needs url = …, and no command")
        if self.type == "slack" and self.body is not None:
            raise ValueError('slack has a body of its own; write type = "webhook" for another one')
        return self

    def build(self, name: str, source: str) -> Sink:
        """The sink; nothing is connected yet."""
        from sendonce.store.alarm_delivery import Audience
        from sendonce.watching.sinks import CommandSink, SlackSink, WebhookSink

        audience = Audience(name, self.ends, self.kinds)
        if self.url is None:
            return CommandSink(audience, self.command, source=source, timeout=self.timeout_seconds)
        make = SlackSink if self.type == "slack" else WebhookSink
        return make(
            audience,
            self.url.get_secret_value(),
            source=source,
            headers={key: value.get_secret_value() for key, value in self.headers.items()},
            body=self.body,
            timeout=self.timeout_seconds,
        )


class WatchSettings(_Section):
    """``[watch]``: where a worker or starter answers ``/metrics``, ``/healthz`` and ``/readyz``."""

    listen: str | None = Field(default=None, pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):\d{1,5}$")
    """``host:port`` or ``[::1]:port``; port 0 takes a free one. Plain HTTP without a log-in: loopback, or a network of
    your own. Default: nothing listens."""
    sample_seconds: float = Field(default=15.0, ge=1, le=3600)
    """The store is counted at most this often, by all processes together. 1 to 3600, default 15."""

    @field_validator("listen")
    @classmethod
    def _port(cls, value: str | None) -> str | None:
        if value is not None and int(value.rpartition(":")[2]) > 65535:
            raise ValueError("the port must be at most 65535")
        return value


class TraceSettings(_Section):
    """``[traces]``: OpenTelemetry. Needs the extra ``otel``."""

    exporter: str | None = Field(default=None, min_length=1, max_length=100)
    """Name under which an exporter is registered, such as ``otlp_proto_http``; it reads OpenTelemetry's own variables.
    Default: no traces."""
    service_name: str = Field(default="sendonce", min_length=1, max_length=255)
    """``service.name`` of the traces."""


class LogSettings(_Section):
    """``[log]``: the log of running processes."""

    format: Literal["text", "json"] = "text"
    """``json`` writes one object a line to standard error, with ``key``, ``attempt``, ``lane``, ``account`` and
    ``code`` as members where a line is about a mail."""


def build_watching(
    alarms: AlarmSettings,
    sinks: dict[str, SinkSettings],
    watch: WatchSettings,
    traces: TraceSettings,
    sdk_metrics: str | None,
) -> Watching:
    """What :class:`~sendonce.watching.watch.Watch` takes."""
    from sendonce.watching.config import Watching
    from sendonce.watching.lateness import Limits

    listen = None
    if watch.listen is not None:
        host, _, port = watch.listen.rpartition(":")
        listen = (host.strip("[]"), int(port))
    return Watching(
        listen=listen,
        sdk_metrics=sdk_metrics,
        sample_seconds=watch.sample_seconds,
        sinks=tuple(sink.build(name, alarms.source) for name, sink in sinks.items()),
        repeat_seconds=alarms.repeat_seconds,
        limits=Limits(alarms.oldest_due_seconds, alarms.backlog_mails, alarms.old_transaction_seconds),
        trace_exporter=traces.exporter,
        trace_service=traces.service_name,
    )
