"""Temporal Cloud and other servers with TLS: the SDK's own variables and file become the client's options.

Nothing is connected.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.client import TLSConfig

from sendonce import settings

if TYPE_CHECKING:
    from temporalio.envconfig import ClientConnectConfig

ADDRESS = "shop.a1b2c.tmprl.cloud:7233"
NAMESPACE = "shop.a1b2c"

Options = Callable[..., "ClientConnectConfig"]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """What ``Client.connect`` is called with, for this ``[temporal]`` and these variables."""
    monkeypatch.setenv("HOME", str(tmp_path))  # nobody's own profile

    def options(section: str = "", **variables: str) -> ClientConnectConfig:
        file = tmp_path / "sendonce.toml"
        file.write_text(f"[temporal]\n{section}\n", encoding="utf-8")
        return settings.temporal_connection(settings.load(file, variables), variables)

    return options


def test_an_api_key_turns_tls_on(options: Options) -> None:
    found = options(TEMPORAL_ADDRESS=ADDRESS, TEMPORAL_NAMESPACE=NAMESPACE, TEMPORAL_API_KEY="key-1")
    assert found == {"target_host": ADDRESS, "namespace": NAMESPACE, "api_key": "key-1", "tls": True}


def test_the_files_address_and_namespace_win_and_the_key_stays(options: Options) -> None:
    section = f'address = "{ADDRESS}"\nnamespace = "{NAMESPACE}"'
    found = options(section, TEMPORAL_API_KEY="key-1", TEMPORAL_ADDRESS="elsewhere:7233")
    assert found == {"target_host": ADDRESS, "namespace": NAMESPACE, "api_key": "key-1", "tls": True}


@pytest.mark.parametrize("by", ["PATH", "DATA"])
def test_client_certificates(options: Options, tmp_path: Path, by: str) -> None:
    given = {}
    for variable, text in (("CLIENT_CERT", "certificate"), ("CLIENT_KEY", "key"), ("SERVER_CA_CERT", "authority")):
        (tmp_path / f"{text}.pem").write_text(text)
        given[f"TEMPORAL_TLS_{variable}_{by}"] = text if by == "DATA" else str(tmp_path / f"{text}.pem")
    found = options(
        TEMPORAL_ADDRESS=ADDRESS, TEMPORAL_NAMESPACE=NAMESPACE, TEMPORAL_TLS_SERVER_NAME="temporal.internal", **given
    )
    tls = found["tls"]
    assert isinstance(tls, TLSConfig)
    assert (tls.client_cert, tls.client_private_key) == (b"certificate", b"key")
    assert (tls.server_root_ca_cert, tls.domain) == (b"authority", "temporal.internal")
    assert found.get("api_key") is None


def test_a_file_with_a_profile_keeps_the_key_out_of_the_environment(options: Options, tmp_path: Path) -> None:
    """As in the page: a Secret that is mounted as ``temporal.toml``."""
    file = tmp_path / "temporal.toml"
    file.write_text(
        f'[profile.default]\naddress = "{ADDRESS}"\nnamespace = "{NAMESPACE}"\napi_key = "key-1"\n'
        '[profile.staging]\naddress = "staging:7233"\n'
    )
    variables = {"TEMPORAL_CONFIG_FILE": str(file)}
    assert options(**variables) == {"target_host": ADDRESS, "namespace": NAMESPACE, "api_key": "key-1", "tls": True}
    other = options('profile = "staging"', **variables)
    assert (other["target_host"], other.get("api_key"), other.get("tls")) == ("staging:7233", None, None)


def test_without_any_of_it_nothing_is_encrypted(options: Options) -> None:
    found: Any = options('address = "temporal:7233"')
    assert found == {"target_host": "temporal:7233"}
