"""The sections about watching: what is built from them, and what is refused with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sendonce import settings
from sendonce.errors import ConfigurationError
from sendonce.watching.sinks import CommandSink, SlackSink, WebhookSink

ACCOUNT = '[accounts.default]\ntransport = "smtp"\nhost = "relay.example"\n'
HOOK = '[sinks.a]\ntype = "webhook"\n'

Load = Callable[[str], settings.Settings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str) -> settings.Settings:
        file = tmp_path / "sendonce.toml"
        file.write_text(text, encoding="utf-8")
        return settings.load(file, {"HOOK": "https://hook.example/s3cret"})

    return load


def test_sinks_are_built_with_their_audience_and_keep_their_secrets(load: Load) -> None:
    found = load(
        ACCOUNT
        + """
        [sinks.oncall]
        type = "webhook"
        url_env = "HOOK"
        headers = { Authorization = { env = "HOOK", prefix = "Bearer " } }
        kinds = ["dead"]
        [sinks.chat]
        type = "slack"
        url_env = "HOOK"
        ends = true
        timeout_seconds = 3
        [sinks.pager]
        type = "command"
        command = ["page"]
        """
    )
    config = settings.build_worker_config(found, settings.build_transports(found))
    oncall, chat, pager = config.watching.sinks
    assert isinstance(oncall, WebhookSink)
    assert isinstance(chat, SlackSink)
    assert isinstance(pager, CommandSink)
    assert [(s.audience.name, s.audience.ends, s.audience.kinds, s.timeout) for s in config.watching.sinks] == [
        ("oncall", False, ("dead",), 10.0),
        ("chat", True, (), 3.0),
        ("pager", False, (), 10.0),
    ]
    assert "s3cret" not in repr(found) + repr(config) + repr(config.watching)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HOOK, "[sinks.a]: a webhook needs url = …, and no command"),
        (f'{HOOK}url = "ftp://s3cret"', "[sinks.a] url: must begin with https:// or http://"),
        (
            f'{HOOK}url = "https://s3cret"\nbody = {{ a = "{{key}}" }}',
            "[sinks.a] body: body.a: there is no placeholder",
        ),
        (f'{HOOK}url = "https://s3cret"\ntimeout_seconds = 31', "[sinks.a] timeout_seconds:"),
        (f'{HOOK}url_env = "MISSING"', "[sinks.a] url_env: the environment variable MISSING is not set"),
        ('[sinks.a]\ntype = "command"', '[sinks.a]: a command needs command = ["program", "argument"]'),
        ('[sinks.a]\ntype = "slack"\nurl = "https://s3cret"\nbody = {}', "[sinks.a]: slack has a body of its own"),
        ('[sinks.a]\ntype = "mail"', "[sinks.a] type:"),
        ('[sinks.log]\ntype = "slack"\nurl = "https://s3cret"', "[sinks.log]: the log is always told"),
        ("[sinks.A]", "[sinks.A] is no name"),
        ('[watch]\nlisten = "9464"', "[watch] listen:"),
        ('[watch]\nlisten = "127.0.0.1:94640"', "[watch] listen: the port must be at most 65535"),
        ("[alarms]\nrepeat_seconds = []", "[alarms] repeat_seconds: must be one or more numbers of seconds"),
        ("[alarms]\nrepeat_seconds = [0]", "[alarms] repeat_seconds: must be one or more numbers of seconds"),
        ('[log]\nformat = "xml"', "[log] format:"),
        ("[metrics]", "unknown section [metrics]"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(load: Load, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(ACCOUNT + text)
    assert said in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_commands_that_send_nothing_need_no_secrets_of_sinks(tmp_path: Path) -> None:
    file = tmp_path / "sendonce.toml"
    file.write_text(f'{HOOK}url_env = "MISSING"\n', encoding="utf-8")
    assert settings.load(file, {}, with_accounts=False).sinks == {}
