"""Invalid rows are rejected with the file and the row."""

from __future__ import annotations

import pytest
from support.tables import each_row

from anaphora import catalog
from anaphora.errors import InvalidCatalog

HEAD = 'provider = "anthropic"\n'
ROW = HEAD + '[[rules]]\nsource = "me"\ndate = 2026-11-15\nmodels = ["claude-opus-4-7"]\n'
MODEL_ROW = ROW.replace("[[rules]]", "[[profiles]]")
BOTH = 'providers = ["anthropic", "openai"]\n'
NAME = "rules[0] (claude-opus-4-7)"
MODEL_NAME = "profiles[0] (claude-opus-4-7)"


@each_row(
    ("text", "row", "message"),
    [
        (ROW + "minimum = 5", NAME, "unknown field 'minimum'"),
        (ROW + 'provider = "openai"', NAME, "unknown field 'provider'"),
        (MODEL_ROW + 'id = "x"', MODEL_NAME, "unknown field 'id'"),
        (MODEL_ROW + "known = true", MODEL_NAME, "unknown field 'known'"),
        (ROW + 'minimum_tokens = "512"', NAME, "minimum_tokens: Expected `int`, got `str`"),
        (ROW + "minimum_tokens = true", NAME, "Expected `int`, got `bool`"),
        (ROW + "minimum_tokens = 5.0", NAME, "Expected `int`, got `float`"),
        (ROW + "minimum_tokens = -1", NAME, "minimum_tokens: Expected `int` >= 0"),
        (ROW + "granule_tokens = 0", NAME, "Expected `int` >= 1"),
        (ROW + "read_price = nan", NAME, "read_price"),
        (MODEL_ROW + "bytes_per_token = 0.0", MODEL_NAME, "Expected `float` > 0.0"),
        (MODEL_ROW + "token_error = 1.0", MODEL_NAME, "Expected `float` < 1.0"),
        (MODEL_ROW + 'max_tokens_field = "limit"', MODEL_NAME, "Invalid enum value 'limit'"),
        (MODEL_ROW + 'system_role = "bot"', MODEL_NAME, "Invalid enum value 'bot'"),
        (MODEL_ROW + 'system_slot = "head"', MODEL_NAME, "Invalid enum value 'head'"),
        (MODEL_ROW + "explicit_breakpoints = 1", MODEL_NAME, "Expected `bool`, got `int`"),
        (ROW + 'lifetime = "long"', NAME, "Invalid enum value 'long'"),
        (ROW + "lookback_first = -1", NAME, "lookback_first: Expected `int` >= 0"),
        (ROW + "minimum_tokens = { value = 5, sauce = 1 }", NAME, "unknown field `sauce`"),
        (ROW + 'minimum_tokens = { value = 5, source = "x" }', NAME, "required field `date`"),
        (ROW + "minimum_tokens = { value = 5, disputed = [{ value = 6 }] }", NAME, "`source`"),
        (ROW + 'minimum_tokens = { source = "x" }', NAME, "minimum_tokens"),
        (ROW + 'mechanism = "magic"', NAME, "Invalid enum value 'magic'"),
        (ROW + 'ttls = ["7m"]', NAME, "Invalid enum value '7m'"),
        (ROW + 'invalidates = { weather = ["tools"] }', NAME, "Invalid enum value 'weather'"),
        (ROW + 'invalidates = { tools = ["body"] }', NAME, "Invalid enum value 'body'"),
        (ROW.replace('source = "me"\n', "") + "slots = 1", NAME, "required field `source`"),
        (ROW.replace('"me"', '""') + "slots = 1", NAME, "length >= 1 - at `$.source`"),
        (ROW.replace("date = 2026-11-15\n", "") + "slots = 1", NAME, "required field `date`"),
        (ROW.replace("2026-11-15", '"2026-11-15"') + "slots = 1", NAME, "Expected `date`"),
        (ROW.replace("2026-11-15", "2026-11-15T00:00:00") + "slots = 1", NAME, "Expected `date`"),
        (ROW.replace('["claude-opus-4-7"]', "[]"), "rules[0]", "models is empty"),
        (ROW.replace('["claude-opus-4-7"]', '"all"'), "rules[0]", "models: Expected `array`"),
        (ROW.replace("4-7", "4-77"), "rules[0] (claude-opus-4-77)", "no profile names"),
        (ROW + 'ttls = ["5m", "1h"]', NAME, "longest first"),
        (ROW + 'ttls = ["1h", "1h", "5m"]', NAME, "listed once each"),
        (ROW + 'default_ttl = "24h"', NAME, "default_ttl 24h is not among the ttls"),
        (ROW + "write_price = { 12h = 3 }", NAME, "write_price for 12h"),
        (ROW + 'hash_order = ["tools", "tools"]', NAME, "names a section twice"),
        (ROW + 'unmarkable = ["text"]', NAME, "text is both markable and unmarkable"),
        (HEAD + "[rules]\nslots = 1", "rules", "write rows as [[rules]]"),
        (HEAD + "[[model]]\nslots = 1", "", "unknown field 'model'"),
        ("[[rules]]\nslots = 1", "", "provider"),
        ('providers = "acme"', "", "providers: Expected `array`"),
        ("providers = []", "", "provider"),
        ('providers = ["acme", ""]', "", "provider"),
        (ROW + 'providers = ["anthropic"]', NAME, "unknown field 'providers'"),
        (BOTH + "[[rules]]\nproviders = []", "rules[0]", "providers is empty"),
        (BOTH + '[[rules]]\nproviders = ["acme"]', "rules[0]", "the file is not for 'acme'"),
        (ROW + 'without = ["slots"]', NAME, "cannot be without 'slots'"),
        (ROW + 'without = ["weather"]', NAME, "cannot be without 'weather'"),
        (ROW + "without = []", NAME, "without is empty"),
        (ROW + "wires = []", NAME, "wires is empty"),
        (ROW + 'wires = "anthropic"', NAME, "wires: Expected `array`"),
        (MODEL_ROW + 'wires = ["anthropic"]', MODEL_NAME, "unknown field 'wires'"),
        (ROW + 'wires = ["anthropic"]\nttls = ["5m", "1h"]', NAME, "longest first"),
        ("provider = 3", "", "provider"),
        ("provider = ", "", "not TOML"),
        (ROW.replace("anthropic", "acme"), "rules[0] (claude-opus-4-7)", "no profile names"),
    ],
)
def test_invalid_rows_are_rejected(text: str, row: str, message: str) -> None:
    with pytest.raises(InvalidCatalog) as raised:
        catalog.shipped().with_rows(text, file="mine.toml")
    assert raised.value.file == "mine.toml"
    assert raised.value.row == row
    assert message in str(raised.value)
    assert str(raised.value).startswith("mine.toml")


def test_empty_row_is_valid() -> None:
    assert catalog.shipped().with_rows(HEAD).models() == catalog.models()


def test_figure_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match=r"\.value"):
        bool(catalog.profile("anthropic", "claude-opus-5-5").strips_thinking)
