"""What a playing server took responsibility for, so that copies can be counted."""

from __future__ import annotations

import email
import email.policy
import itertools
import json
import os
import threading
import time
from dataclasses import asdict, dataclass, field
from email.message import EmailMessage
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class StoredMail:
    """One message as it was accepted."""

    sender: str
    recipients: tuple[str, ...]
    """The envelope: one copy for each."""
    content: bytes
    """MIME as it came in, dots unstuffed; for an HTTP gateway the request's body."""
    message_id: str = ""
    """The Message-ID, with angle brackets; ``""`` when it had none."""
    provider_id: str = ""
    """The id the server answered with."""
    key: str = ""
    """The idempotency key of the request; ``""`` by SMTP."""
    headers: dict[str, str] = field(default_factory=dict)
    """The message's header fields, names in lower case; of a repeated field the last."""

    def parsed(self) -> EmailMessage:
        """The MIME message, parsed."""
        return email.message_from_bytes(self.content, policy=email.policy.default)

    def json(self) -> Any:
        """The JSON body of a gateway request, parsed. Raises ValueError for anything else."""
        return json.loads(self.content)


class Mailbox:
    """Every accepted message, in the order of acceptance. Safe to share between threads.

    With ``folder`` it is kept Maildir-like in ``folder/new`` (each message a ``.eml`` file with a ``.json`` file of
    its envelope beside it, moved there when complete), where another process or a later run sees it too.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._mails: dict[str, StoredMail] = {}
        self._count = itertools.count()
        if folder is not None:
            for name in ("new", "tmp"):
                (folder / name).mkdir(parents=True, exist_ok=True)

    def store(self, mail: StoredMail) -> None:
        """Keep one message."""
        with self._lock:
            name = f"{time.time_ns():020d}-{os.getpid()}-{next(self._count)}"
            self._mails[name] = mail
            if self._folder is not None:
                self._write(self._folder, name, mail)

    @staticmethod
    def _write(folder: Path, name: str, mail: StoredMail) -> None:
        envelope = {key: value for key, value in asdict(mail).items() if key != "content"}
        # The envelope comes last: a reader that sees it finds the message whole.
        for suffix, data in ((".eml", mail.content), (".json", json.dumps(envelope).encode())):
            part = folder / "tmp" / (name + suffix)
            part.write_bytes(data)
            part.replace(folder / "new" / (name + suffix))

    def mails(self) -> list[StoredMail]:
        """Everything accepted so far, oldest first."""
        with self._lock:
            if self._folder is not None:
                for path in (self._folder / "new").glob("*.json"):
                    if path.stem not in self._mails:
                        self._mails[path.stem] = self._read(path)
            return [self._mails[name] for name in sorted(self._mails)]

    @staticmethod
    def _read(path: Path) -> StoredMail:
        envelope = json.loads(path.read_bytes())
        recipients = tuple(envelope.pop("recipients"))
        return StoredMail(recipients=recipients, content=path.with_suffix(".eml").read_bytes(), **envelope)

    def copies(
        self, recipient: str | None = None, *, message_id: str | None = None, header: tuple[str, str] | None = None
    ) -> int:
        """How many copies were accepted: one for each recipient of each message.

        Counts only ``recipient`` (compared exactly), only the messages with ``message_id``, and only those whose
        ``header`` (name in any case, value) is as given.
        """
        total = 0
        for mail in self.mails():
            if message_id is not None and mail.message_id != message_id:
                continue
            if header is not None and mail.headers.get(header[0].lower()) != header[1]:
                continue
            total += sum(recipient is None or recipient == one for one in mail.recipients)
        return total

    def clear(self) -> None:
        """Forget everything, the files too."""
        with self._lock:
            self._mails.clear()
            if self._folder is not None:
                for path in (self._folder / "new").iterdir():
                    path.unlink(missing_ok=True)
