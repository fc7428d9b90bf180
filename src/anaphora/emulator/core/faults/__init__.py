"""What goes wrong on purpose.

    faults = Faults.decode(text, file)        rules of a YAML file, or Faults() for none
    chooser = faults.begin(seed)              counts requests, rolls the dice
    fault = chooser.next(asked, provider)     by header, else by the first rule that hits
    fault.apply(answer)                       the answer, gone wrong

A file says which requests are hit, and by what:

    faults:
      - fault: rate-limit       # every tenth request or so
        seconds: 2
        rate: 0.1
      - fault: cut              # the second and the fifth of these, behind three events
        after: 3
        nth: [2, 5]
        path: /v1/messages
        provider: anthropic

A request may ask for one itself: `x-emulator-fault: slow-drip; seconds=0.5`.
"""

from __future__ import annotations

from .choosing import HEADER, Chooser, Faults
from .fault import KINDS, Fault

__all__ = ["HEADER", "KINDS", "Chooser", "Fault", "Faults"]
