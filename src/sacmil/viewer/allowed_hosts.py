"""The host names under which the server accepts requests.

A page of another site can make a browser send requests to 127.0.0.1, also under its own name if
that name resolves there (DNS rebinding). The Host header reveals such requests.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class AllowedHosts:
    """The host names and port of a server.

    Args:
        names: in lower case; addresses without brackets.
        port: the port it listens on.
        any_address: whether every IP address is allowed, as for a server that listens on all of
            them. Unlike a name, an address cannot be made to resolve to this machine.
    """

    names: frozenset[str]
    port: int
    any_address: bool = False

    @classmethod
    def from_address(cls, host: str, port: int) -> AllowedHosts:
        """Return the names of a server that is bound to a host."""
        if is_loopback(host):
            return cls(frozenset({*_LOOPBACK, host.lower()}), port)
        if is_unspecified(host):
            own = {name.lower() for name in (socket.gethostname(), socket.getfqdn())}
            return cls(frozenset({*_LOOPBACK, *own}), port, any_address=True)
        return cls(frozenset({host.lower()}), port)

    def is_allowed(self, header: str) -> bool:
        """Whether a Host header, or the text after http:// in an Origin, names this server."""
        found = _HOST.fullmatch(header)
        if found is None or int(found[2] or 80) != self.port:
            return False
        name = found[1].strip("[]").lower()
        return name in self.names or (self.any_address and _is_address(name))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    if _is_address(host):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def is_unspecified(host: str) -> bool:
    """Whether a host stands for every address of this machine."""
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
