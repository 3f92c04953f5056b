"""The settings file and the environment: what is read, what is refused, and what is never shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr

from sendonce import settings
from sendonce.activities.inflight import lease_margin
from sendonce.errors import ConfigurationError
from sendonce.policy import DEFAULT_LANES
from sendonce.rates import DomainLimit, Rate
from sendonce.retention import Retention
from sendonce.settings import Settings
from sendonce.settings.loading import ENVIRONMENT
from sendonce.settings.model import (
    LaneSettings,
    RetrySettings,
    SafetySettings,
    StarterSettings,
    StoreSettings,
    TemporalSettings,
    WorkerSettings,
    longest_renewal,
)
from sendonce.watching.config import Watching
from sendonce.watching.lateness import Limits
from sendonce.worker import WorkerConfig

SECRET = "correct-horse-battery"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sendonce.toml"


def load(file: Path, text: str, **environ: str) -> Settings:
    file.write_text(text, encoding="utf-8")
    return settings.load(file, environ)


def refused(file: Path, text: str, **environ: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(file, text, **environ)
    assert str(caught.value).startswith(f"{file}: ")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value).removeprefix(f"{file}: ")


# Where settings come from ---------------------------------------------------------------------------------------


def test_nothing_at_all_is_a_working_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = settings.load(environ={})
    assert found.database_url == "postgresql://"
    assert found.lanes == DEFAULT_LANES
    assert list(found.lanes) == ["critical", "default", "bulk"]
    assert (found.worker.lease_seconds, found.worker.renew_seconds, found.accounts) == (20, 5, {})


def test_the_file_is_the_argument_then_the_variable_then_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("argument", "variable", "sendonce"):
        (tmp_path / f"{name}.toml").write_text(f'[store]\ndatabase_url = "postgresql:///{name}"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    variable = {"SENDONCE_CONFIG": str(tmp_path / "variable.toml")}
    assert settings.load(tmp_path / "argument.toml", variable).database_url == "postgresql:///argument"
    assert settings.load(None, variable).database_url == "postgresql:///variable"
    assert settings.load(None, {}).database_url == "postgresql:///sendonce"


def test_the_processs_own_environment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SENDONCE_DATABASE_URL", "postgresql:///own")
    assert settings.load().database_url == "postgresql:///own"


def test_each_variable_wins_over_the_file_and_an_empty_one_does_not(file: Path) -> None:
    text = """
        [store]
        database_url = "postgresql:///file"
        [temporal]
        address = "file:1"
        namespace = "file"
        task_queue_prefix = "file"
        [safety]
        redirect_all_to = "file@example.org"
        allowed_domains = ["file.example"]
    """
    values = {
        "SENDONCE_DATABASE_URL": "postgresql:///variable",
        "SENDONCE_TEMPORAL_ADDRESS": "variable:2",
        "SENDONCE_TEMPORAL_NAMESPACE": "variable",
        "SENDONCE_TASK_QUEUE_PREFIX": "variable",
        "SENDONCE_REDIRECT_ALL_TO": "variable@example.org",
        "SENDONCE_ALLOWED_DOMAINS": "one.example, two.example",
    }
    assert values.keys() == ENVIRONMENT.keys()

    def shown(found: Settings) -> list[object]:
        t, s = found.temporal, found.safety
        return [
            found.database_url,
            t.address,
            t.namespace,
            t.task_queue_prefix,
            s.redirect_all_to,
            s.allowed_domains,
        ]

    kept = ["postgresql:///file", "file:1", "file", "file", "file@example.org", ("file.example",)]
    assert shown(load(file, text, **dict.fromkeys(values, ""))) == kept
    assert shown(load(file, text, **values)) == [*list(values.values())[:5], ("one.example", "two.example")]


def test_a_variable_replaces_a_reference_of_the_file(file: Path) -> None:
    text = '[store]\ndatabase_url_env = "ELSEWHERE"\n'
    assert load(file, text, SENDONCE_DATABASE_URL="postgresql:///variable").database_url == "postgresql:///variable"


def test_an_error_in_a_variable_names_the_variable(file: Path) -> None:
    assert refused(file, "", SENDONCE_TEMPORAL_ADDRESS="nowhere").startswith("SENDONCE_TEMPORAL_ADDRESS: ")


# What is refused --------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"{file}: cannot be read: No such file .*--config"):
        settings.load(file, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[store\n", ("is not valid TOML", "line 1")),
        ("[stor]\n", ("unknown section [stor]", "did you mean 'store'?")),
        ("[mail]\n", ("unknown section [mail]", "known are store, temporal")),
        ("store = 3\n", ("store must be a table", "write [store]")),
        ("[lanes]\nbulk = 3\n", ("lanes.bulk must be a table",)),
        ("[worker]\nleese_seconds = 3\n", ("[worker] unknown key 'leese_seconds'", "did you mean 'lease_seconds'?")),
        ("[starter]\ninterval = 3\n", ("[starter] unknown key 'interval'", "known are poll_seconds, ")),
        ("[lanes.bulk.retry]\nmax_age_s = 3\n", ("[lanes.bulk] unknown key 'retry.max_age_s'", "'max_age'?")),
        ("[worker]\nlease_seconds = 4\n", ("[worker] lease_seconds: should be greater than or equal to 5",)),
        ('[worker]\nlease_seconds = "20"\n', ("[worker] lease_seconds: should be a valid number",)),
        ("[worker]\nrenew_seconds = 8\n", ("renew_seconds = 8 is too long", "write at most 7.5")),
        ("[worker]\nhand_off_seconds = 9\n", ("[worker] hand_off_seconds: ",)),
        ("[worker]\ndrain_seconds = -1\n", ("[worker] drain_seconds: ",)),
        (
            '[accounts.a]\ntransport = "smtp"\nhost = "h"\nrate = ["1/s"]\n',
            ("[accounts.a] unknown key 'rate'", "did you mean 'rates'?"),
        ),
        (
            '[accounts.a]\ntransport = "smtp"\nhost = "h"\n[accounts.a.domains.example.net]\nat_once = 2\n',
            ("a name with dots is quoted", '[accounts.a.domains."example.net"]'),
        ),
        (
            '[accounts.a]\ntransport = "smtp"\nhost = "h"\n[accounts.a.domains.mail.example.net]\nat_once = 2\n',
            ("a name with dots is quoted", '[accounts.a.domains."mail.example.net"]'),
        ),
        ('[worker]\nlanes = ["bulc"]\n', ("[worker] lanes: there is no lane 'bulc'", "did you mean 'bulk'?")),
        ("[store]\npool_size = 1\n", ("[store] pool_size: ",)),
        ("[starter]\npoll_seconds = 0\n", ("[starter] poll_seconds: ",)),
        ('[temporal]\naddress = "http://t:7233"\n', ("[temporal] address: ",)),
        ('[temporal]\ntask_queue_prefix = "a b"\n', ("[temporal] task_queue_prefix: ",)),
        ("[lanes.bulk]\nplaces = 0\n", ("[lanes.bulk] lane 'bulk': places = 0 is out of bounds",)),
        ("[lanes.bulk.retry]\njitter = 2\n", ("[lanes.bulk] retry policy: jitter = 2", "from 0 to 1")),
        ("[lanes.bulk.retry]\ndelays = [1]\nbase = 2\n", ("[lanes.bulk] retry: give either delays, or base",)),
        ("[lanes.Bulk]\n", ("[lanes.Bulk] is no name",)),
        ('[accounts."a b"]\n', ("[accounts.a b] is no name",)),
        ("[accounts.default]\n", ("[accounts.default] transport is missing", "a provider's name")),
        ('[accounts.default]\ntransport = "smpt"\n', ("there is no transport 'smpt'", "known are smtp, http")),
        ('[safety]\nallowed_domains = ["@example.org"]\n', ("[safety] allowed_domains: ", "without @")),
        ('[safety]\nredirect_all_to = "nobody"\n', ("[safety] redirect_all_to: is no e-mail address",)),
    ],
)
def test_what_cannot_work_is_refused_with_its_key_and_what_to_write(
    file: Path, text: str, words: tuple[str, ...]
) -> None:
    message = refused(file, text)
    assert [word for word in words if word not in message] == []


def test_all_problems_of_a_section_are_told_at_once(file: Path) -> None:
    message = refused(file, "[worker]\nlease_seconds = 1\ndrain_seconds = -1\n")
    assert "lease_seconds" in message
    assert "drain_seconds" in message


@pytest.mark.parametrize(
    "text",
    [
        f'[store]\ndatabase_url = "postgresql+psycopg://u:{SECRET}@h/d"\n',
        f'[store]\ndatabase_url = "postgresql://u:{SECRET}%zz@h/d"\n',
        f'[store]\ndatabase_url = "host=h password={SECRET} nonsense"\n',
        f'[store]\ndatabase_url = ["{SECRET}"]\n',
        f'[safety]\nredirect_all_to = "{SECRET}"\n',
        f'[accounts.default]\ntransport = "smtp"\npassword = ["{SECRET}"]\n',
        f'[accounts.default]\ntransport = "smtp"\nhost = "h"\nport = "x"\nusername = "u"\npassword = "{SECRET}"\n',
    ],
)
def test_no_error_shows_a_secret(file: Path, text: str) -> None:
    assert SECRET not in refused(file, text)


# Secrets ----------------------------------------------------------------------------------------------------------

ACCOUNT = '[accounts.default]\ntransport = "smtp"\nhost = "relay.example"\nusername = "shop"\n'


def password(found: Settings) -> str:
    value = found.accounts["default"].options.model_dump()["password"]
    assert isinstance(value, SecretStr)
    return value.get_secret_value()


def test_a_secret_is_written_inline_or_comes_from_a_variable_or_a_file(file: Path, tmp_path: Path) -> None:
    (tmp_path / "relay").write_text(f" {SECRET} \r\n", encoding="utf-8")
    assert password(load(file, ACCOUNT + f'password = "{SECRET}"\n')) == SECRET
    assert password(load(file, ACCOUNT + 'password_env = "RELAY"\n', RELAY=SECRET)) == SECRET
    assert password(load(file, ACCOUNT + 'password_file = "relay"\n')) == f" {SECRET} "


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('password_env = "RELAY"', "password_env: the environment variable RELAY is not set"),
        ('password_file = "nothere"', "password_file: "),
        ('password_file = "nothere"', "cannot be read: No such file"),
        ("password_env = 3", 'password_env: write { env = "NAME" }'),
        ('password = "a"\npassword_env = "RELAY"', "password and password_env are both set; keep one"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(file: Path, line: str, words: str) -> None:
    message = refused(file, ACCOUNT + line + "\n")
    assert message.startswith("[accounts.default] ")
    assert words in message


def test_the_database_url_may_be_a_reference(file: Path) -> None:
    found = load(file, '[store]\ndatabase_url_env = "DATABASE_URL"\n', DATABASE_URL="postgresql:///elsewhere")
    assert found.database_url == "postgresql:///elsewhere"


GATEWAY = """
    [accounts.default]
    transport = "http"
    url = "https://mail.example/send"
    body = { to = "{to}", subject = "{subject}" }
