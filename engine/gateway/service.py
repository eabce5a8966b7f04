"""What all endpoints of the gateway share."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from engine.config import Config
from engine.gateway.delivery import Delivery
from engine.gateway.engine_client import EngineClient
from engine.gateway.errors import ApiError, model_not_found, unavailable
from engine.gateway.exchange import Exchange
from engine.gateway.health import HealthCheck
from engine.gateway.prompts import ContextLimit
from engine.gateway.requests import RequestState
from engine.model_shape import ModelShape
from engine.process import CannotStartError, ProcessContext
from telemetry.gauges import GaugeBoard


class Service:
    """The model that is served, the engine behind it, and the requests being answered."""

    def __init__(self, context: ProcessContext) -> None:
        """Read what must be known of the model. Raises CannotStartError."""
        run = context.run
        self.config: Config = context.config
        self.run = run
        self.zmq = context.zmq
        self.journal = context.journal
        self.model = self.config.served_model_name or run.model.name
        self.created = int(time.time())
        try:
            shape = ModelShape.from_folder(Path(run.model.path))
            self.limit = ContextLimit.from_folder(Path(run.model.path), shape.longest_sequence(self.config))
        except (OSError, KeyError, ValueError) as e:
            raise CannotStartError(f"cannot read the model folder {run.model.path}: {e}") from e
        self.max_model_len = shape.max_model_len(self.config)
        self.engine = EngineClient(
            context.zmq, context.folder.gauges, context.incarnation, self.config, context.journal, context.gauges
        )
        self.health = HealthCheck(GaugeBoard(context.folder.gauges), self.engine, self.config)
        self.draining = False
        self._active: dict[RequestState, Delivery] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def admit(self, exchange: Exchange) -> None:
        """Raise ApiError 401 or 503 for what must not come in now."""
        exchange.require_key(self.config.api_key)
        self._check_open()

    def check_model(self, name: str | None) -> None:
        """Raise ApiError 404 for a model that is not this one; None names none."""
        if name not in (None, self.model):
            raise model_not_found(str(name), self.model)

    # --- requests being answered

    def enter(self, state: RequestState, delivery: Delivery) -> None:
        """A request that was read is being answered from now on. Raises ApiError 503 when it came too late."""
        self._check_open()
        self._active[state] = delivery
        self._idle.clear()

    def leave(self, state: RequestState) -> None:
        """A request was answered to the last byte, or never entered."""
        self._active.pop(state, None)
        if not self._active:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no request is being answered."""
        await self._idle.wait()

    def _check_open(self) -> None:
        if self.draining:
            raise unavailable("the server is shutting down", "draining")

    def check_readers(self) -> None:
        """Abort deliveries that their readers hold up for too long."""
        now_s = time.monotonic()
        for delivery in list(self._active.values()):
            delivery.check(now_s)

    def fail_all(self, error: ApiError) -> None:
        """End all requests with an error."""
        for state in list(self._active):
            state.fail(error)
        self.engine.fail_questions(error)
