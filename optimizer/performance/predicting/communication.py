"""How long workers take to agree on a gradient, from the speed of their links.

Symbols: S bytes exchanged, n ranks, B bytes per second of a link. Latency is per message and counts for small models.
"""

#: Share of a pass that is the backward one, while which gradients that are ready may already travel.
BACKWARD = 2.0 / 3.0


def ring_all_reduce_s(size_bytes: float, ranks: int, bytes_per_s: float, latency_s: float = 0.0) -> float:
    """2 (n-1)/n S/B: every byte is sent once to be summed and once to be known. 0 for a single rank."""
    assert ranks >= 1, "a ring has at least one rank"
    assert bytes_per_s > 0, "a link carries something"
    return 2.0 * (ranks - 1) * (size_bytes / (ranks * bytes_per_s) + latency_s)


def hierarchical_all_reduce_s(
    size_bytes: float,
    shape: tuple[int, int],
    speeds: tuple[float, float],
    latency_s: float = 0.0,
) -> float:
    """Reduced inside each machine, in a ring between machines, then told inside each.

    `shape`: machines, and accelerators of the fullest one. `speeds`: bytes per second inside and between machines; the
    slowest machine's network sets the pace of the ring. Equal to a ring where there is one machine, or one accelerator
    on each.
    """
    machines, inside = shape
    link, network = speeds
    return ring_all_reduce_s(size_bytes, inside, link, latency_s) + ring_all_reduce_s(
        size_bytes, machines, network, latency_s
    )


def exposed_s(sync_s: float, pass_s: float, overlap: float) -> float:
    """What of a synchronisation the step waits for: what the share `overlap` of the backward pass does not hide."""
    return max(0.0, sync_s - overlap * BACKWARD * pass_s)
