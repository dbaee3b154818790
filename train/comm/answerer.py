"""What a node answers when others try the network paths to it: full segments at some ports, echoes of datagrams."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import struct
import threading

HEADER = struct.Struct("!II")
"""Of a datagram: the number of the try, and the size of the packet."""

_FIRST = 10_000


def ephemeral() -> range:
    """The ports that the kernel gives away."""
    low, high = 32_768, 60_999
    with (
        contextlib.suppress(OSError, ValueError),
        open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file,
    ):
        low, high = map(int, file.read().split())
    return range(low, high + 1)


def ranges() -> dict[str, range]:
    """The port ranges to probe: gloo and NCCL listen in the kernel's ephemeral range, rendezvous outside it."""
    among = ephemeral()
    middle = (_FIRST + among.start) // 2
    found = (range(_FIRST, middle), range(middle, among.start), among, range(among.stop, 65_536))
    return {name_of(each): each for each in found if each}


def name_of(ports: range) -> str:
    """The name of a range: its first and last port."""
    return f"{ports.start}-{ports.stop - 1}"


class Answerer:
    """Sends full segments at a port of each range and echoes each datagram's header, in a thread until `close`."""

    def __init__(self, address: str) -> None:
        kind = family(address)
        self._selector = selectors.DefaultSelector()
        self.ports: dict[str, int] = {}
        for name, among in ranges().items():
            for port in random.sample(among, min(50, len(among))):
                try:
                    sock = socket.create_server((address, port), family=kind, backlog=1024)
                except OSError:
                    continue  # in use
                sock.setblocking(False)
                self._selector.register(sock, selectors.EVENT_READ, True)
                self.ports[name] = port
                break
        datagrams = socket.socket(kind, socket.SOCK_DGRAM)
        datagrams.bind((address, 0))
        datagrams.setblocking(False)
        self._selector.register(datagrams, selectors.EVENT_READ, False)
        self.udp = int(datagrams.getsockname()[1])
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="paths")
        self._thread.start()

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(0.1):
                assert isinstance(key.fileobj, socket.socket)
                with contextlib.suppress(OSError):  # the peer has disconnected
                    if key.data:
                        _send_segments(key.fileobj.accept()[0])
                    else:
                        said, whom = key.fileobj.recvfrom(65_535)
                        key.fileobj.sendto(said[: HEADER.size], whom)

    def close(self) -> None:
        """Stop answering."""
        self._closing = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()


def _send_segments(sock: socket.socket) -> None:
    """Send packets of the largest size, one by one: a NIC that splits large sends would hide the path's limit."""
    with sock:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        segment = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        for _ in range(3):
            sock.send(bytes(segment))


def family(address: str) -> socket.AddressFamily:
    """That of an address in digits."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET
