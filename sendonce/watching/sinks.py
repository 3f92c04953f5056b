"""Whom alarms are told: the log, always; a webhook, Slack, a command, as the settings say.

A sink that cannot be told raises :class:`SinkFailed` with a code: never a URL, a header or an answer, which may be
secrets.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from sendonce.store.alarm_delivery import Audience, Notice
from sendonce.watching.message import FIELDS, masked, message

if TYPE_CHECKING:
    import httpx

alarm_logger = logging.getLogger("sendonce.alarms")
"""Alarms are logged here at ERROR, their ends at WARNING."""

_TOKEN = re.compile(r"\{\{|\}\}|\{([a-z_]+)\}|[{}]")


class SinkFailed(Exception):
    """The message did not arrive, or nobody said that it did. The text is a code."""


class Sink(Protocol):
    """Where messages go."""

    audience: Audience
    timeout: float
    """Seconds that :meth:`tell` takes at most."""

    async def tell(self, notice: Notice) -> None:
        """Deliver the message. Raises SinkFailed."""

    async def close(self) -> None:
        """Leave nothing open."""


class LogSink:
    """The log of the process. It is always there."""

    audience = Audience("log", ends=True)
    timeout = 5.0

    async def tell(self, notice: Notice) -> None:
        """One line for each message."""
        first = notice.examples[0] if notice.examples else None
        alarm_logger.log(
            logging.WARNING if notice.ended else logging.ERROR,
            "%s: kind=%s account=%s count=%d id=%s key=%s email_id=%s detail=%s%s",
            "alarm ended" if notice.ended else "alarm",
            notice.kind,
            notice.account or "-",
            notice.waiting,
            first.id if first else "-",
            first.key if first and first.key else "-",
            first.email_id if first and first.email_id else "-",
            masked(first.detail) if first else "",
            _others(notice),
        )

    async def close(self) -> None:
        """There is nothing to close."""


def _others(notice: Notice) -> str:
    keys = [one.key for one in notice.examples[1:] if one.key]
    return f" also={','.join(keys)}" if keys else ""


class WebhookSink:
    """POSTs JSON; any 2xx is success. Redirects are not followed: they would carry the headers elsewhere."""

    def __init__(
        self,
        audience: Audience,
        url: str,
        *,
        source: str,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout: float = 10.0,
    ) -> None:
        """``body``: a JSON object with placeholders, see :func:`check_body`; None: the whole message."""
        self.audience = audience
        self.timeout = timeout
        self._url = url
        self._source = source
        self._headers = dict(headers or {})
        self._body = body
        self._client: httpx.AsyncClient | None = None

    async def tell(self, notice: Notice) -> None:
        """One request."""
        # Loaded with the first message: a worker starts again after every crash, and most have none to tell.
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(timeout=self.timeout, headers=self._headers, follow_redirects=False)
        try:
            async with asyncio.timeout(self.timeout):
                answer = await self._client.post(self._url, json=self._content(message(notice, self._source)))
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise SinkFailed(type(error).__name__) from None
        if not answer.is_success:
            raise SinkFailed(f"HTTP {answer.status_code}")

    def _content(self, said: dict[str, Any]) -> Any:
        return said if self._body is None else _filled(self._body, said)

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.aclose()


class SlackSink(WebhookSink):
    """An incoming webhook of Slack, or of what takes the same (Mattermost, Rocket.Chat, Discord under ``/slack``)."""

    def _content(self, said: dict[str, Any]) -> Any:
        # https://api.slack.com/reference/surfaces/formatting#escaping
        text = said["text"].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return {"text": text}


class CommandSink:
    """Runs a program without a shell, the message as JSON on its standard input; exit status 0 is success."""

    def __init__(self, audience: Audience, command: Sequence[str], *, source: str, timeout: float = 10.0) -> None:
        self.audience = audience
        self.timeout = timeout
        self._command = list(command)
        self._source = source

    async def tell(self, notice: Notice) -> None:
        """One run; one that takes too long is killed with everything that it started."""
        said = json.dumps(message(notice, self._source)).encode() + b"\n"
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise SinkFailed(type(error).__name__) from None
        try:
            async with asyncio.timeout(self.timeout):
                await process.communicate(said)
        except TimeoutError:
            raise SinkFailed("timeout") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            raise SinkFailed(f"exit {process.returncode}")

    async def close(self) -> None:
        """Nothing outlives a run."""


def check_body(node: Any, place: str = "body") -> None:
    """Raise ValueError, naming the place, for a body that cannot be filled.

    Strings may hold ``{name}`` for the members of a message (:data:`~sendonce.watching.message.FIELDS`); ``{{`` and
    ``}}`` stand for the braces themselves. A string that is one placeholder becomes that value, of whatever type.
    """
    if isinstance(node, str):
        for token in _TOKEN.finditer(node):
            if token[0] in ("{", "}"):
                raise ValueError(f"{place}: a single brace; write {{{{ or }}}} for the character itself")
            if token[1] is not None and token[1] not in FIELDS:
                raise ValueError(
                    f"{place}: there is no placeholder {{{token[1]}}}; known are {', '.join(sorted(FIELDS))}"
                )
            if token[1] == "alarms" and token[0] != node:
                raise ValueError(f"{place}: {{alarms}} is a list and must stand alone")
    elif isinstance(node, Mapping):
        for name, value in node.items():
            check_body(value, f"{place}.{name}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            check_body(value, f"{place}.{index}")
    elif node is not None and not isinstance(node, (bool, int, float)):
        raise ValueError(f"{place}: {type(node).__name__} is not a JSON type")


def _filled(node: Any, said: Mapping[str, Any]) -> Any:
    if isinstance(node, str):
        whole = _TOKEN.fullmatch(node)
        if whole is not None and whole[1] is not None:
            return said[whole[1]]
        return _TOKEN.sub(lambda token: token[0][0] if token[1] is None else str(said[token[1]]), node)
    if isinstance(node, Mapping):
        return {name: _filled(value, said) for name, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, said) for value in node]
    return node
