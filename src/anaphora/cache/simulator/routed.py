"""Two caches at one provider: a request with a marker uses the one, a request without the other
(Qwen, MiniMax)."""

from __future__ import annotations

from typing import Any

from .account import Salted
from .marked import MarkedCache
from .outcome import Outcome
from .prompt import Prompt
from .unmarked import UnmarkedCache


class RoutedCache:
    """Never both: what a marked request wrote, an unmarked one does not read."""

    def __init__(self, marked: MarkedCache, unmarked: UnmarkedCache) -> None:
        self._marked = marked
        self._unmarked = unmarked

    def __len__(self) -> int:
        return len(self._marked) + len(self._unmarked)

    def predict(self, prompt: Prompt, salted: Salted, at: float) -> tuple[Outcome, Any]:
        return self._of(prompt).predict(prompt, salted, at)

    def lose(self, prompt: Prompt, found: Any) -> tuple[Outcome, Any]:
        return self._of(prompt).lose(prompt, found)

    def commit(
        self, prompt: Prompt, salted: Salted, found: Any, at: float, readable: float
    ) -> None:
        self._of(prompt).commit(prompt, salted, found, at, readable)

    def _of(self, prompt: Prompt) -> MarkedCache | UnmarkedCache:
        return self._marked if prompt.markers or prompt.automatic else self._unmarked
