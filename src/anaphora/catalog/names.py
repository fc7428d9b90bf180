"""Names of providers and models: aliases, the maker of a model, and the provider that serves a
gateway's model.

    names.maker_of("claude-sonnet-9")                          "anthropic"
    names.vendor_of("moonshotai/kimi-k3", providers)           ("moonshot", "kimi-k3")
    names.base_model("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0")
                                                               "anthropic.claude-sonnet-4-5-20250929"
"""

from __future__ import annotations

import re
from collections.abc import Container

#: Providers' names in other tools.
ALIASES = {
    "gemini": "google",
    "google-vertex": "google",
    "vertex": "google",
    "vertex_ai": "google",
    "claude": "anthropic",
    "kimi": "moonshot",
    "moonshotai": "moonshot",
    "qwen": "alibaba",
    "dashscope": "alibaba",
    "grok": "xai",
    "x-ai": "xai",
    "zhipu": "zai",
    "z-ai": "zai",
    "mistralai": "mistral",
    "azure-openai": "azure",
    "amazon-bedrock": "bedrock",
    "llama.cpp": "llamacpp",
    "hosted_vllm": "vllm",
    "ollama_chat": "ollama",
    "together_ai": "together",
    "ai-gateway": "vercel",
    "ai-gateway.vercel.sh": "vercel",
    "vercel-ai-gateway": "vercel",
    "vercel_ai_gateway": "vercel",
    "litellm_proxy": "litellm",
    "github-copilot": "copilot",
    "github_copilot": "copilot",
}

#: Prefixes of each maker's model names, in lower case. Open weights with other names (`gpt-oss`,
#: `llama`, `gemma`) are left out: any host may have them.
_BEGINNINGS = {
    "openai": r"gpt-(?!oss)|chatgpt-|o[0-9]+(-|\Z)|codex-|computer-use-|ft:(gpt-|o[0-9])",
    "anthropic": r"claude-",
    "google": r"gemini-",
    "xai": r"grok-",
    "deepseek": r"deepseek-",
    "mistral": r"(open-)?(mi[sx]tral|magistral|ministral|devstral|codestral|pixtral|voxtral)-",
    "moonshot": r"kimi-|moonshot-",
    "alibaba": r"qwen|qwq|qvq",
    "zai": r"glm-",
    "minimax": r"minimax-",
}
MAKERS = {maker: re.compile(pattern) for maker, pattern in _BEGINNINGS.items()}

#: Providers that forward calls to others: to the one named before the model, or to the model's
#: maker.
GATEWAYS = frozenset(("openrouter", "vercel", "litellm", "opencode", "copilot"))

#: Clouds that host the models of a maker under its name and theirs, such as
#: `anthropic.claude-sonnet-5`: what the cloud does not state itself holds as at the maker's.
HOSTED = {"bedrock": ("anthropic",)}

#: Of a model's id at AWS: the region type of an inference profile, and the version at its end.
_REGION_TYPE = re.compile(r"\A(?:us|eu|apac|jp|au|ca|in|global|us-gov)\.(?=[a-z0-9])")
_VERSION = re.compile(r"(?:-v[0-9]+(?::[0-9a-z]+)*|-[0-9]+:[0-9]+)\Z")
#: An ARN that ends with a model's id. Those of other resources name a model only at AWS.
_MODEL_ARN = re.compile(r"arn:aws[a-z-]*:bedrock:[^/]*:(?:foundation-model|inference-profile)/(.+)")
_AWS_ID = re.compile(r"arn:aws|[a-z0-9-]+\.[a-z]")
_OTHER_ARN = re.compile(r"arn:aws[a-z-]*:")

#: Suffixes that gateways add to a model's name to choose among its hosts (`:free`, `:nitro`).
_VARIANT = re.compile(r":[a-z]+\Z")


def maker_of(model: str) -> str | None:
    """The maker of a model, by its name; None for names that any host may use."""
    name = model.lower().removeprefix("models/")  # Google's own spelling
    # `deepseek-r1:8b` and `deepseek-ai/DeepSeek-R1` are names of hosts.
    if "/" in name or (":" in name and not name.startswith("ft:")):
        return None
    return next((maker for maker, begins in MAKERS.items() if begins.match(name)), None)


def vendor_of(model: str, known: Container[str]) -> tuple[str, str] | None:
    """The provider that serves a gateway's model, and its name there; None: unknown."""
    name = _VARIANT.sub("", model)
    while "/" in name:
        first, _, name = name.partition("/")
        provider = ALIASES.get(first.lower(), first.lower())
        if provider not in GATEWAYS:
            return (provider, name) if provider in known else None
    maker = maker_of(name)
    return None if maker is None else (maker, name)


def model_in_arn(model: str) -> str:
    """The model's id in an ARN that contains one; any other name unchanged."""
    found = _MODEL_ARN.fullmatch(model)
    return model if found is None else found[1]


def is_opaque(model: str) -> bool:
    """Whether a name is an ARN from which the model cannot be read, such as that of an application
    inference profile."""
    return _OTHER_ARN.match(model_in_arn(model)) is not None


def foundation_model(model: str) -> str:
    """The model's id without the region type of an inference profile."""
    return _REGION_TYPE.sub("", model_in_arn(model), count=1)


def is_aws_id(model: str) -> bool:
    """Whether a name has the form of AWS's ids of models: an ARN, or one with its maker."""
    return _AWS_ID.match(model) is not None


def is_inference_profile(model: str) -> bool:
    """Whether an id of AWS names an inference profile instead of the model itself."""
    name = model_in_arn(model)
    return _REGION_TYPE.match(name) is not None or is_opaque(name)


def base_model(provider: str, model: str) -> str:
    """The model's id without the region type and version that a cloud puts around it."""
    if provider not in HOSTED:
        return model
    return _VERSION.sub("", foundation_model(model))


def hosted_model(provider: str, model: str) -> tuple[str, str] | None:
    """The maker of a model that a cloud hosts, and its name there; None for other models."""
    maker, dot, name = base_model(provider, model).partition(".")
    return (maker, name) if dot and maker in HOSTED.get(provider, ()) else None


def is_among(model: str, listed: tuple[str, ...]) -> bool:
    """Whether a name is listed, or begins like one that is listed with `*` at its end."""
    if model in listed:
        return True
    return bool(model) and any(
        each.endswith("*") and model.startswith(each[:-1]) for each in listed
    )


def spelling(model: str) -> str:
    """A normalized spelling, the same for gateways and makers."""
    return re.sub(r"[._]", "-", model.lower())
