"""Client-side rate limits: requests and tokens per minute and concurrent calls, for a provider and
for single models, from the configuration and from the provider's response headers.

`Limiter` is the arithmetic, without a clock; `Gate` lets calls wait for it.

Configured limits hold for every window of 60 seconds, wherever it begins. A whole minute's quota
may be sent at once, and then nothing until the first of it is a minute old. That is stricter than a
token bucket and than counting by calendar minute, so a provider that uses either does not refuse.
"""

from .gate import Admission, Gate
from .limiter import Limiter, ModelLane, Reservation

__all__ = ["Admission", "Gate", "Limiter", "ModelLane", "Reservation"]
