"""``[temporal] payload_codec``: loaded once, or one error that shows no secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.converter import PayloadCodec

from sendonce.errors import ConfigurationError
from sendonce.settings.codec import load_codec

MODULE = """
from temporalio.converter import PayloadCodec

class Codec(PayloadCodec):
    async def encode(self, payloads): return list(payloads)
    async def decode(self, payloads): return list(payloads)

def make(): return Codec()
def broken(): raise ValueError("the key is hunter2")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "codec_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "codec_of_a_test"


def test_one_is_made_by_its_factory(module: str) -> None:
    assert isinstance(load_codec("sendonce.toml", f"{module}:make"), PayloadCodec)
    assert load_codec("sendonce.toml", None) is None


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:make", "cannot be imported"),
        ("json:no_such_function", "cannot be imported"),
        ("json:JSONDecoder", "must be a temporalio"),
        ("codec_of_a_test:broken", "raised ValueError when it was called"),
    ],
)
def test_anything_else_is_an_error_without_secrets(module: str, path: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_codec("sendonce.toml", path)
    assert str(caught.value).startswith(f"sendonce.toml: [temporal] payload_codec = '{path}'")
    assert "hunter2" not in str(caught.value)
