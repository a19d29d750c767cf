"""What speaks against a machine beside failures of jobs, and how long it is put aside for them."""

from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class MachineStanding:
    """See `scheduler/core/handlers/quarantine.py`."""

    #: Fault of its devices that its agent reports; empty: none.
    unfit: str = ""
    #: After a quarantine: when it takes jobs on trial, whether it does now, and how often in a row it was put aside.
    trial_at: float = inf
    on_trial: bool = False
    times_aside: int = 0
