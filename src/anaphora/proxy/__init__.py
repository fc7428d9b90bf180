"""A pass-through proxy between any program and its provider: watch, record, replay."""
