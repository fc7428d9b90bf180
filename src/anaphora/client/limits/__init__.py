"""What may be sent when: requests and tokens a minute, and calls at once, for a provider as a whole
and for its models besides; what the configuration says, and what the provider's headers tell.

`Limiter` and `Lane` are the arithmetic, without a clock; `Gate` lets calls wait for it.

The configured limits hold for every window of 60 seconds, wherever it begins. All of a minute may
be sent at once (a burst is as large as the limit), and then nothing until the first of it is a
minute old. That is stricter than a bucket that fills up continuously, and than counting by the
minute on the clock: whichever of them the provider has, it does not refuse.
"""

from .gate import Gate, Passing
from .lane import Lane
from .limiter import Limiter
from .reservation import Reservation

__all__ = ["Gate", "Lane", "Limiter", "Passing", "Reservation"]
