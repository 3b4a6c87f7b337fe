"""The control channel: one bound PULL socket per worker, one PUSH socket per peer.

Owned and used by the scheduler thread alone: a non-blocking receive on an idle socket
costs about a microsecond, so a thread of its own would only add a queue, a wake-up and
a thread that can die. libzmq's own queues are the bounded buffers on both sides.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from typing import Iterator, Optional, Tuple

import zmq

from sglang.srt.utils.network import NetworkAddress, restrict_zmq_peers, zmq_connect

from .messages import MAX_FRAME_BYTES, FrameError, Message, decode, encode
from .metrics import HandoffMetrics

logger = logging.getLogger(__name__)

RECEIVE_HIGH_WATER_MARK = 1024  # frames per peer: 64 MiB at most; what comes faster waits with its sender
SEND_HIGH_WATER_MARK = 1024  # frames per peer
MAX_PEERS = 256
MAX_FRAMES_PER_POLL = 512
DEAD_AFTER_MS = 2000  # a connection whose other end has confirmed nothing for so long, or none was made
KEEPALIVE_S = 10  # an idle connection is looked after so often


class HandoffChannel:
    """Bounded, non-blocking, at-most-once. Loss is the machines' business."""

    def __init__(
        self, host: str, accepts: Tuple[type, ...], metrics: Optional[HandoffMetrics] = None
    ) -> None:
        """Bind to a random port of ``host``, the address of this worker's KV sockets.

        Args:
            accepts: message types that this role may receive.
            metrics: told of each message, and of each that was dropped; by default none.

        Raises:
            zmq.ZMQError: no port can be bound.
        """
        self._accepts = accepts
        self._metrics = metrics or HandoffMetrics(None)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.set(zmq.RCVHWM, RECEIVE_HIGH_WATER_MARK)
        self._socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._socket.set(zmq.LINGER, 0)
        _watch_connections(self._socket)
        restrict_zmq_peers(self._context, self._socket)
        address = NetworkAddress(host, 0)
        if address.is_ipv6:
            self._socket.set(zmq.IPV6, 1)
        port = self._socket.bind_to_random_port(address.to_tcp().rsplit(":", 1)[0])
        self.endpoint = NetworkAddress(host, port).to_tcp()
        logger.info("Handoff control port: %s", self.endpoint)
        self._peers: OrderedDict[str, zmq.Socket] = OrderedDict()
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()  # by reason

    def receive(self) -> Iterator[Message]:
        """Messages that have arrived, at most MAX_FRAMES_PER_POLL a call. Never blocks or raises
        for what a peer sent: a bad frame is counted in ``dropped``, logged once per reason."""
        for _ in range(MAX_FRAMES_PER_POLL):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                if len(frames) != 1:
                    raise FrameError("size", f"{len(frames)} parts")
                message = decode(frames[0])
                if not isinstance(message, self._accepts):
                    raise FrameError("role", type(message).__name__)
            except FrameError as e:
                self.drop(e.reason, str(e))
                continue
            self._count(self.received, "received", message)
            yield message

    def send(self, endpoint: str, message: Message) -> None:
        """Queue ``message`` for ``endpoint``; counted as dropped when the queue is full."""
        try:
            self._peer(endpoint).send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            self.drop("send_queue_full", endpoint)
        except zmq.ZMQError as e:
            self.drop("unreachable", f"{endpoint}: {e}")
        else:
            self._count(self.sent, "sent", message)

    def connect(self, endpoint: str) -> None:
        """Begin to connect, so that the first message finds the connection made."""
        try:
            self._peer(endpoint)
        except zmq.ZMQError as e:
            self.drop("unreachable", f"{endpoint}: {e}")

    def drop(self, reason: str, detail: str = "") -> None:
        """Count something that was not obeyed; log the first of each reason."""
        self.dropped[reason] += 1
        self._metrics.dropped(reason)
        if self.dropped[reason] == 1:
            logger.warning(
                "Handoff control message dropped (%s): %s. Counted from now on, not logged.",
                reason,
                detail,
            )

    def close(self) -> None:
        for socket in self._peers.values():
            socket.close()
        self._peers.clear()
        self._socket.close()
        self._context.term()

    def _count(self, tally: Counter[str], direction: str, message: Message) -> None:
        kind = type(message).__name__
        tally[kind] += 1
        self._metrics.message(direction, kind)

    def _peer(self, endpoint: str) -> zmq.Socket:
        socket = self._peers.get(endpoint)
        if socket is None:
            if len(self._peers) >= MAX_PEERS:
                self._peers.popitem(last=False)[1].close()
            socket = self._context.socket(zmq.PUSH)
            socket.set(zmq.SNDHWM, SEND_HIGH_WATER_MARK)
            socket.set(zmq.LINGER, 0)
            _watch_connections(socket)
            if "[" in endpoint:
                socket.set(zmq.IPV6, 1)
            zmq_connect(socket, endpoint)
            self._peers[endpoint] = socket
        self._peers.move_to_end(endpoint)
        return socket


def _watch_connections(socket: zmq.Socket) -> None:
    """Have TCP give dead connections up, and libzmq make new ones.

    Left alone, TCP would try again, after a cut of the network, only after about as long as the
    cut was, and a bound socket would keep the connections of hosts that went away. libzmq's own
    heartbeats are no way: a peer that fills the queue and hangs up makes 4.3.5 abort the process.
    """
    socket.set(zmq.TCP_MAXRT, DEAD_AFTER_MS)
    socket.set(zmq.CONNECT_TIMEOUT, DEAD_AFTER_MS)
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_S)
    socket.set(zmq.TCP_KEEPALIVE_CNT, 3)
