"""Which gateway incarnations are over, so that nothing is computed for a gateway that died."""

from __future__ import annotations


class GatewayWatch:
    """News of gateways comes by two ways, from the supervisor and with each message, in either order.

    Incarnations only grow: a message of a later gateway proves the earlier ones dead, and one of a dead
    gateway can be nothing but late.
    """

    def __init__(self) -> None:
        self.dead_up_to = 0
        self._newest = 0

    def directory_says(self, incarnation: int) -> None:
        """The supervisor names the living gateway; 0 when there is none."""
        if incarnation:
            self._hear_of(incarnation)
        else:
            self.dead_up_to = self._newest

    def accepts(self, incarnation: int) -> bool:
        """Whether a message of this gateway is to be obeyed."""
        self._hear_of(incarnation)
        return incarnation > self.dead_up_to

    def _hear_of(self, incarnation: int) -> None:
        self._newest = max(self._newest, incarnation)
        self.dead_up_to = max(self.dead_up_to, incarnation - 1)
