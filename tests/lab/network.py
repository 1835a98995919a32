"""The lab's cables: a namespace for each host and one for the controller, joined by two bridges.

`eth0` of each host is the network that operators come by, 10.99.0.0/24, the controller being .1; `eth1` is the
fabric, 10.99.1.0/24, which the controller is not on. Host N has the address .10 + N on both.
"""

import os

from tests.lab.tools import call

PREFIX = os.environ.get("NARWHAL_LAB_PREFIX", "nwlab-")
"""Of every namespace, mount and control group that is the lab's."""
CONTROLLER = f"{PREFIX}controller"
_BRIDGES = {"operators": ("10.99.0", "eth0"), "fabric": ("10.99.1", "eth1")}
_PARTITION = """table bridge cut {{
  chain forward {{
    type filter hook forward priority 0
    ether type ip ip saddr {{ {a} }} ip daddr {{ {b} }} drop
    ether type ip ip saddr {{ {b} }} ip daddr {{ {a} }} drop
  }}
}}
"""
_LOSS = """table inet loss {{
  chain input {{
    type filter hook input priority -10
    numgen random mod 100 < {percent} drop
  }}
}}
"""


def namespace(host: str) -> str:
    return f"{PREFIX}{host}"


def address(host: str, net: str = "operators") -> str:
    return f"{_BRIDGES[net][0]}.{10 + number(host)}"


def number(host: str) -> int:
    return int(host.removeprefix("h"))


def lay(hosts: list[str]) -> None:
    """Make the namespaces, bridges and cables."""
    call("ip", "netns", "add", CONTROLLER)
    _in(CONTROLLER, "link", "set", "lo", "up")
    for net in _BRIDGES:
        _in(CONTROLLER, "link", "add", net, "type", "bridge")
        _in(CONTROLLER, "link", "set", net, "up")
    _in(CONTROLLER, "addr", "add", f"{_BRIDGES['operators'][0]}.1/24", "dev", "operators")
    for host in hosts:
        call("ip", "netns", "add", namespace(host))
        _in(namespace(host), "link", "set", "lo", "up")
        for net, (_, interface) in _BRIDGES.items():
            peer = ["peer", "name", interface, "netns", namespace(host)]
            _in(CONTROLLER, "link", "add", _cable(host, net), "type", "veth", *peer)
            _in(CONTROLLER, "link", "set", _cable(host, net), "master", net, "up")
            _in(namespace(host), "addr", "add", f"{address(host, net)}/24", "dev", interface)
            _in(namespace(host), "link", "set", interface, "up")


def remove() -> None:
    """Remove every namespace that a lab has left."""
    listed = call("ip", "netns", "list").stdout.splitlines()
    for name in sorted(line.split()[0] for line in listed if line.startswith(PREFIX)):
        call("ip", "netns", "del", name)


def cut(host: str, *nets: str) -> None:
    """Pull a host's cables: all, or those named (`operators`, `fabric`)."""
    for net in nets or _BRIDGES:
        _in(CONTROLLER, "link", "set", _cable(host, net), "down", check=False)


def mend(host: str) -> None:
    """Plug a host's cables in."""
    for net in _BRIDGES:
        _in(CONTROLLER, "link", "set", _cable(host, net), "up")


def part(a: str, b: str) -> None:
    """Let nothing through between two hosts, on either network."""
    sides = [", ".join(address(host, net) for net in _BRIDGES) for host in (a, b)]
    _nft(CONTROLLER, _PARTITION.format(a=sides[0], b=sides[1]))


def join() -> None:
    """Undo every `part`."""
    call("ip", "netns", "exec", CONTROLLER, "nft", "delete", "table", "bridge", "cut", check=False)


def lose(host: str, percent: int) -> None:
    """Drop a share of what comes in to a host."""
    _nft(namespace(host), _LOSS.format(percent=percent))


def lose_nothing(host: str) -> None:
    """Undo `lose`."""
    call("ip", "netns", "exec", namespace(host), "nft", "delete", "table", "inet", "loss", check=False)


def _cable(host: str, net: str) -> str:
    return f"{net[:2]}{number(host)}"


def _in(where: str, *command: str, check: bool = True) -> None:
    call("ip", "-n", where, *command, check=check)


def _nft(where: str, text: str) -> None:
    call("ip", "netns", "exec", where, "nft", "-f", "-", text=text)
