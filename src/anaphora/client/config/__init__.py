"""The configuration `llm.yaml`: its fields, resolving providers, keys."""
