"""What the documentation says of defaults, bounds, names and limits is what the code says."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import annotated_types
import pytest
import typer
from pydantic import BaseModel, SecretStr

from sendonce import checks, message, outcome, settings
from sendonce.activities.inflight import lease_margin
from sendonce.activities.pulse import Pulse
from sendonce.activities.transports.capability_table import capability_table
from sendonce.activities.transports.http_settings import USUAL_BODY, GatewaySettings
from sendonce.activities.transports.smtp import SmtpTransport
from sendonce.activities.transports.smtp_replies import refusal
from sendonce.activities.transports.smtp_settings import SmtpPoolSettings, SmtpSettings, SmtpTimeouts
from sendonce.activities.upkeep import patience
from sendonce.cli import app
from sendonce.cli.base import ExitCode
from sendonce.errors import ConfigurationError
from sendonce.outcome import Reply
from sendonce.policy import DEFAULT_LANES, LONGEST_DELAY, LanePolicy, RetryPolicy
from sendonce.ready_made import HEADER_LIMIT
from sendonce.settings import transports
from sendonce.settings.loading import ENVIRONMENT
from sendonce.settings.model import (
    LaneSettings,
    RetentionSettings,
    RetrySettings,
    SafetySettings,
    StarterSettings,
    StoreSettings,
    TemplateSettings,
    TemporalSettings,
    WorkerSettings,
)
from sendonce.settings.watching import AlarmSettings, LogSettings, SinkSettings, TraceSettings, WatchSettings
from sendonce.stages import Stage
from sendonce.store import conditions
from sendonce.store.gauges import COUNTED, Outstanding, Sample
from sendonce.store.heartbeats import SERVED_SECONDS, SILENT_SECONDS
from sendonce.store.offers import LOCK_TIMEOUT_MS
from sendonce.store.sweeps import LAPSE_ALARM_SECONDS
from sendonce.watching.message import FIELDS
from sendonce.watching.metrics import Metrics, Seen

if TYPE_CHECKING:
    from tests.docs.conftest import Page

CONFIGURATION = "docs/configuration.md"


# Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("`[store]`", StoreSettings),
        ("`[temporal]`", TemporalSettings),
        ("`[worker]`", WorkerSettings),
        ("`[starter]`", StarterSettings),
        ("`[safety]`", SafetySettings),
        ("`[templates]`", TemplateSettings),
        ("`[alarms]`", AlarmSettings),
        ("`[sinks.<name>]`", SinkSettings),
        ("`[watch]`", WatchSettings),
        ("`[traces]`", TraceSettings),
        ("`[log]`", LogSettings),
        ("`[retention]`", RetentionSettings),
        ('`transport = "smtp"`', SmtpSettings),
        ("`pool` of an SMTP account", SmtpPoolSettings),
        ("`timeouts` of an SMTP account", SmtpTimeouts),
        ('`transport = "http"`', GatewaySettings),
    ],
)
def test_every_key_with_its_default_and_bounds(pages: dict[str, Page], heading: str, model: type[BaseModel]) -> None:
    documented = {row["key"]: (row["default"], row["bounds"]) for row in pages[CONFIGURATION].table(heading)}
    assert documented == {name: (shown(field), bounds(field)) for name, field in model.model_fields.items()}


@pytest.mark.parametrize("provider", sorted(set(transports.BUILT_IN) - {"smtp", "http"}))
def test_a_providers_page(
    pages: dict[str, Page], provider: str, tmp_path: Path, example_secrets: Callable[[str], dict[str, str]]
) -> None:
    page = pages[f"docs/providers/{provider}.md"]
    factory, model = transports.find(provider)
    documented = {row["key"]: (row["default"], row["bounds"]) for row in page.table("Settings")}
    assert documented == {name: (shown(field), bounds(field)) for name, field in model.model_fields.items()}
    example = page.blocks("toml")[0].text
    file = tmp_path / "sendonce.toml"
    file.write_text(example, encoding="utf-8")
    found = settings.load(file, example_secrets(example))
    (built,) = settings.build_transports(found).values()
    assert isinstance(built, factory)
    # The page's row, and the same one in the table of all.
    row = capability_table({provider: built.capability}).splitlines()[-1]
    assert row in page.text
    assert row in pages["docs/providers.md"].text
    assert f"| `{provider}` |" in pages["docs/providers.md"].text


def test_the_table_of_providers_has_smtp(pages: dict[str, Page]) -> None:
    assert capability_table({"smtp": SmtpTransport.capability}).splitlines()[-1] in pages["docs/providers.md"].text


def shown(field: Any) -> str:
    """A default as it would be written in the file."""
    value = "required" if field.is_required() else field.default
    if isinstance(value, BaseModel):
        return ""  # a table of its own
    if value == USUAL_BODY:
        return "see below"
    return "required" if field.is_required() else toml(value)


def toml(value: object) -> str:
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case SecretStr():
            return toml(value.get_secret_value())
        case str():
            return f'"{value}"'
        case int() | float():
            return f"{value:g}"
        case tuple():
            return f"[{', '.join(toml(one) for one in value)}]"
        case {}:
            return "{}"
    raise TypeError(value)


def bounds(field: Any) -> str:
    low: Any = None
    high: Any = None
    above = ""
    for limit in field.metadata:
        match limit:
            case annotated_types.Ge():
                low = limit.ge
            case annotated_types.Gt():
                low, above = limit.gt, "above "
            case annotated_types.Le():
                high = limit.le
    return "" if low is None else f"{above}{low} to {high}"


def test_every_variable(pages: dict[str, Page]) -> None:
    documented = {row["variable"]: row["key"].partition(",")[0] for row in pages[CONFIGURATION].table("Variables")}
    assert documented == {variable: f"[{section}] {key}" for variable, (section, key) in ENVIRONMENT.items()}


def test_the_lanes_and_their_retry_policies(pages: dict[str, Page]) -> None:
    documented = pages[CONFIGURATION].section("Lanes")
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in documented.splitlines() if "|" in line]
    policies = {name: [plain(getattr(lane.retry, key)) for key in rows[0][1:]] for name, lane in DEFAULT_LANES.items()}
    assert {row[0]: row[1:] for row in rows[2:]} == policies
    assert rows[0][1:] == [field.name for field in fields(RetryPolicy)]


def plain(value: object) -> str:
    return toml(value) if isinstance(value, tuple) else str(int(value) if value == int(value) else value)  # type: ignore[call-overload]


def test_the_keys_of_a_lane(pages: dict[str, Page]) -> None:
    rows = {row["key"]: row for row in pages[CONFIGURATION].table("`[lanes.<name>]`")}
    assert rows.keys() == LaneSettings.model_fields.keys()
    for lane in DEFAULT_LANES.values():
        for name in rows.keys() - {"retry", "rate_share", "urgent"}:
            assert rows[name]["default"] == toml(getattr(lane, name)), (lane.name, name)
    assert rows["rate_share"]["default"] == toml(int(LanePolicy("x").rate_share))
    shares = {name: lane.rate_share for name, lane in DEFAULT_LANES.items()}
    assert shares == {"critical": 0.2, "default": 0.1, "bulk": 0.1}
    assert rows["rate_share"]["meaning"].endswith("of critical 0.2, of default and bulk 0.1")
    assert rows["urgent"]["default"] == toml(LanePolicy("x").urgent)
    assert [name for name, lane in DEFAULT_LANES.items() if lane.urgent] == ["critical"]
    assert rows["urgent"]["meaning"].endswith("of critical true")

    def make(name: str, value: float) -> LanePolicy:
        changes: dict[str, Any] = {name: (value,) if name == "greylist_delays" else value}
        return replace(LanePolicy("x"), **changes)

    keep_to_bounds(rows, make)


def test_the_keys_of_a_retry_policy(pages: dict[str, Page]) -> None:
    rows = {row["key"]: row for row in pages[CONFIGURATION].table("`[lanes.<name>.retry]`")}
    assert list(rows) == list(RetrySettings.model_fields)

    def make(name: str, value: float) -> RetryPolicy:
        changes: dict[str, Any] = {name: (value,) if name == "delays" else value}
        return replace(RetryPolicy(), **changes)

    keep_to_bounds(rows, make)


def keep_to_bounds(rows: dict[str, dict[str, str]], make: Any) -> None:
    """Each bound that is documented is taken, and nothing beyond it."""
    checked = 0
    for name, row in rows.items():
        if not row["bounds"]:
            continue
        low, high = (float(number) for number in row["bounds"].split(" to "))
        whole = name in ("places", "max_attempts")
        for value in (low, high):
            # The lowest unknown_days is an hour, which has no short decimal form.
            make(name, int(value) if whole else value * (1 + 1e-5) if value == low and low < 0.1 else value)
        for value in (low * 0.99 - (1 if whole or low == 0 else 0), high + 1):
            with pytest.raises(ConfigurationError):
                make(name, int(value) if whole else value)
        checked += 1
    assert checked > 2


# Stages, outcomes, numbers ----------------------------------------------------------------------------------------


def test_the_stage_table(pages: dict[str, Page]) -> None:
    section = pages["docs/architecture.md"].section("Stages")
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    kinds = [next(f.default for f in fields(one) if f.name == "kind") for one in get_args(outcome.Outcome)]
    assert named == [*map(str, Stage), *kinds]


def test_the_limits(pages: dict[str, Page]) -> None:
    rows = {row["what"]: row["limit"] for row in pages["docs/guarantees.md"].table("Limits")}
    assert rows["recipients of one mail"] == str(message.MAX_RECIPIENTS)
    assert (
        rows["text, HTML, parameters and attachments in base64; ready-made MIME as it is"]
        == f"{message.CONTENT_LIMIT} octets"
    )
    assert rows["To, Cc, Reply-To and further headers together"] == f"{HEADER_LIMIT} octets"
    assert rows["one header line"] == f"{checks.LINE_LIMIT} octets"
    assert rows["reply text kept in the store"] == f"{outcome.TEXT_LIMIT} characters"
    assert rows["wait between two attempts"] == f"{LONGEST_DELAY:.0f} seconds"


def test_what_an_smtp_reply_means(pages: dict[str, Page]) -> None:
    documented = pages["docs/smtp.md"].table("What a reply means")
    for row in documented:
        code, _, enhanced = row["reply"].partition(" ")
        for at in row["in answer to"].split():
            found = refusal(Reply(int(code), enhanced), at)
            assert found is not None
            shown = {"account": "pause of the account", "sender": "pause of the From domain"}.get(
                getattr(found, "scope", ""), "greylist delays" if getattr(found, "greylisted", False) else found.kind
            )
            assert shown == row["what it means"], (at, row["reply"])
    assert {at for row in documented for at in row["in answer to"].split()} == {"mail", "rcpt", "data", "dot"}


def test_the_numbers_in_the_text(pages: dict[str, Page]) -> None:
    worker, starter = WorkerSettings(), StarterSettings()
    sentences = {
        "docs/architecture.md": [
            f"It stands {worker.lease_seconds:g} seconds and is renewed every {worker.renew_seconds:g};",
            f"stops {lease_margin(worker.lease_seconds):g} seconds before its lease can lapse",
            f"at most {worker.hand_off_seconds:g} seconds and then answers that it goes on",
            f"neither started nor seen for {starter.overdue_seconds:g} seconds",
            f"It waits {LOCK_TIMEOUT_MS / 1000:g} seconds for a lock",
        ],
        "docs/guarantees.md": [
            f"The alarm comes {LAPSE_ALARM_SECONDS:g} seconds later",
            f"The answer timer at the final dot is {LanePolicy('x').answer_seconds / 60:g} minutes",
        ],
    }
    for name, expected in sentences.items():
        text = " ".join(pages[name].prose.split())
        assert [sentence for sentence in expected if sentence not in text] == []


# Tests and modules ------------------------------------------------------------------------------------------------


def test_every_test_that_is_named_exists(page: Page, root: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.text)
    assert [f"{file}::{name}" for file, name in named if name not in names_of_tests(root / file)] == []


def names_of_tests(file: Path) -> set[str]:
    if not file.is_file():
        return set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_every_promise_names_its_tests(pages: dict[str, Page]) -> None:
    page = pages["docs/guarantees.md"]
    headings = re.findall(r"^### (\d+\. .+)$", page.text, re.MULTILINE)
    assert [heading.partition(".")[0] for heading in headings] == [str(n) for n in range(1, 10)]
    assert [heading for heading in headings if "`tests/" not in page.section(heading)] == []
    assert "`tests/" in page.section("Silence")
    assert "`tests/" in page.section("Isolation levels")


def test_every_module_is_on_the_map(pages: dict[str, Page], root: Path) -> None:
    named = [row["module"] for row in pages["docs/architecture.md"].table("Modules")]
    folders = tuple(name for name in named if name.endswith("/"))
    modules = {
        path.relative_to(root).as_posix() for path in (root / "sendonce").rglob("*.py") if path.read_text().strip()
    }
    assert {name for name in modules if not name.startswith(folders)} == set(named) - set(folders)
    assert len(named) == len(set(named))


# Command line and SQL ---------------------------------------------------------------------------------------------


def test_every_extra(pages: dict[str, Page], root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    documented = [row["extra"] for row in pages["docs/installing.md"].table("Extras")]
    assert sorted(documented) == sorted(project["optional-dependencies"])


def test_every_command(pages: dict[str, Page]) -> None:
    documented = [row["command"] for row in pages["docs/cli.md"].table("Commands")]
    assert sorted(documented) == sorted(typer.main.get_group(app).commands)


def test_the_exit_codes(pages: dict[str, Page]) -> None:
    documented = [row["code"] for row in pages["docs/cli.md"].table("Exit codes")]
    assert documented == [str(int(code)) for code in ExitCode]


def test_every_kind_of_alarm(pages: dict[str, Page], root: Path) -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (root / "sendonce" / "store").glob("*.py"))
    raised = set(re.findall(r'raise_(?:once|alarm)\(\s*conn,\s*"(\w+)"', source))
    raised |= set(re.findall(r"SELECT c\.now, '(\w+)'", source))
    raised |= {str(Stage.DEAD), str(Stage.EXPIRED)}  # raised under the stage's name
    raised |= {conditions.LOOP_DEAD, conditions.OVERDUE, conditions.BACKLOG, conditions.GAP}
    raised |= {conditions.OLD_TRANSACTION}
    assert {row["kind"] for row in pages["docs/cli.md"].table("Alarms")} == raised


def test_a_message_about_alarms_and_the_metrics(pages: dict[str, Page]) -> None:
    page = pages["docs/watching.md"]
    rows = [line for line in page.section("Alarms").splitlines() if line.startswith("| `")]
    assert {line.split("`")[1] for line in rows} == FIELDS
    pulse = Pulse()
    pulse.expect("leases", 1.0)
    sample = Sample(0.0, (Outstanding("default", "default", "pending", 1, 1, 1.0),), {"dead": 1}, None, fresh=True)
    metrics = Metrics(pulse, Seen(sample, 0.0, {"mails": {"used": 1}}), accounts=[], lanes=[], clock=lambda: 0.0)
    families = {family.name: family for family in metrics.registry.collect() if family.name.startswith("sendonce_")}
    shown = {name + ("_total" if family.type == "counter" else "") for name, family in families.items()}
    assert {row["metric"] for row in page.table("Metrics")} == shown
    prose = " ".join(page.prose.split())
    assert f"that has not come round for {patience(5.0):.0f} seconds" in prose
    assert f"a process that has been silent for {SILENT_SECONDS:.0f}." in prose
    assert SERVED_SECONDS == 3600
    assert "served all its lanes for an hour" in prose
    assert f"stops at {COUNTED:,} rows of a kind" in prose


def test_every_member_of_a_message(pages: dict[str, Page]) -> None:
    documented = [row["member"] for row in pages["docs/sql.md"].table("The message")]
    # The typed API finds the caller's span by itself.
    members = message.OutgoingEmail.model_fields.keys() - {"attachments"} | {"traceparent"}
    assert sorted(documented) == sorted(members)
