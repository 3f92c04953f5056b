"""The idempotency key a provider sees. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Literal
from uuid import UUID, uuid5

LONGEST = 100
"""Characters. The shortest limit among the providers that document one."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def provider_key(
    installation: UUID, workflow_id: str, generation: int, key_format: Literal["text", "uuid"] = "text"
) -> str:
    """A key for one generation of one mail of one installation: ``<workflow id>-<generation>-<digest>``.

    Only ``A-Z a-z 0-9 . _ -``, at most :data:`LONGEST` characters. The readable part is for people and may be cut;
    the digest (128 bits of SHA-256 over all three) keeps two keys apart, also between two environments that share a
    provider account. ``uuid``: a UUIDv5 of the same three, for providers that take nothing else.
    """
    if key_format == "uuid":
        return str(uuid5(installation, f"{workflow_id}\n{generation}"))
    source = f"{installation}\n{workflow_id}\n{generation}"
    tail = f"-{generation}-{hashlib.sha256(source.encode()).hexdigest()[:32]}"
    return _UNSAFE.sub("-", workflow_id)[: LONGEST - len(tail)] + tail
