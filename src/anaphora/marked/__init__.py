"""YAML whose values know their line, for files that are read strictly.

whole = Marked.read(text, "script.yaml")    None when the file is empty
whole.fields(("replies",))                  by hand, field by field
decode(whole, Config)                       by a struct's types
"""

from .typed import Lines, Path, decode, spoken
from .value import Failure, Marked, nearest

__all__ = ["Failure", "Lines", "Marked", "Path", "decode", "nearest", "spoken"]
