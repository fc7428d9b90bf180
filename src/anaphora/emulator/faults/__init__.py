"""Faults to inject.

    faults = Faults.decode(text, file)            rules of a YAML file, or Faults() for none
    selector = faults.selector(seed)              counts requests, draws random numbers
    fault = selector.next(request, provider)      by header, else by the first rule that applies
    fault.apply(response)                         the faulty response

A file selects the requests of each fault:

    faults:
      - fault: rate-limit       # about every tenth request
        seconds: 2
        rate: 0.1
      - fault: cut              # the second and the fifth of these, after three events
        after: 3
        nth: [2, 5]
        path: /v1/messages
        provider: anthropic

A request may ask for a fault itself: `x-emulator-fault: slow-drip; seconds=0.5`.
"""

from __future__ import annotations

from .kinds import KINDS, Fault
from .rules import HEADER, Faults, FaultSelector

__all__ = ["HEADER", "KINDS", "Fault", "FaultSelector", "Faults"]
