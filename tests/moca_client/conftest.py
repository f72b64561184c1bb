"""Both clients on made-up answers and a clock that moves."""

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import httpx
import pytest

from moca_client import AsyncClient, Client, errors
from tests.waiting import Clock

TIMED = ("retry", "calls", "client", "subscriptions")


class Outcome:
    """What one client made of scripted answers: a value or an error, requests, pauses, jitter.

    Requests are answered one after the other, the last for ever: by a response, or an exception.
    """

    def __init__(self, answers):
        self.answers, self.requests = list(answers), []
        self.pauses, self.jitter = [], []
        self.value = self.error = None

    def __call__(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, type) and issubclass(answer, Exception):
            raise answer("cut", request=request)
        if callable(answer):
            return answer(request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def headers(self, name):
        return [request.headers.get(name) for request in self.requests]

    def alike(self):
        """What must not depend on the client: keys are random."""
        sent = [(request.method, request.url) for request in self.requests]
        error = (type(self.error), str(self.error))
        return sent, self.pauses, self.jitter, repr(self.value), error


@pytest.fixture
def ask(monkeypatch):
    """Make one call by each client on scripted answers; both must do the same, and nobody waits.

    Raises what they raise, else returns the outcome. The middle of each jitter is 1.
    """

    def asked(answers, use, **options):
        outcomes = [_outcome(monkeypatch, kind, answers, use, options) for kind in (Client, None)]
        outcome, asynchronous = outcomes
        assert outcome.alike() == asynchronous.alike()
        if outcome.error is not None:
            outcome.error.outcome = outcome
            raise outcome.error
        return outcome

    return asked


def _outcome(monkeypatch, kind, answers, use, options):
    clock = Clock()
    outcome = Outcome(answers)
    sleep, sleep_async = Mock(side_effect=clock.advance), AsyncMock(side_effect=clock.advance)
    uniform = Mock(return_value=1.0)
    with monkeypatch.context() as patch:
        for module in TIMED:
            timed = SimpleNamespace(monotonic=clock, sleep=sleep)
            patch.setattr(f"moca_client.{module}.time", timed)
        patch.setattr("moca_client.client._sleep", sleep_async)
        patch.setattr("moca_client.retry.random", SimpleNamespace(uniform=uniform))
        transport = httpx.MockTransport(outcome)
        try:
            if kind is Client:
                with Client(transport=transport, **options) as client:
                    value = use(client)
                    outcome.value = list(value) if hasattr(value, "__next__") else value
            else:
                outcome.value = asyncio.run(_use(transport, use, options))
        except (errors.ClientError, httpx.HTTPError) as error:
            outcome.error = error
    pauses = sleep.call_args_list or sleep_async.call_args_list
    outcome.pauses = [pause.args[0] for pause in pauses]
    outcome.jitter = [drawn.args for drawn in uniform.call_args_list]
    return outcome


async def _use(transport, use, options):
    async with AsyncClient(transport=transport, **options) as client:
        value = use(client)
        if hasattr(value, "__anext__"):
            return [item async for item in value]
        return await value
