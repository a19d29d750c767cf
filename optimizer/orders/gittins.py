"""The Gittins rank of a job that has had some service, from services that other jobs needed. Decides nothing.

Of a job that has had service a, let S be the service it will have had when it ends. If it is given d more at most, it
ends with probability P(S - a <= d), and takes E min(S - a, d). The rank is the smallest expected service per completion
over all d; running the job with the smallest rank minimises the mean completion time on one machine (Gittins 1989).
"""

import numpy as np

from optimizer.problem import FloatArray


def gittins_rank(observed: FloatArray, attained: FloatArray) -> FloatArray:
    """Expected service per completion, at best (n,); smaller first.

    Args:
        observed: services that jobs needed, in any order, at least one (m,).
        attained: service received so far (n,). Beyond all that was observed, the rank is the service itself: whoever
            has had more than anybody before is expected to need as much again.
    """
    needed = np.sort(observed)
    at, inverse = np.unique(attained, return_inverse=True)
    ranks = at.astype(np.float64)
    for row, begun in enumerate(at.tolist()):
        more = needed[np.searchsorted(needed, begun, side="right") :] - begun
        if len(more):
            completions = np.arange(1.0, len(more) + 1.0)
            spent = np.cumsum(more) + (len(more) - completions) * more
            ranks[row] = np.min(spent / completions)
    return ranks[inverse]
