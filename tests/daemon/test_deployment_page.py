"""docs/deployment.md and deploy/: the files are valid, and agree with the code and each other."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import yaml
from support.certificates import write_certificate
from support.daemon import llm_yaml, running_daemon
from support.servers import NginxServer, find_program, for_installed_nginx
from support.tables import each_row

from anaphora.cli.common import anaphora
from anaphora.client.config import ClientConfig
from anaphora.daemon.home.config import DaemonConfig, daemon_config
from anaphora.daemon.home.extensions import Grants
from anaphora.emulator.server import Emulator

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "deployment.md").read_text()
#: The strict JSON Schemas of Kubernetes' API, of the objects that are used.
SCHEMA = json.loads((ROOT / "tests" / "support" / "kubernetes-1.34.json").read_text())
MANIFEST = (DEPLOY / "kubernetes" / "anaphora.yaml").read_text()


def objects(text: str = MANIFEST) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def one(kind: str) -> dict[str, Any]:
    (found,) = (each for each in objects() if each["kind"] == kind)
    return found


def check_command(words: list[str]) -> None:
    """Fails where the command or one of its options does not exist."""
    context, command = anaphora.make_context("anaphora", list(words)), anaphora
    name = words[0]
    found: Any = command.get_command(context, name)
    rest = words[1:]
    while rest and hasattr(found, "get_command"):
        sub = found.get_command(context, rest[0])
        if sub is None:
            break
        name, rest, found = rest[0], rest[1:], sub
    found.make_context(name, list(rest))


# ── The page ─────────────────────────────────────────────────────────────────────────────────────


def test_settings_are_valid() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = daemon_config(ClientConfig.from_text(text, "deployment.md"))
    assert config.is_exposed
    assert config.store is not None


@each_row("line", re.findall(r"^(?:kubectl .* -- )?(anaphora .*)$", PAGE, re.MULTILINE))
def test_commands_exist(line: str) -> None:
    check_command(shlex.split(line)[1:])


def test_files_that_the_page_links_to_exist() -> None:
    linked = re.findall(r"\]\(([\w/-]+\.md)\)", PAGE)
    assert linked
    assert [link for link in linked if not (ROOT / "docs" / link).exists()] == []
    paths = set(re.findall(r"(?<![\w/])deploy/[\w/@.-]+\w", PAGE))
    assert len(paths) > 3
    for path in paths:
        assert (ROOT / path).exists(), path


# ── systemd ──────────────────────────────────────────────────────────────────────────────────────


def unit(text: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(text)
    return parsed


def test_the_unit_runs_commands_that_exist() -> None:
    service = unit((DEPLOY / "systemd" / "anaphora.service").read_text())["Service"]
    check_command(shlex.split(service["ExecStart"])[1:])
    assert service["RestartPreventExitStatus"] == "2 4 7"
    config = DaemonConfig()
    assert int(service["TimeoutStopSec"]) > config.drain_delay + config.drain_timeout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("broken", [False, True])
def test_systemd_accepts_the_unit(tmp_path: Path, broken: bool) -> None:
    text = (DEPLOY / "systemd" / "anaphora.service").read_text()
    text = text.replace("/opt/anaphora/bin/anaphora", "/bin/true")
    file = tmp_path / "anaphora.service"
    file.write_text(text.replace("RestartSec", "RestartSecs") if broken else text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("RestartSecs" in done.stderr) is broken
    if not broken:
        assert (done.returncode, done.stderr) == (0, "")


# ── nginx ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("broken", [False, True])
def test_nginx_accepts_its_configuration(nginx: None, tmp_path: Path, broken: bool) -> None:
    """As it is, but for the places of its files; tests/daemon/nodes runs it before three nodes."""
    certificate = write_certificate(tmp_path, "llm.example.com")
    text = (DEPLOY / "nginx" / "anaphora.conf").read_text()
    for placed, name in (
        ("/etc/ssl/llm.example.com.pem", certificate.cert),
        ("/etc/ssl/llm.example.com.key", certificate.key),
        ("/var/log/nginx/anaphora.log", tmp_path / "access.log"),
    ):
        assert placed in text
        text = text.replace(placed, str(name))
    if broken:
        text = text.replace("proxy_buffering", "proxy_bufering")
    config = tmp_path / "nginx.conf"
    text = for_installed_nginx(text)
    config.write_text(f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{\n{text}\n}}\n")
    program = find_program(NginxServer.names, NginxServer.folders)
    done = subprocess.run(
        [program, "-t", "-q", "-p", tmp_path, "-e", tmp_path / "log", "-c", config],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("proxy_bufering" in done.stderr) is broken
    assert (done.returncode != 0) is broken, done.stderr


# ── Containers ───────────────────────────────────────────────────────────────────────────────────


def instructions() -> list[list[str]]:
    text = (DEPLOY / "container" / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [line.split(maxsplit=1) for line in lines]


def test_the_image_copies_files_that_exist_and_installs_extras_that_exist() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    copied = [words.split() for name, words in instructions() if name == "COPY"]
    sources = {
        source
        for words in copied
        if not words[0].startswith("--from")
        for source in words[:-1]
        if not source.startswith("--")
    }
    assert "src" in sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    # What a build of the package reads is in the image that builds it.
    needed = {"README.md", "LICENSE", "deploy", "examples", "docs", "scripts/package_readme.py"}
    assert needed <= sources
    (extras,) = re.findall(r"/source\[([\w,]+)\]", "".join(words for _, words in instructions()))
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])


def test_the_image_runs_the_daemon_as_an_unprivileged_user() -> None:
    last = dict(instructions())
    assert json.loads(last["ENTRYPOINT"]) == ["entrypoint.sh"]
    check_command(json.loads(last["CMD"])[1:])
    user = int(last["USER"].partition(":")[0])
    pod = one("StatefulSet")["spec"]["template"]["spec"]
    assert user == pod["securityContext"]["runAsUser"] != 0
    assert int(last["EXPOSE"]) == DaemonConfig().port


def test_the_entrypoint_fills_the_home_with_files_that_the_daemon_accepts(tmp_path: Path) -> None:
    config, secrets, home = (tmp_path / name for name in ("config", "secrets", "new/home"))
    for folder in (config, secrets):
        folder.mkdir()
    (config / "llm.yaml").write_text("providers:\n  a: {wire: anthropic, key: {secret: KEY}}\n")
    (config / "extensions.yaml").write_text("{}\n")
    for name, text in (("tokens.key", "0" * 64), ("KEY.txt", "sk-1\n"), ("note", "")):
        # As Kubernetes mounts them: links, to files that others may read.
        (secrets / f"..{name}").write_text(text)
        (secrets / name).symlink_to(f"..{name}")

    def run() -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "ANAPHORA_CONFIG_FOLDER": str(config),
            "ANAPHORA_SECRETS_FOLDER": str(secrets),
            "ANAPHORA_HOME": str(home),
        }
        entrypoint = str(DEPLOY / "container" / "entrypoint.sh")
        command = ["sh", entrypoint, "sh", "-c", 'cat "$ANAPHORA_HOME/secrets/KEY.txt"']
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert run() == "sk-1\n"
    files = {
        str(path.relative_to(home)): stat.S_IMODE(path.lstat().st_mode)
        for path in (home, *home.rglob("*"))
    }
    assert files == {
        ".": 0o700,
        "llm.yaml": 0o600,
        "extensions.yaml": 0o600,
        "tokens.key": 0o600,
        "secrets": 0o700,
        "secrets/KEY.txt": 0o600,
    }
    from anaphora.daemon.checking import check_home
    from anaphora.daemon.home.settings import ServeOptions

    assert not check_home(ServeOptions(home=home)).problems
    # The next start uses what has changed, and keeps what the daemon wrote.
    (secrets / "..KEY.txt").write_text("sk-2\n")
    (home / "settlements.journal").write_text("kept")
    assert run() == "sk-2\n"
    assert (home / "settlements.journal").read_text() == "kept"


def test_a_home_without_mounted_files_is_made(tmp_path: Path) -> None:
    """As with the compose file: grants and the key of tokens are made once, and kept."""
    config, home = tmp_path / "config", tmp_path / "home"
    config.mkdir()
    (config / "llm.yaml").write_text(COMPOSE["configs"]["llm"]["content"])
    environment = {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "ANAPHORA_CONFIG_FOLDER": str(config),
        "ANAPHORA_SECRETS_FOLDER": str(tmp_path / "none"),
        "ANAPHORA_HOME": str(home),
    }
    command = ["sh", str(DEPLOY / "container" / "entrypoint.sh"), "cat", str(home / "tokens.key")]
    keys = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert len(keys[0]) == 64
    assert keys[0] == keys[1]
    assert "my-app" in Grants.read(home / "extensions.yaml").apps
    assert "allow_http" in (home / "llm.yaml").read_text()


# ── One daemon with compose ──────────────────────────────────────────────────────────────────────

COMPOSE = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())


def test_the_compose_file_publishes_the_daemon_on_this_machine_alone() -> None:
    (service,) = COMPOSE["services"].values()
    config = daemon_config(ClientConfig.from_text(COMPOSE["configs"]["llm"]["content"], "compose"))
    assert config.is_exposed  # in the container, or nothing could be published
    assert config.allow_http
    assert service["ports"] == [f"127.0.0.1:{config.port}:{config.port}"]
    assert int(service["stop_grace_period"].removesuffix("s")) > (
        config.drain_delay + config.drain_timeout
    )
    (mounted,), (secret,) = service["configs"], service["secrets"]
    entrypoint = (DEPLOY / "container" / "entrypoint.sh").read_text()
    assert mounted["target"].removesuffix("/llm.yaml") in entrypoint
    assert secret["target"].removesuffix("/ANTHROPIC_API_KEY.txt") in entrypoint
    assert COMPOSE["secrets"][secret["source"]] == {"environment": "ANTHROPIC_API_KEY"}
    (volume,) = service["volumes"]
    last = dict(instructions())
    assert volume.endswith(f":{last['VOLUME']}")
    assert last["ENV"].rpartition("ANAPHORA_HOME=")[2].startswith(last["VOLUME"])


def test_a_published_port_reaches_the_daemon(running_emulator: Emulator, tmp_path: Path) -> None:
    """A connection to a container comes in at another address than 127.0.0.1."""
    written = yaml.safe_load(COMPOSE["configs"]["llm"]["content"])["daemon"]
    llm = llm_yaml(running_emulator.url)
    llm["daemon"] |= written
    with running_daemon(tmp_path, running_emulator, llm=llm) as daemon:
        port = daemon.url.rpartition(":")[2]
        answer = httpx.get(f"http://127.0.0.2:{port}/healthz")
        models = httpx.get(f"http://127.0.0.2:{port}/v1/models", headers=daemon.headers())
    assert (answer.status_code, models.status_code) == (200, 200)


def test_an_exposed_address_needs_a_setting() -> None:
    with pytest.raises(ValueError, match="allow_http: true` in a container whose port"):
        DaemonConfig(host="0.0.0.0")


# ── Kubernetes ───────────────────────────────────────────────────────────────────────────────────


def schema_problems(text: str) -> list[str]:
    problems = []
    for each in objects(text):
        schema = {"$ref": f"#/$defs/{SCHEMA['kinds'][each['kind']]}", "$defs": SCHEMA["$defs"]}
        validator = jsonschema_rs.validator_for(schema)
        problems += [f"{each['kind']}: {error.message}" for error in validator.iter_errors(each)]
    return problems


def test_the_manifest_follows_the_schema_of_kubernetes() -> None:
    assert schema_problems(MANIFEST) == []
    assert [each["kind"] for each in objects()] == [
        "Namespace", "ConfigMap", "Service", "Service", "PodDisruptionBudget", "StatefulSet",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "right, wrong",
    [
        ("replicas: 3", "replicas: three"),
        ("apiVersion: policy/v1", "apiVersion: policy/v1beta1"),
        ("readinessProbe:", "readynessProbe:"),
        ("containerPort: 7707", "containerPort: null"),
        ("accessModes: [ReadWriteOnce]", "accessModes: ReadWriteOnce"),
    ],
)
def test_the_schema_finds_a_mistake(right: str, wrong: str) -> None:
    assert right in MANIFEST
    assert schema_problems(MANIFEST.replace(right, wrong)) != []


def test_the_manifest_has_no_secret_with_values() -> None:
    kinds = {each["kind"] for each in objects()}
    assert {"StatefulSet", "ConfigMap"} <= kinds
    assert "Secret" not in kinds
    assert re.search(r"sk-|password: *[^{\s]|BEGIN .*KEY", MANIFEST) is None


def test_the_configuration_of_the_manifest_is_valid() -> None:
    data = one("ConfigMap")["data"]
    config = daemon_config(ClientConfig.from_text(data["llm.yaml"], "llm.yaml"))
    pod = one("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert config.tls is not None
    assert config.tls.cert.startswith(mounts["tls"])
    assert config.socket.startswith(mounts["run"])
    assert config.port == container["ports"][0]["containerPort"]
    assert f"sslrootcert={mounts['ca']}/" in str(config.store)
    assert {"anaphora.llm.svc"} <= set(config.allowed_hosts)
    assert "lifecycle" not in container  # `drain_delay` is the pause before it refuses connections
    assert pod["terminationGracePeriodSeconds"] > config.drain_delay + config.drain_timeout
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["status"] == config.status_port
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "status"  # open while the node is drained
    assert "my-app" in Grants.from_text(data["extensions.yaml"], "extensions.yaml").apps


def test_objects_of_the_manifest_name_each_other() -> None:
    stateful = one("StatefulSet")["spec"]
    pod = stateful["template"]["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    services = {
        each["metadata"]["name"]: each["spec"] for each in objects() if each["kind"] == "Service"
    }
    assert all(service["selector"] == labels for service in services.values())
    assert services[stateful["serviceName"]]["clusterIP"] == "None"
    assert one("PodDisruptionBudget")["spec"]["selector"] == stateful["selector"]
    (container,) = pod["containers"]
    volumes = {volume["name"] for volume in (*pod["volumes"], {"name": "home"})}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    # What the page says to create first, and what is mounted.
    needed = {
        volume["secret"]["secretName"] if "secret" in volume else volume["configMap"]["name"]
        for volume in pod["volumes"]
        if "emptyDir" not in volume
    }
    rows = re.findall(r"^\| (?:Secret|ConfigMap) `([\w-]+)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert needed == {name for name, _ in rows} | {"anaphora-config"}
    text = one("ConfigMap")["data"]["llm.yaml"]
    for name in re.findall(r"\{secret: (\w+)\}", text):
        assert f"`{name}.txt`" in dict(rows)["anaphora-secrets"]
