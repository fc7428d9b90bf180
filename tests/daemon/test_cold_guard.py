"""`cold_above_usd` of a grant: calls whose cached beginning is gone are refused once, with real SDKs
and JSON-RPC, on a clock that the test sets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import boto3
import botocore.exceptions
import openai
import pytest
from support.daemon import GRANT, TestedDaemon, llm_yaml, running_daemon
from support.rpc_calls import RpcClient, audit_rows
from support.shared_memory import MemoryState
from support.signing import keys_of

from anaphora.cache.cold import PASS_SECONDS
from anaphora.config import ConfigError  # placeholder
