"""What several packages have to agree on: numbers and names, each defined once, and versions of the agents' protocol.

The supervisor of an attempt imports this module too, so it uses the standard library only. `walras.training` repeats
what it needs of it: agents put that package alone on a job's path.

In the protocol between server and agents a release understands the one before it and the one after it. New fields have
defaults, and unknown ones are ignored; a message of an unknown type becomes one of type `unknown`, so that the known
ones beside it are taken. What is further apart is refused in words that say what to upgrade.

Version 1 is the first release: its agents name neither themselves nor a cluster, and its server refuses a heartbeat as
a whole for one report that it does not know. Version 2 names the cluster, its incarnation and the agent in every
message, and skips unknown types.
"""

from typing import Any, get_args

#: Exit code of a rank that has saved a checkpoint because it was asked to end: the attempt is to be started again.
EXIT_CHECKPOINTED = 85
#: Exit code of a rank that found the checkpoint it was to resume from torn, and nothing before it.
EXIT_CHECKPOINT_LOST = 86
#: Exit code of a rank whose environment, setup, data or code could not be prepared: it is not tried again.
EXIT_NOT_PREPARED = 87
#: Exit code of a rank that its machine could not prepare, for want of a tool that it should have: another one may.
EXIT_MACHINE_UNABLE = 88
#: The signal that ends a process at once; modules that may not import `signal` use this name.
SIGKILL = 9

#: The slowest transfer, bytes per second, for whose end client and server wait: a large body has its time in addition
#: to that of every call.
SLOWEST_BYTES_PER_S = 16 * 1024
#: How often in a row an agent that ends by itself is started again, and how long one runs to begin a new row, seconds.
RESTARTS_MAX, STAYS_UP_S = 5, 600.0

SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 86_400.0

#: How far ahead forecasts look, seconds: a p90 that is so far after the forecast's instant may come later.
FORECAST_AHEAD_S = 14 * SECONDS_PER_DAY

#: `JobRequest.priority_class` of urgent jobs; the classes below it are 1 (normal) and 0 (low).
HIGH_PRIORITY_CLASS = 2

#: Names of values that `walras.training` reports beside those of the script: the gradient noise scale in samples, the
#: bandwidth of the slowest link between the machines of a gang, bytes per second, and the part of its steps in which
#: rank 0 waited for its data.
GRADIENT_NOISE_VALUE = "gradient_noise"
BANDWIDTH_VALUE = "network_bytes_per_s"
DATA_WAIT_VALUE = "data_wait"
#: Name of a value that is above 0 where the script has a checkpoint open, so that it can save when asked to stop.
SAVES_VALUE = "saves_checkpoints"
#: What that value is where the script states how often it saves, and keeps to it.
SAVES_AS_STATED = 2.0
#: Names of two values of a job that chooses its batch itself: samples of an update over the whole gang, and the steps
#: at its first batch that one update is worth.
CHOSEN_BATCH_VALUE = "chosen_batch"
UPDATE_GAIN_VALUE = "update_gain"

#: Header of an answer with a part of a log: the byte offset from which the client continues.
NEXT_OFFSET_HEADER = "X-Walras-Next-Offset"

#: Separates a token from the fingerprint (SHA-256, hexadecimal) of the only certificate that its server may show.
_PIN_MARK = ".sha256="


def pinned_token(token: str, pin: str) -> str:
    """Returns the token with the fingerprint of its server's certificate behind it; as it is if there is none."""
    return f"{token}{_PIN_MARK}{pin}" if pin else token


def split_token(text: str) -> tuple[str, str]:
    """Returns a token and the fingerprint behind it, empty if it carries none."""
    token, _, pin = text.strip().partition(_PIN_MARK)
    return token, pin


def restarts_in_a_row(before: int, ran_s: float) -> int:
    """Returns how many restarts in a row count, now that an agent has ended after `ran_s`."""
    return 0 if ran_s >= STAYS_UP_S else before


#: Stands in an answer in the place of a value that the caller may not see.
HIDDEN = "(hidden)"


#: The version that this release speaks.
PROTOCOL = 2

#: 16 or more hexadecimal digits that name one agent's state folder; empty from agents of version 1.
AGENT_PATTERN = r"^([0-9a-f]{16,64})?$"
#: The incarnation of the database that granted an attempt; empty where that was version 1.
INCARNATION_PATTERN = r"^([0-9a-f]{16})?$"
#: The number of digits of a cluster's id, and of its database's incarnation.
CLUSTER_PATTERN = r"^[0-9a-f]{32}$"
LIFE_PATTERN = r"^[0-9a-f]{16}$"
#: The form of a content name (`walras.storage.content`), and the most files that one tree may have.
CONTENT_PATTERN = r"^[0-9a-f]{64}$"
FILES_MOST = 100_000
#: The most characters kept of the name of an unknown type.
_TYPE_MOST = 64


def protocol_problem(peer: str, protocol: int) -> str:
    """Returns why a peer of this protocol version is not understood; empty if it is."""
    if abs(protocol - PROTOCOL) <= 1:
        return ""
    older, newer = (peer, "this side") if protocol < PROTOCOL else ("this side", peer)
    return (
        f"{peer} speaks protocol {protocol}, this side {PROTOCOL}: versions next to each other are understood,"
        f" so upgrade {older} first, or run an older release of {newer}"
    )


def types_of(union: Any) -> frozenset[str]:
    """Returns the type names of an annotated union of messages, each of which has a `type` with a default."""
    return frozenset(member.model_fields["type"].default for member in get_args(get_args(union)[0]))


def known_or_unknown(given: object, known: frozenset[str]) -> object:
    """Returns a list of messages in which those of types that are not `known` are of type `unknown`.

    They keep their other fields, and have the name of their type as `told`. What is no list, or has no type, is left
    for validation to refuse.
    """
    if not isinstance(given, list):
        return given
    return [_unknown(each) if _has_other_type(each, known) else each for each in given]


def _has_other_type(message: object, known: frozenset[str]) -> bool:
    return isinstance(message, dict) and isinstance(message.get("type"), str) and message["type"] not in known


def _unknown(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "type": "unknown", "told": message["type"][:_TYPE_MOST]}
