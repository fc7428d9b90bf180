"""`anaphora apps add NAME` with a grant, `--for PROGRAM` and `--aws`"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from anaphora.client.config.secrets import Secret
from anaphora.errors import InvalidConfig, InvalidRequest
from anaphora.redaction import hides_arguments

from .common import print_json, report_problems
from .daemon_connection import call_admin

if TYPE_CHECKING:
    from anaphora.client.config import ClientConfig
    from anaphora.daemon.home import Home
    from anaphora.daemon.home.app_programs import ProgramSetup
    from anaphora.daemon.home.config import DaemonConfig

#: Bind addresses that clients cannot connect to.
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


def add_program(
    home: Home, app: str, name: str, *, url: str | None, write: bool, as_json: bool
) -> None:
    """Creates an app's token, and prints the variables and the command that start a program with
    it."""
    from anaphora.daemon.home.app_programs import program_setup, programs

    config = home.config()
    setup = program_setup(programs()[name], app, config, url=daemon_address(home, url))
    result = _add(home, config, app, setup.yaml, write=write)
    _print(home, setup, result, write=write, as_json=as_json)


def add_granted(
    home: Home, app: str, models: Sequence[str], usd_per_day: Decimal, *, write: bool
) -> dict[str, Any]:
    """Creates an app's token, and writes or prints a grant for it."""
    from anaphora.daemon.home.app_programs import grant_yaml, model_grant

    config = home.config()
    text = grant_yaml(app, model_grant(models, usd_per_day, config))
    result = _add(home, config, app, text, write=write)
    file = home.extensions_yaml
    click.echo(f"the grant was added to {file}:" if write else f"add this to {file}:", err=True)
    click.echo(text, err=True, nl=False)
    return result


def _add(home: Home, config: ClientConfig, app: str, grant: str, *, write: bool) -> dict[str, Any]:
    """The new token of an app. Nothing is created if the grant cannot be written."""
    changed = _changed_file(home, app, grant, config) if write else ""
    result: dict[str, Any] = call_admin(home, "admin.apps.add", {"app": app})
    if write:
        from anaphora.daemon.home.private_files import write_private

        write_private(home.extensions_yaml, Secret(changed))
    if write or app not in _granted(home, config):
        result["warnings"] = []  # they say that the grant is missing
    return result


def daemon_address(home: Home, url: str | None) -> str:
    """The given one, or that of llm.yaml."""
    from anaphora.daemon.home.config import daemon_config

    return _checked_url(url) if url else _daemon_url(daemon_config(home.config()), home)


@hides_arguments
def print_aws(result: dict[str, Any], address: str, *, as_json: bool) -> None:
    """Prints a new token as variables of AWS SDKs."""
    environment = {
        "AWS_BEARER_TOKEN_BEDROCK": result["token"],
        "AWS_REGION": "us-east-1",  # the daemon accepts any
        "AWS_DEFAULT_REGION": "us-east-1",  # for boto3
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": address,
        "ANTHROPIC_BEDROCK_BASE_URL": address,  # for Anthropic's SDKs and Claude Code
    }
    if as_json:
        print_json({**result, "environment": environment})
        return
    for name, value in environment.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    click.echo(_FOR_JAVASCRIPT)
    if address.startswith("http://"):
        click.echo(_FOR_BOTO3)
    report_problems([f"{result['token_id']}: the token is shown only once"])


#: The daemon speaks HTTP/1.1.
_FOR_JAVASCRIPT = """\
# The AWS SDK for JavaScript speaks HTTP/2 to Bedrock. Without a proxy for that, it needs:
#   import { NodeHttpHandler } from "@smithy/node-http-handler";
#   new BedrockRuntimeClient({ requestHandler: new NodeHttpHandler() });"""
_FOR_BOTO3 = """\
# boto3 sends a bearer token over https only. For http:
#   client = boto3.client("bedrock-runtime", config=Config(signature_version=botocore.UNSIGNED))
#   bearer = "Bearer " + os.environ["AWS_BEARER_TOKEN_BEDROCK"]
#   add = lambda request, **_: request.headers.update(authorization=bearer)
#   client.meta.events.register("before-send.bedrock-runtime", add)"""


def _changed_file(home: Home, app: str, grant: str, config: ClientConfig) -> str:
    from anaphora.client.config import read_config_file
    from anaphora.daemon.home.app_programs import with_grant
    from anaphora.daemon.home.config import daemon_config

    file = home.extensions_yaml
    if daemon_config(config).store is not None:
        raise InvalidConfig(
            "the grants of several nodes are not in a file; print the grant without --write, and"
            " apply it with: anaphora grants apply FILE",
            file=str(home.llm_yaml),
        )
    return with_grant(read_config_file(file), str(file), app, grant, config)


def _granted(home: Home, config: ClientConfig) -> Any:
    from anaphora.daemon.home.extensions import Grants

    try:
        return Grants.read(home.extensions_yaml, config).apps
    except InvalidConfig:
        return ()


def _daemon_url(daemon: DaemonConfig, home: Home) -> str:
    if not daemon.port:
        raise InvalidConfig(
            "daemon.port is 0 (any free port): pass the daemon's address with --url",
            file=str(home.llm_yaml),
        )
    host = _ANY_ADDRESS.get(daemon.host, daemon.host)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{'http' if daemon.tls is None else 'https'}://{host}:{daemon.port}"


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest("is not a URL: it needs http:// or https://, and a host", path="--url")
    return url.rstrip("/").removesuffix("/v1")


@hides_arguments
def _print(
    home: Home, setup: ProgramSetup, result: dict[str, Any], *, write: bool, as_json: bool
) -> None:
    environment = setup.environment(Secret(result["token"]))
    if as_json:
        print_json(
            {
                **result,
                "program": setup.program.name,
                "grant": {setup.app: setup.grant},
                "grant_yaml": setup.yaml,
                "written": write,
                "environment": environment,
                "files": setup.program.files,
                "command": setup.command,
            }
        )
        return
    for line in _lines(home, setup, environment, write=write):
        click.echo(line)
    report_problems([f"{result['token_id']}: the token is shown only once"])
    report_problems(f"warning: {each}" for each in result["warnings"] if not write)


def _lines(
    home: Home, setup: ProgramSetup, environment: dict[str, str], *, write: bool
) -> Iterator[str]:
    """The output, whose comments are valid in YAML and in shells."""
    file, title = home.extensions_yaml, setup.program.title
    if write:
        yield f"# The grant was added to {file}"
    else:
        yield f"# Add this grant to {file}"
        yield setup.yaml
    if not setup.wires:
        names = " or ".join(setup.program.wires)
        yield f"# No provider of llm.yaml supports {names}: the daemon translates its requests."
    for name, content in setup.program.files.items():
        yield f"# {title} needs in {name}: {content}"
    yield f"# Start {title} with"
    for name, value in environment.items():
        yield f"export {name}={shlex.quote(value)}"
    yield f"# {shlex.join(setup.command)}"
