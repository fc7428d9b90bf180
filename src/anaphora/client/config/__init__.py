"""Configuration: `llm.yaml`, decoded strictly, and the secrets it names."""
