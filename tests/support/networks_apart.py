"""Machines with networks of their own: each a network namespace on one bridge, which this process reaches as well."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tests.support.not_here import not_here

#: The name of the interface in each network.
CABLE = "cable"


class NetworksApart:
    """Networks by name, which are told apart from other processes' by the number of this one."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = ("bridge", *names)
        #: This process's own address on the bridge.
        self.outside = self._address(254)

    def enter(self, name: str) -> list[str]:
        """The words that start a command there."""
        return ["ip", "netns", "exec", self._space(name)]

    def make(self) -> None:
        bridge = self._space("bridge")
        for name in self._names:
            _ip("netns", "add", self._space(name))
            _ip("-n", self._space(name), "link", "set", "lo", "up")
        _ip("-n", bridge, "link", "add", "bridge", "type", "bridge")
        _ip("-n", bridge, "link", "set", "bridge", "up")
        for number, name in enumerate(self._names[1:], 1):
            self._connect(f"to{number}", self._space(name), CABLE, ["-n", self._space(name)], self._address(number))
        self._connect("out", str(os.getpid()), f"walras{os.getpid()}", [], self.outside)

    def _connect(self, port: str, space: str, cable: str, there: Sequence[str], address: str) -> None:
        bridge = self._space("bridge")
        _ip("link", "add", port, "netns", bridge, "type", "veth", "peer", "name", cable, "netns", space)
        _ip("-n", bridge, "link", "set", port, "master", "bridge", "up")
        _ip(*there, "addr", "add", f"{address}/24", "dev", cable)
        _ip(*there, "link", "set", cable, "up")

    def slow_down(self, name: str, others: Sequence[str], mbit: int) -> None:
        """What a network sends to these others goes at so many Mbit/s."""
        tc = [*self.enter(name), "tc"]
        shaped = f"htb rate {mbit}mbit quantum 1514"
        for words in (
            f"qdisc add dev {CABLE} root handle 1: htb default 1",
            f"class add dev {CABLE} parent 1: classid 1:1 htb rate 10gbit quantum 60000",
            f"class add dev {CABLE} parent 1: classid 1:2 {shaped}",
            *(
                f"filter add dev {CABLE} parent 1: protocol ip u32 match ip dst {self._address(number)}/32 flowid 1:2"
                for number, each in enumerate(self._names[1:], 1)
                if each in others
            ),
        ):
            subprocess.run([*tc, *words.split()], check=True, capture_output=True)

    def remove(self) -> None:
        """The cables go with the namespaces."""
        for name in self._names:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self._space(name))

    def _space(self, name: str) -> str:
        return f"walras-{os.getpid()}-{name}"

    def _address(self, number: int) -> str:
        return f"10.231.{10 + os.getpid() % 240}.{number}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def networks_apart(*names: str) -> Iterator[NetworksApart]:
    """Skips where the system does not allow namespaces (WALRAS_REQUIRE=namespaces: fails)."""
    made = NetworksApart(names)
    try:
        if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
            not_here("namespaces", "namespaces need root, and the commands ip and unshare")
        try:
            made.make()
        except subprocess.CalledProcessError as refusal:
            not_here("namespaces", f"no networks apart can be made here: {refusal}: {refusal.stderr.decode()}")
        yield made
    finally:
        if shutil.which("ip") is not None:
            made.remove()
