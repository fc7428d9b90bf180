"""The services that hand out credentials, on loopback: AWS's STS, container and instance metadata,
Google's token endpoint and metadata server, Azure's managed identities and Entra.

Requests are checked as the real ones check them: signatures, tokens, headers.
"""

from __future__ import annotations

import base64
import datetime
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from .aws_signatures import SignatureProblem, signature_problem

#: Key pairs that STS knows.
KNOWN = {"AKIDBASE": "base-secret-7Hq2Zt9v", "AKIDOTHER": "other-secret-3Mx8Rb5k"}
WEB_TOKEN = "eyJ.web-identity-5Kd8Qs3n"
IDENTITY_HEADER = "identity-9Wv4Jc6y"


class TokenServer:
    """Counts what it hands out. `seconds` is the life of the next credentials."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.seconds = 3600.0
        self.failing = 0
        """The status of the next answers, if not 0."""
        self.hold: threading.Event | None = None

    def count(self, name: str) -> int:
        return self.asked.count(name)

    def keys(self, name: str) -> dict[str, Any]:
        self.asked.append(name)
        number = self.count(name)
        end = datetime.datetime.fromtimestamp(time.time() + self.seconds, datetime.UTC)
        keys = {
            "AccessKeyId": f"ASIA{name.upper()}{number}",
            "SecretAccessKey": f"secret-{name}-{number}",
            "Token": f"token-{name}-{number}+/=",
            "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        KNOWN[keys["AccessKeyId"]] = keys["SecretAccessKey"]
        return keys

    def token(self, name: str) -> str:
        self.asked.append(name)
        return f"ya29.{name}-{self.count(name)}-2Lp6Gs8h"


def _sts(server: TokenServer, form: dict[str, str], problem: SignatureProblem | None) -> Answer:
    server.forms.append(form)
    if form["Action"] == "AssumeRole" and problem is not None:
        return 403, _sts_error(problem.code, problem.message)
    if form["Action"] == "AssumeRoleWithWebIdentity" and form["WebIdentityToken"] != WEB_TOKEN:
        return 400, _sts_error("InvalidIdentityToken", f"no token {form['WebIdentityToken']}")
    if "denied" in form["RoleArn"]:
        return 403, _sts_error("AccessDenied", "not authorized to perform: sts:AssumeRole")
    keys = server.keys("sts")
    fields = "".join(
        f"<{name}>{keys[own]}</{name}>"
        for name, own in (
            ("AccessKeyId", "AccessKeyId"),
            ("SecretAccessKey", "SecretAccessKey"),
            ("SessionToken", "Token"),
            ("Expiration", "Expiration"),
        )
    )
    user = f"<AssumedRoleUser><Arn>{form['RoleArn']}/x</Arn><AssumedRoleId>A:x</AssumedRoleId></AssumedRoleUser>"
    action = form["Action"]
    return 200, (
        f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result>'
        f"<Credentials>{fields}</Credentials>{user}</{action}Result>"
        f"<ResponseMetadata><RequestId>r1</RequestId></ResponseMetadata></{action}Response>"
    )


def _sts_error(code: str, message: str) -> str:
    return (
        f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message>"
        "</Error><RequestId>r1</RequestId></ErrorResponse>"
    )


Answer = tuple[int, Any]


def _answer(server: TokenServer, request: _Handler, body: bytes) -> Answer:
    path, headers = urlsplit(request.path), request.headers
    query = {name: values[0] for name, values in parse_qs(path.query).items()}
    if request.command == "POST" and path.path == "/":
        lower = {name.lower(): value for name, value in headers.items()}
        found = signature_problem("POST", "/", lower, body, KNOWN, time.time())
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        return _sts(server, form, found)
    if path.path == "/":  # whether there is a metadata server
        return 200, ""
    if path.path == "/container":
        authorized = headers["Authorization"] == "container-token"
        return (200, server.keys("container")) if authorized else (401, {})
    if path.path.startswith("/latest/"):
        return _instance(server, request, path.path)
    if path.path.startswith("/computeMetadata/"):
        return _google_metadata(server, request, path.path)
    if path.path == "/google/token":
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        if form.get("assertion", "").count(".") != 2 and "refresh_token" not in form:
            return 400, {"error": "invalid_grant", "error_description": "Bad assertion"}
        token = server.token("google")
        return 200, {"access_token": token, "expires_in": server.seconds, "token_type": "Bearer"}
    if path.path == "/msi/token":
        if headers["X-IDENTITY-HEADER"] != IDENTITY_HEADER:
            return 401, {"message": "unauthorized"}
        return 200, _azure_token(server, query["resource"])
    if path.path.endswith("/oauth2/v2.0/token"):
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        if form.get("client_secret") != "entra-secret-6Tn1Vx4c":
            description = "AADSTS7000215: Invalid client secret provided."
            return 401, {"error": "invalid_client", "error_description": description}
        return 200, {**_azure_token(server, form["scope"]), "expires_in": int(server.seconds)}
    if path.path.endswith("/.well-known/openid-configuration"):
        base = f"{server.url}/tenant-1"
        return 200, {
            "issuer": f"{base}/v2.0",
            "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
            "token_endpoint": f"{base}/oauth2/v2.0/token",
        }
    return 404, {"message": path.path}


def _azure_token(server: TokenServer, resource: str) -> dict[str, Any]:
    claims = base64.urlsafe_b64encode(b'{"appid":"c-1","tid":"t-1"}').decode().rstrip("=")
    return {
        "access_token": f"eyJhbGciOiJub25lIn0.{claims}.{server.token('azure')[5:]}",
        "expires_on": str(int(time.time() + server.seconds)),
        "resource": resource,
        "token_type": "Bearer",
    }


def _instance(server: TokenServer, request: _Handler, path: str) -> Answer:
    if path == "/latest/api/token":
        return 200, "instance-session"
    if request.headers["X-aws-ec2-metadata-token"] != "instance-session":
        return 401, ""
    if path.rstrip("/") == "/latest/meta-data/iam/security-credentials":
        return 200, "machine-role"
    return 200, {"Code": "Success", "Type": "AWS-HMAC", **server.keys("instance")}


def _google_metadata(server: TokenServer, request: _Handler, path: str) -> Answer:
    if request.headers["Metadata-Flavor"] != "Google":
        return 403, ""
    if path.endswith("/token"):
        token = server.token("metadata")
        return 200, {"access_token": token, "expires_in": server.seconds, "token_type": "Bearer"}
    if path.endswith("/project/project-id"):
        return 200, "metadata-project"
    if path.endswith("/universe/universe-domain"):
        return 200, "googleapis.com"
    account = {"aliases": ["default"], "email": "sa@p.example", "scopes": ["x"]}
    return 200, account if "service-accounts" in path else "ok"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Callable[[_Handler, bytes], Answer]

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        status, answer = type(self).served(self, body)
        is_text = isinstance(answer, str)
        data = (answer if is_text else json.dumps(answer)).encode()
        self.send_response(status)
        kind = "text/plain" if is_text else "application/json"
        self.send_header("Content-Type", "text/xml" if data.startswith(b"<") else kind)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = _serve

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def token_server(tls: SSLContext | None = None) -> Iterator[TokenServer]:
    server = TokenServer()

    def served(request: _Handler, body: bytes) -> Answer:
        if server.hold is not None:
            server.hold.wait(60)
        if server.failing:
            server.asked.append("failed")
            kind = "temporarily_unavailable" if server.failing >= 500 else "invalid_grant"
            return server.failing, {"error": kind}
        return _answer(server, request, body)

    handler = type("Handler", (_Handler,), {"served": staticmethod(served)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        running.daemon_threads = True
        if tls is not None:
            running.socket = tls.wrap_socket(running.socket, server_side=True)
        server.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            running.shutdown()
            thread.join()


@functools.cache
def _private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def service_account(folder: Path, server: TokenServer) -> Path:
    """A file of a service account whose tokens come from the server."""
    file = folder / "service-account.json"
    fields = {
        "type": "service_account",
        "project_id": "file-project",
        "private_key_id": "k1",
        "private_key": _private_key(),
        "client_email": "sa@file-project.iam.example",
        "client_id": "1",
        "token_uri": f"{server.url}/google/token",
    }
    file.write_text(json.dumps(fields))
    file.chmod(0o600)
    return file
