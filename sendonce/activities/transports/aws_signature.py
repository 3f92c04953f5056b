"""Credentials of AWS and signatures made with them (Signature Version 4), by botocore.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html

Of botocore only the signer and the chain of credentials are used: its clients try requests again by themselves, which
makes second mails. botocore is an extra, and imported where it is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import SecretStr

from sendonce.activities.transports.base import Rendering
from sendonce.outcome import AccountFault, Reply, storable


class NoCredentials(Exception):
    """There is nothing to sign with. ``outcome`` is what that means for everybody."""

    def __init__(self, why: str) -> None:
        """``why`` says what to do, without a secret."""
        super().__init__(why)
        self.outcome = AccountFault(Reply(enhanced="no_credentials", text=storable(why)))


class AwsCredentials:
    """The credentials of one account: those that are given, or what botocore's chain finds.

    The chain is asked when a mail is sent: environment, shared files, SSO, a command, a container's or an instance's
    role; what expires is refreshed in time
    (https://boto3.amazonaws.com/v1/documentation/api/latest/guide/credentials.html).
    """

    def __init__(
        self,
        access_key_id: SecretStr | None,
        secret_access_key: SecretStr | None,
        session_token: SecretStr | None,
        *,
        profile: str | None,
        seconds: float,
    ) -> None:
        """Without the first two the chain is asked, for ``profile``; it may take ``seconds``."""
        self._profile, self._seconds = profile, seconds
        self._given: Any = None
        self._session: Any = None
        self._lock = asyncio.Lock()
        if access_key_id is not None and secret_access_key is not None:
            from botocore.credentials import Credentials

            token = session_token.get_secret_value() if session_token is not None else None
            self._given = Credentials(access_key_id.get_secret_value(), secret_access_key.get_secret_value(), token)

    async def get(self) -> Any:
        """What :func:`signed` takes. Raises :class:`NoCredentials`."""
        if self._given is not None:
            return self._given
        try:
            async with asyncio.timeout(self._seconds), self._lock:
                # Files are read and a role's service is asked: off the event loop.
                found = await asyncio.to_thread(self._from_chain)
        except TimeoutError:
            raise NoCredentials(f"AWS gave no credentials within {self._seconds:g} s") from None
        except Exception as error:
            # Whatever the chain's many sources raise. Only the type: the message may quote a command's output.
            raise NoCredentials(
                f"AWS gave no credentials ({type(error).__name__}): look at the profile or role"
            ) from None
        if found is None:
            raise NoCredentials(
                "no AWS credentials: set access_key_id and secret_access_key, or run where a profile or a role is found"
            )
        return found

    def forget(self) -> None:
        """Ask the chain anew the next time: what it found was refused, and may have been replaced since."""
        self._session = None

    def _from_chain(self) -> Any:
        from botocore.session import Session

        if self._session is None:
            self._session = Session(profile=self._profile)
        found = self._session.get_credentials()
        return found and found.get_frozen_credentials()


def signed(rendering: Rendering, credentials: Any, *, region: str, service: str, now: datetime) -> Mapping[str, str]:
    """The headers that authorise exactly this request, for some minutes from ``now`` (aware)."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest

    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    added = {"X-Amz-Date": stamp}
    if credentials.token:
        added["X-Amz-Security-Token"] = credentials.token
    request = AWSRequest(rendering.method, rendering.url, {**dict(rendering.headers), **added}, rendering.body)
    request.context["timestamp"] = stamp
    signer = SigV4Auth(credentials, service, region)
    # Step by step instead of add_auth(), which takes the machine's clock.
    signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    names = signer.signed_headers(signer.headers_to_sign(request))
    added["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, SignedHeaders={names}, Signature={signature}"
    )
    return added
