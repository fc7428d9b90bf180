"""YAML whose values know their line, for files that are read strictly.

whole = Marked.read(text, "script.yaml")    None when the file is empty
whole.fields(("replies",))                  by hand, field by field
"""

from .value import Marked

__all__ = ["Marked"]
