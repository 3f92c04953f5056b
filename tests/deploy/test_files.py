"""Compose, Dockerfile and the Kubernetes example: valid by the published schemas, and consistent with each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import yaml
from psycopg.conninfo import conninfo_to_dict

from sendonce import settings
from tests.deploy.files import (
    COMPOSE,
    ROOT,
    SETTINGS,
    instructions,
    manifest,
    manifests,
    read,
    read_yaml,
    schema,
    services,
)

if TYPE_CHECKING:
    from tests.conftest import Run

MARGIN = 20
"""Seconds, at least, between the end of the drain and the kill."""


# Compose ----------------------------------------------------------------------------------------------------------


def test_compose_is_valid() -> None:
    validator = jsonschema.Draft202012Validator(schema("compose-spec.json"))
    assert [error.message for error in validator.iter_errors(read_yaml(COMPOSE))] == []
    broken = read_yaml(COMPOSE)
    broken["services"]["worker"]["depends_upon"] = []
    assert list(validator.iter_errors(broken)) != []


def test_images_are_pinned_and_ports_are_on_loopback() -> None:
    for name, service in services().items():
        tag = service["image"].rpartition(":")[2]
        assert re.fullmatch(r"v?\d+(\.\d+)+", tag), name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
    release = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    assert services()["worker"]["image"] == f"sendonce:{release}"
    # The schema is made by the tool of the server's own release.
    temporal = {
        name: one["image"].rpartition(":")[2] for name, one in services().items() if name.startswith("temporal")
    }
    assert temporal["temporal"] == temporal["temporal-schema"] == temporal["temporal-namespace"]


def test_what_services_name_is_there() -> None:
    whole = read_yaml(COMPOSE)
    for name, service in services().items():
        for kind in ("configs", "secrets"):
            for used in service.get(kind, []):
                assert (used if isinstance(used, str) else used["source"]) in whole[kind], name
        for other, depends in service.get("depends_on", {}).items():
            condition = depends["condition"]
            # A service of a profile may wait for those that start without one, or by the profile app.
            assert set(services()[other].get("profiles", [])) <= {"app", *service.get("profiles", [])}
            if condition == "service_completed_successfully":
                assert services()[other]["restart"].startswith("on-failure"), f"{name} waits for {other} for ever"
            else:
                assert "healthcheck" in services()[other] or other == "mailpit", f"{other} has no health check"
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in whole["volumes"], name
    for config in whole["configs"].values():
        assert (ROOT / config["file"]).is_file()
    # A password is never in the file, nor in the environment that `docker inspect` shows.
    for name, service in services().items():
        for variable in service.get("environment", {}):
            assert not re.search(r"PASSWORD|PWD|URL", variable) or variable.endswith("FILE"), f"{name}: {variable}"


def test_the_passwords_are_made_once_and_fit_the_services(tmp_path: Path) -> None:
    shutil.copy(ROOT / "deploy/secrets.sh", tmp_path)

    def made() -> dict[str, str]:
        subprocess.run(["sh", tmp_path / "secrets.sh"], check=True, capture_output=True)
        return {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}

    first = made()
    wanted = {Path(one["file"]).name for one in read_yaml(COMPOSE)["secrets"].values()}
    assert set(first) == wanted
    passwords = [text for name, text in first.items() if name != "database_url"]
    assert all(re.fullmatch(r"[0-9a-f]{48}", text) for text in passwords)
    assert len(set(passwords)) == len(passwords)
    found = conninfo_to_dict(first["database_url"].strip())
    assert (found["password"], found["user"]) == (
        first["store_password"],
        services()["store"]["environment"]["POSTGRES_USER"],
    )
    assert found["host"] in services()
    # The host's folder keeps others out; the users of the containers, who are others, read the files.
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "secrets").iterdir()} == {0o644}
    assert made() == first
    ignored = read(".gitignore").splitlines()
    assert "deploy/secrets/" in ignored


def test_a_worker_has_more_time_than_its_drain_before_it_is_killed(tmp_path: Path) -> None:
    for text, grace in (
        (read(SETTINGS), int(services()["worker"]["stop_grace_period"].removesuffix("s"))),
        (_settings_of_kubernetes(), _pod()["terminationGracePeriodSeconds"]),
    ):
        file = tmp_path / "sendonce.toml"
        file.write_text(re.sub(r"/run/secrets(/sendonce)?", str(tmp_path), text), encoding="utf-8")
        (tmp_path / "database_url").write_text("postgresql://shop@db/shop\n")
        (tmp_path / "smtp_password").write_text("horse\n")
        found = settings.load(file, {})
        assert found.worker.drain_seconds + MARGIN <= grace
        assert found.watch.listen == "0.0.0.0:9464"
        assert settings.build_transports(found).keys() == {"default"}
    assert "EXPOSE 9464" in read("Dockerfile")


# The image --------------------------------------------------------------------------------------------------------


def test_the_image_is_small_and_not_root() -> None:
    last = max(index for index, (name, _) in enumerate(instructions()) if name == "FROM")
    final = instructions()[last:]
    values = dict(final)
    uid = values["USER"].partition(":")[0]
    assert int(uid) > 0
    assert values["STOPSIGNAL"] == "SIGTERM"
    assert (json.loads(values["ENTRYPOINT"]), json.loads(values["CMD"])) == (["sendonce"], ["worker"])
    # Of the stage that builds, one folder comes over, and nothing of uv.
    assert [rest for name, rest in final if name == "COPY"] == ["--from=build /opt/sendonce /opt/sendonce"]
    assert not any("apt-get" in rest or "uv " in rest for _, rest in final)
    for name, rest in instructions():
        if name == "FROM":
            image = rest.split(" ")[0]
            assert re.search(r":\d+\.\d+", image), image
    # The same user everywhere, or its files cannot be read.
    for pod in (_pod(), manifest("Job", "sendonce-setup-0-1-0")["spec"]["template"]["spec"]):
        assert pod["securityContext"]["runAsUser"] == int(uid)
    health = re.findall(r"CMD (\[.*\])", values["HEALTHCHECK"])
    assert json.loads(health[0])[:2] == ["python", "-c"]


def test_only_what_is_built_from_is_sent_to_the_builder() -> None:
    lines = [line for line in read(".dockerignore").splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        source
        for name, rest in instructions()
        if name == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    assert copied == let_in
    assert all((ROOT / name).exists() for name in let_in)
    assert not any(fnmatch("deploy/secrets/store_password", f"{name}*") for name in let_in)


# Kubernetes -------------------------------------------------------------------------------------------------------


def _pod() -> dict[str, Any]:
    found: dict[str, Any] = manifest("Deployment", "sendonce-worker")["spec"]["template"]["spec"]
    return found


def _settings_of_kubernetes() -> str:
    return str(manifest("ConfigMap", "sendonce-settings")["data"]["sendonce.toml"])


def _validator(kind: str) -> jsonschema.Draft202012Validator:
    whole = schema("kubernetes.json")
    return jsonschema.Draft202012Validator({"$defs": whole["$defs"], **whole["kinds"][kind]})


def test_manifests_are_valid() -> None:
    found = manifests()
    assert {one["kind"] for one in found} == set(schema("kubernetes.json")["kinds"])
    for one in found:
        errors = [error.message for error in _validator(one["kind"]).iter_errors(one)]
        assert errors == [], one["metadata"]["name"]
    broken = manifest("Deployment", "sendonce-worker")
    broken["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    assert list(_validator("Deployment").iter_errors(broken)) != []


def test_manifests_fit_together() -> None:
    deployment = manifest("Deployment", "sendonce-worker")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    selectors = (
        deployment["selector"],
        manifest("PodDisruptionBudget", "sendonce-worker")["spec"]["selector"],
        manifest("NetworkPolicy", "sendonce-worker")["spec"]["podSelector"],
    )
    assert all(one["matchLabels"].items() <= labels.items() for one in selectors)
    # The last worker may be taken from nobody: with one replica a drained node would stop all mail.
    assert deployment["replicas"] > manifest("PodDisruptionBudget", "sendonce-worker")["spec"]["maxUnavailable"]
    (container,) = _pod()["containers"]
    (port,) = container["ports"]
    for probe, path in (("livenessProbe", "/healthz"), ("startupProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    release = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    job = manifest("Job", f"sendonce-setup-{release.replace('.', '-')}")["spec"]["template"]["spec"]
    assert container["image"] == job["containers"][0]["image"]
    assert container["image"].endswith(f":{release}")
    for pod in (_pod(), job):
        (one,) = pod["containers"]
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {mount["name"] for mount in one["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    # What files the settings name is what the secret holds.
    named = set(re.findall(r"/run/secrets/sendonce/(\w+)", _settings_of_kubernetes()))
    assert named == set(manifest("Secret", "sendonce")["stringData"])
    (variable,) = job["containers"][0]["env"]
    reference = variable["valueFrom"]["secretKeyRef"]
    assert reference["key"] in manifest("Secret", reference["name"])["stringData"]
    for secret in ("sendonce", "sendonce-owner"):
        assert conninfo_to_dict(manifest("Secret", secret)["stringData"]["database_url"])["sslmode"] == "verify-full"


def test_templates_are_found_where_kubernetes_mounts_them(tmp_path: Path, run: Run) -> None:
    """A mounted ConfigMap is links: to a dot folder with the date, by way of ``..data``."""
    (volume,) = [one for one in _pod()["volumes"] if one["name"] == "settings"]
    mounted = tmp_path / "sendonce"
    dated = mounted / "..2026_11_30_10_00_00.123456789"
    for source in volume["projected"]["sources"]:
        data = manifest("ConfigMap", source["configMap"]["name"])["data"]
        items = source["configMap"].get("items", [{"key": key, "path": key} for key in data])
        assert {item["key"] for item in items} == set(data)
        for item in items:
            file = dated / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(data[item["key"]].replace("/run/secrets/sendonce", str(tmp_path)), encoding="utf-8")
    (mounted / "..data").symlink_to(dated.name)
    for top in dated.iterdir():
        (mounted / top.name).symlink_to(f"..data/{top.name}")
    (tmp_path / "database_url").write_text("postgresql://shop@db/shop\n")
    done = run("templates", "check", "--config", str(mounted / "sendonce.toml"))
    assert done.code == 0, done.err
    assert done.out == "1 template is in order\n"  # and not the dated folder's once more
    shown = run("templates", "preview", "order_confirmation", "--config", str(mounted / "sendonce.toml"))
    assert "Your order 4711" in shown.out, shown.err


def test_yaml_is_read_as_kubernetes_reads_it() -> None:
    """``on``, ``no`` and octal numbers are what they look like in both readings of YAML."""
    for file in sorted((ROOT / "deploy").rglob("*.y*ml")):
        text = file.read_text(encoding="utf-8")
        assert list(yaml.safe_load_all(text)) != [None], file
        assert not re.search(r":\s+(yes|no|on|off)\s*$", text, re.MULTILINE | re.IGNORECASE), file
