"""Names of things. Jobs are numbered (people type ranges such as `12-20`); everything else is named."""

from typing import NewType

#: A submission. Increases from 1 in order of admission; never reused.
JobId = NewType("JobId", int)
#: A machine known to the scheduler.
NodeId = NewType("NodeId", str)
#: A pool: (machine shape, market, zone).
PoolId = NewType("PoolId", str)
#: Jobs of one kind share one row of the throughput table.
Kind = NewType("Kind", str)

# An attempt is named by (job id, attempt number). The number increases by one with every start of the job and is the
# fence: whatever an attempt writes counts only while its number is the job's current one.