"""


def test_a_header_may_be_a_reference_with_a_prefix(file: Path) -> None:
    text = GATEWAY + 'headers = { Authorization = { env = "TOKEN", prefix = "Bearer " }, X-Shop = "inline" }\n'
    headers = load(file, text, TOKEN=SECRET).accounts["default"].options.model_dump()["headers"]
    shown = {name: value.get_secret_value() for name, value in headers.items()}
    assert shown == {"Authorization": f"Bearer {SECRET}", "X-Shop": "inline"}


@pytest.mark.parametrize("entry", ['{ env = "A", file = "B" }', '{ prefix = "A" }', '{ var = "A" }', "{}"])
def test_a_header_reference_of_another_form_is_refused(file: Path, entry: str) -> None:
    message = refused(file, GATEWAY + f"headers = {{ Authorization = {entry} }}\n")
    assert "headers.Authorization: write" in message


def test_no_form_of_the_settings_shows_a_secret(file: Path) -> None:
    text = f"""
        [store]
        database_url = "postgresql://u:{SECRET}@h/d"
        [safety]
        redirect_all_to = "{SECRET}@example.org"
        {ACCOUNT}
        password = "{SECRET}"
    """
    found = load(file, text)
    assert SECRET in found.database_url
    assert SECRET not in repr(found) + str(found) + repr(found.accounts) + f"{found.store} {found.safety}"


def test_a_command_that_sends_nothing_needs_no_secret(file: Path) -> None:
    file.write_text(ACCOUNT + 'password_env = "RELAY"\n', encoding="utf-8")
    assert settings.load(file, {}, with_accounts=False).accounts == {}


# Lanes ------------------------------------------------------------------------------------------------------------


def test_a_lane_changes_what_it_names_and_keeps_the_rest(file: Path) -> None:
    found = load(file, "[lanes.critical]\nplaces = 3\n[lanes.critical.retry]\nmax_attempts = 5\n")
    default = DEFAULT_LANES["critical"]
    assert found.lanes["critical"] == dataclasses.replace(
        default, places=3, retry=dataclasses.replace(default.retry, max_attempts=5)
    )
    assert found.lanes["bulk"] == DEFAULT_LANES["bulk"]


def test_delays_and_exponential_replace_each_other(file: Path) -> None:
    found = load(file, "[lanes.critical.retry]\nbase = 7\n[lanes.bulk.retry]\ndelays = [1, 2.5]\n")
    assert found.lanes["critical"].retry.delays == ()
    assert found.lanes["critical"].retry.delay(1) == pytest.approx(7, rel=0.11)
    assert found.lanes["bulk"].retry.delays == (1, 2.5)


def test_a_lane_of_another_name_starts_from_default_and_comes_last(file: Path) -> None:
    found = load(file, '[lanes.receipts]\nunknown = "resend"\n')
    assert list(found.lanes) == ["critical", "default", "bulk", "receipts"]
    assert found.lanes["receipts"] == dataclasses.replace(DEFAULT_LANES["default"], name="receipts", unknown="resend")


def test_a_shorter_lease_is_renewed_more_often(file: Path) -> None:
    assert load(file, "[worker]\nlease_seconds = 8\n").worker.renew_seconds == 3
    assert load(file, "[worker]\nlease_seconds = 60\n").worker.renew_seconds == 5
    for lease in (5, 8, 20, 21, 600):
        assert longest_renewal(lease) == (lease - lease_margin(lease)) / 2


def test_safety_is_read_as_envelopes_are_written(file: Path) -> None:
    text = '[safety]\nallowed_domains = ["Example.ORG", "bücher.example"]\nredirect_all_to = "Dev@Example.ORG"\n'
    safety = load(file, text).safety
    assert safety.allowed_domains == ("example.org", "xn--bcher-kva.example")
    assert safety.redirect_all_to == "Dev@example.org"
    assert load(file, "[safety]\nallowed_domains = []\n").safety.allowed_domains == ()
    assert load(file, "").safety.allowed_domains is None


# Documentation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        StoreSettings,
        TemporalSettings,
        WorkerSettings,
        StarterSettings,
        SafetySettings,
        LaneSettings,
        RetrySettings,
    ],
)
def test_every_section_and_its_keys_are_documented(model: type[BaseModel]) -> None:
    assert model.__doc__
    bare = [name for name, field in model.model_fields.items() if not field.description]
    assert bare == []


# What is made of the settings -------------------------------------------------------------------------------------


def test_a_worker_is_configured_as_the_file_says(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "variable:1")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "variable")
    text = f"""
        [store]
        database_url = "postgresql:///shop"
        pool_size = 7
        failover = "go_on"
        pooler = "session"
        [temporal]
        namespace = "file"
        task_queue_prefix = "shop"
        [worker]
        lease_seconds = 30
        renew_seconds = 4
        hand_off_seconds = 1
        drain_seconds = 9
        window_margin_seconds = 11
        breaker_mails = 3
        lanes = ["bulk"]
        with_starter = false
        [starter]
        poll_seconds = 2
        overdue_seconds = 90
        notify = false
        [safety]
        redirect_all_to = "dev@example.org"
        allowed_domains = ["example.org"]
        [templates]
        patience_hours = 2
        [alarms]
        source = "staging"
        repeat_seconds = [30, 600]
        oldest_due_seconds = 120
        backlog_mails = 500
        [watch]
        listen = "[::1]:9464"
        sample_seconds = 30
        [traces]
        exporter = "otlp_proto_http"
        service_name = "mail"
        [retention]
        record_days = 90
        templates = {{ login_code = 0 }}
        {ACCOUNT}
        password = "{SECRET}"
    """
    found = load(file, text)
    transports = settings.build_transports(found)
    config = settings.build_worker_config(found, transports, sdk_metrics="127.0.0.1:1")
    assert {f.name: getattr(config, f.name) for f in dataclasses.fields(config)} == {
        "database_url": "postgresql:///shop",
        "transports": transports,
        "fallbacks": {},
        "rates": {},
        "domains": {},
        "temporal": {"target_host": "variable:1", "namespace": "file"},
        "lanes": found.lanes,
        "served": ("bulk",),
        "task_queue_prefix": "shop",
        "worker_id": "",
        "pool_size": 7,
        "failover": "go_on",
        "pooler": "session",
        "rotated": None,
        "lease_seconds": 30,
        "renew_seconds": 4,
        "hand_off_seconds": 1,
        "drain_seconds": 9,
        "with_starter": False,
        "poll_seconds": 2,
        "notify": False,
        "overdue_seconds": 90,
        "window_margin": 11,
        "breaker_mails": 3,
        "templates": None,
        "template_patience": 7200.0,
        "redirect_all_to": "dev@example.org",
        "allowed_domains": ("example.org",),
        "retention": Retention(record_days=90, templates={"login_code": 0}),
        "payload_codec": None,
        "sandboxed": False,
        "watching": Watching(
            listen=("::1", 9464),
            sdk_metrics="127.0.0.1:1",
            sample_seconds=30,
            repeat_seconds=(30, 600),
            limits=Limits(120, 500),
            trace_exporter="otlp_proto_http",
            trace_service="mail",
        ),
    }
    assert transports["default"].identity == "smtp:relay.example:587:shop"
    assert SECRET not in repr(config)


def test_secrets_in_files_are_read_anew(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    profile = file.with_name("temporal.toml")
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(profile))
    profile.write_text('[profile.default]\napi_key = "first"\n')
    url, password = file.with_name("url"), file.with_name("password")
    url.write_text("postgresql://shop:first@host/shop\n")
    password.write_text("first")
    found = load(file, f'[store]\ndatabase_url_file = "url"\n{ACCOUNT}password_file = "password"\n')
    config = settings.build_worker_config(found, settings.build_transports(found))
    assert callable(config.database_url)
    assert config.rotated is not None
    assert config.database_url() == found.database_url == "postgresql://shop:first@host/shop"
    assert (config.rotated().accounts, config.rotated().api_key) == ({}, None)

    url.write_text("postgresql://shop:renewed@host/shop")
    password.write_text("renewed")
    profile.write_text('[profile.default]\napi_key = "renewed"\n')
    assert config.database_url() == "postgresql://shop:renewed@host/shop"
    rotation = config.rotated()
    assert rotation.api_key == "renewed"
    assert "renewed" not in repr(rotation)
    ((name, build),) = rotation.accounts.items()
    assert (name, build().settings_digest == config.digests["default"]) == ("default", False)
    assert (config.rotated().accounts, config.rotated().api_key) == ({}, None)

    # What is away for a moment, or half written, is as it was.
    url.unlink()
    password.unlink()
    profile.write_text("[profile")
    assert config.database_url() == "postgresql://shop:renewed@host/shop"
    assert (config.rotated().accounts, config.rotated().api_key) == ({}, None)
    assert caplog.text.count("not rotated") >= 2
    assert "renewed" not in caplog.text


def test_the_defaults_are_those_of_the_worker(file: Path) -> None:
    found = load(file, ACCOUNT + f'password = "{SECRET}"\n')
    transports = settings.build_transports(found)
    config = settings.build_worker_config(found, transports)
    bare = WorkerConfig(database_url="postgresql://", transports=transports)
    assert config.retention == Retention()
    assert dataclasses.replace(config, temporal=bare.temporal, retention=None) == bare
    assert config.temporal["target_host"] == "localhost:7233"


def test_the_files_temporal_address_wins_over_the_sdks_configuration(file: Path) -> None:
    found = load(file, '[temporal]\naddress = "file:2"\n')
    sdk = {"TEMPORAL_ADDRESS": "variable:1", "TEMPORAL_NAMESPACE": "variable", "TEMPORAL_API_KEY": SECRET}
    connection = settings.temporal_connection(found, sdk)
    assert (connection.get("target_host"), connection.get("namespace")) == ("file:2", "variable")
    assert connection.get("api_key") == SECRET


def test_a_broken_configuration_of_the_sdk_is_told_without_its_text(file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "temporal.toml"
    broken.write_text(f'[profile.default]\napi_key = "{SECRET}" nonsense\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"\[temporal\] the SDK's own configuration: .*TOML") as caught:
        settings.temporal_connection(load(file, ""), {"TEMPORAL_CONFIG_FILE": str(broken)})
    assert SECRET not in str(caught.value)


def test_no_account_or_one_whose_file_is_missing_is_refused(file: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no account to send with; write \[accounts.default\]"):
        settings.build_transports(load(file, ""))
    text = f'[accounts.default]\ntransport = "smtp"\nhost = "h"\nca_file = "{file.parent}/nothere.pem"\n'
    with pytest.raises(ConfigurationError, match=r"\[accounts.default\] .*No such file"):
        settings.build_transports(load(file, text))


def test_false_says_none_where_a_key_may_be_unset(file: Path) -> None:
    options = load(file, GATEWAY + "key_window = false\nkey_header = false\n").accounts["default"].options
    assert (options.model_dump()["key_window"], options.model_dump()["key_header"]) == (None, None)
    assert "url" in refused(file, GATEWAY.replace('"https://mail.example/send"', "false"))


async def test_start_up_warns_of_what_nobody_can_have_meant(file: Path) -> None:
    text = f"""
        {GATEWAY}
        key_window = 600
        [accounts.relay]
        transport = "smtp"
        host = "relay.example"
        [lanes.bulk]
        answer_seconds = 60
        [lanes.critical.retry]
        delays = [10, 100000]
        [safety]
        redirect_all_to = "dev@example.org"
        allowed_domains = []
    """
    found = load(file, text)
    transports = settings.build_transports(found)
    warnings = settings.warnings(found, transports)
    for words in (
        ("[lanes.critical.retry] delays add up", "the last never act"),
        ("[lanes.bulk.retry] with account 'default': ", "beyond the 300 s in which"),
        ("[lanes.bulk] answer_seconds = 60 with account 'relay' (SMTP)", "RFC 5321 4.5.3.2.6"),
        ("[safety] redirect_all_to is set", ""),
        ("[safety] allowed_domains is set", ""),
    ):
        assert len([w for w in warnings if w.startswith(words[0]) and words[1] in w]) == 1, words
    assert len(warnings) == 5
    assert "dev@example.org" not in " ".join(warnings)
    for transport in transports.values():
        await transport.close()


async def test_a_window_that_is_too_short_is_refused_where_the_settings_say_so(file: Path) -> None:
    text = f'{GATEWAY}\nkey_window = 600\n[lanes.bulk.retry]\nbase = 301\n[worker]\nshort_windows = "refuse"\n'
    found = load(file, text)
    transports = settings.build_transports(found)
    with pytest.raises(
        ConfigurationError, match=r"short_windows = \"refuse\": \[lanes.bulk.retry\] with account"
    ) as error:
        settings.build_worker_config(found, transports)
    assert "beyond the 300 s in which the provider's key can be used again" in str(error.value)
    settings.build_worker_config(load(file, text.replace("301", "299")), transports)
    settings.build_worker_config(load(file, text.replace("refuse", "warn")), transports)
    for transport in transports.values():
        await transport.close()


def test_rates_are_read(file: Path) -> None:
    text = f'{ACCOUNT}password = "{SECRET}"\nrates = ["14/s", "50000/day"]\n'
    found = load(file, text)
    assert found.accounts["default"].rates == (Rate(14, 1.0, 1), Rate(50000, 86400.0, 50000))
    assert settings.build_worker_config(found, settings.build_transports(found)).rates == {
        "default": found.accounts["default"].rates
    }
    for wrong, words in (
        ('"14/s"', 'must be a list of rates; write ["14/s", "50000/day"]'),
        ("[14]", "must be a list of rates"),
        ('["14/sec"]', "'14/sec' is no rate; write 14/s"),
        ('["60/min", "1/60s"]', "two of them are about the same time"),
    ):
        message = refused(file, text.replace('["14/s", "50000/day"]', wrong))
        assert message.startswith("[accounts.default] rates")
        assert words in message
    shares = load(file, text + "[lanes.bulk]\nrate_share = 0.9\n")
    with pytest.raises(ConfigurationError, match=r"rates of default: .* leave nothing .*critical 0.2.* bulk 0.9"):
        settings.build_worker_config(shares, settings.build_transports(shares))


def test_limits_of_a_destination_are_read(file: Path) -> None:
    text = (
        f'{ACCOUNT}password = "{SECRET}"\n[accounts.default.domains."Bücher.example"]\nrates = ["20/s"]\nat_once = 5\n'
    )
    found = load(file, text)
    config = settings.build_worker_config(found, settings.build_transports(found))
    assert config.domains == {"default": {"xn--bcher-kva.example": DomainLimit((Rate(20, 1.0, 2),), 5)}}
    assert config.at_once() == {"default": {"xn--bcher-kva.example": 5}}
    assert config.pools().keys() == {"default@xn--bcher-kva.example"}
    for wrong, words in (
        ("at_once = 0", "at_once"),
        ("rates = 5", "rates"),
        ('rates = ["5"]', "'5' is no rate"),
        ("speed = 5", "unknown key 'speed'"),
    ):
        assert words in refused(file, text.replace("at_once = 5", wrong).replace('rates = ["20/s"]\n', ""))
    assert "is no domain" in refused(file, text.replace("Bücher.example", "a b"))


def test_the_fallback_is_another_account(file: Path) -> None:
    two = f'{ACCOUNT}password = "{SECRET}"\nfallback = "second"\n[accounts.second]\ntransport = "smtp"\nhost = "h"\n'
    found = load(file, two)
    assert [found.accounts[name].fallback for name in ("default", "second")] == ["second", None]
    config = settings.build_worker_config(found, settings.build_transports(found))
    assert config.fallbacks == {"default": "second"}
    for wrong in ('"default"', '"third"', "3", '["second"]'):
        message = refused(file, two.replace('fallback = "second"', f"fallback = {wrong}"))
        assert message.startswith("[accounts.default] fallback must be the name of another account; there are second")
    alone = refused(file, f'{ACCOUNT}password = "{SECRET}"\nfallback = "second"\n')
    assert alone == "[accounts.default] fallback must be the name of another account; there is none"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f'{ACCOUNT}password = "a\\u0000b"\n', "accounts.default.password"),
        (f'{ACCOUNT}ca_file = "\\u0000"\n', "accounts.default.ca_file"),
        (f'{ACCOUNT}password_file = "\\u0000"\n', "accounts.default.password_file"),
        ('[worker]\nlanes = ["default", "\\u0000"]\n', "worker.lanes.1"),
        ('[accounts."\\u0000"]\n', "accounts"),
        ('"\\u0000" = 1\n', "a name"),
    ],
)
def test_nul_is_refused_wherever_it_stands(file: Path, text: str, key: str) -> None:
    assert refused(file, text) == f"{key}: holds the character NUL; leave it out"


@pytest.mark.parametrize("value", ["[" * 5000, "1" * 6000])
def test_what_is_beyond_the_readers_limits_is_refused(file: Path, value: str) -> None:
    assert "is nested too deeply, or holds a number" in refused(file, f"[store]\npool_size = {value}\n")


def test_a_folder_of_templates_that_can_be_no_folder(file: Path) -> None:
    found = load(file, f'[templates]\nfolder = "{"x" * 5000}"\n')
    with pytest.raises(ConfigurationError, match="templates cannot be read: File name too long; name another"):
        settings.compose.build_templates(found)


async def test_a_lane_that_is_not_served_here_is_not_warned_of(file: Path) -> None:
    text = f'{ACCOUNT}password = "{SECRET}"\n[lanes.bulk]\nanswer_seconds = 60\n[worker]\nlanes = ["critical"]\n'
    found = load(file, text)
    assert settings.warnings(found, settings.build_transports(found)) == []


REGISTERED = """
from pydantic import BaseModel, SecretStr
from sendonce.activities.transports.base import Capability

