"""boto3 with the token of an app. Over http it sends none by itself."""

from __future__ import annotations

from typing import Any

import boto3
import botocore
from botocore.config import Config

from .daemon import TestedDaemon


def bedrock_client(daemon: TestedDaemon, **headers: str) -> Any:
    config = Config(signature_version=botocore.UNSIGNED, retries={"mode": "standard"})
    client: Any = boto3.client(
        "bedrock-runtime", region_name="us-east-1", endpoint_url=daemon.url, config=config
    )
    sent = {"authorization": f"Bearer {daemon.token()}", **headers}

    def add(request: Any, **_: Any) -> None:
        for name, value in sent.items():
            request.headers[name] = value

    client.meta.events.register("before-send.bedrock-runtime", add)
    return client
