"""What control's part of a request costs: admission and both placements, with few and with many residents."""

import statistics
import time

from routers import PROFILE
from scenes import Figure, Goal, Sample, Solo, Stage

from narwhal.control import Control, Curves, Settings
from narwhal.control.commands import StartDecode, StartPrefill
from narwhal.control.events import (
    EngineJoined,
    EngineUp,
    FirstToken,
    PrefillFinished,
    RequestArrived,
    RequestFinished,
    Role,
    Tick,
)
from narwhal.fleet.model import Controller, Recovery, Serving, Slo
from narwhal.fleet.profile import Profile

ENGINES = 8
"""Half prefill, half decode."""
FEW, MANY = 32, 2000
REQUESTS = 4000
PROMPT_TOKENS = 512


class Fleet:
    """A `Control` with so many streams that stay, and requests that come and go."""

    def __init__(self, residents: int) -> None:
        curves = Curves.from_profile(Profile.model_validate(PROFILE))
        settings = Settings(Slo(ttft_s=2.0, tpot_s=0.1), Serving(), Controller(), Recovery())
        self.control = Control(settings)
        self.t = 0.0
        self.number = 0
        for index in range(ENGINES):
            role: Role = "prefill" if index % 2 == 0 else "decode"
            self.control.handle(EngineJoined(self.t, f"gpu-{index}/0", role, curves, True))
            self.control.handle(EngineUp(self.t, f"gpu-{index}/0", "1"))
        for _ in range(residents):
            self.request(stays=True)

    def request(self, *, stays: bool = False) -> int:
        """Serve one request; nanoseconds that its admission and its two placements took."""
        handle, number = self.control.handle, self.number
        self.number += 1
        self.t += 0.005
        if number % 50 == 0:
            handle(Tick(self.t))
        arrived = RequestArrived(self.t, number, PROMPT_TOKENS, 256, started_t=self.t)
        prefilled = PrefillFinished(self.t + 0.001, number, PROMPT_TOKENS)
        begin = time.perf_counter_ns()
        started = handle(arrived)
        decoding = handle(prefilled)
        took_ns = time.perf_counter_ns() - begin
        assert isinstance(started[-1], StartPrefill), started
        assert isinstance(decoding[-1], StartDecode), decoding
        handle(FirstToken(self.t + 0.002, number))
        if not stays:
            handle(RequestFinished(self.t + 0.003, number, 1, PROMPT_TOKENS))
        return took_ns


def _decide(stage: Stage) -> Sample:
    """Both fleets in turn, request by request, so that whatever slows the machine slows both."""
    few, many = Fleet(FEW), Fleet(MANY)
    times: tuple[list[int], list[int]] = ([], [])
    for _ in range(REQUESTS):
        times[0].append(few.request())
        times[1].append(many.request())
    few_us, many_us = (statistics.median(each) / 1e3 for each in times)
    return {"few": few_us, "many": many_us, "growth": many_us / few_us}


_NAME = "admission and placement of a request"
SOLOS = (
    Solo(
        (
            Figure("few", f"{_NAME}, {FEW} residents", "µs", Goal(ours=60.0), peers=False),
            Figure("many", f"{_NAME}, {MANY} residents", "µs", Goal(ours=60.0), peers=False),
            Figure("growth", f"{_NAME}, growth from {FEW} to {MANY}", "", Goal(ours=1.3), peers=False),
        ),
        _decide,
    ),
)