class Settings(BaseModel):
    token: SecretStr
    loud: bool = True

class Pigeon:
    settings_model = Settings
    capability, identity, settings_digest, key_window = Capability(), "pigeon", "1", None

    def __init__(self, settings):
        self.settings = settings

    def slot(self, generation): ...
    def render(self, mail, recipients, provider_key): ...
    async def transmit(self, job, gate): ...
    async def close(self): ...

class Bare:
    pass
"""


def test_a_transport_of_another_package_is_found_by_its_entry_point(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pigeon_post.py").write_text(REGISTERED, encoding="utf-8")
    metadata = tmp_path / "pigeon_post-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-post\nVersion: 1\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(
        "[sendonce.transports]\npigeon = pigeon_post:Pigeon\nbare = pigeon_post:Bare\ngone = pigeon_post:Gone\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = load(file, '[accounts.default]\ntransport = "pigeon"\ntoken_env = "TOKEN"\nloud = false\n', TOKEN=SECRET)
    built: object = settings.build_transports(found)["default"]
    assert type(built).__name__ == "Pigeon"
    assert found.accounts["default"].options.model_dump() == {"token": SecretStr(SECRET), "loud": False}
    known = refused(file, '[accounts.a]\ntransport = "dove"\n')
    assert "known are smtp, http, resend, postmark, brevo, ses, sendgrid, mailgun, sparkpost, lettermint, " in known
    assert "ahasend, mailjet, azure, bare, gone, pigeon" in known
    assert "pigeon_post:Bare is no transport: it lacks settings_model" in refused(
        file, '[accounts.a]\ntransport = "bare"\n'
    )
    assert "pigeon_post:Gone cannot be loaded" in refused(file, '[accounts.a]\ntransport = "gone"\n')
