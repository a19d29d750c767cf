"""Versions of the protocol between server and agents, and how each side treats messages of a newer release.

A release understands the one before it and the one after it. New fields have defaults, and unknown ones are ignored; a
message of an unknown type becomes one of type `unknown`, so that the known ones beside it are taken. What is further
apart is refused in words that say what to upgrade.

Version 1 is the first release: its agents name neither themselves nor a cluster, and its server refuses a heartbeat as
a whole for one report that it does not know. Version 2 names the cluster, its incarnation and the agent in every
message, and skips unknown types.
"""

from typing import Any, get_args

#: The version that this release speaks.
PROTOCOL = 2

#: 16 or more hexadecimal digits that name one agent's state folder; empty from agents of version 1.
AGENT_PATTERN = r"^([0-9a-f]{16,64})?$"
#: The incarnation of the database that granted an attempt; empty where that was version 1.
INCARNATION_PATTERN = r"^([0-9a-f]{16})?$"
#: The number of digits of a cluster's id, and of its database's incarnation.
CLUSTER_PATTERN = r"^[0-9a-f]{32}$"
LIFE_PATTERN = r"^[0-9a-f]{16}$"
#: The form of a content name (`walras.content`), and the most files that one tree may have.
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
