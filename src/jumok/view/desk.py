"""Where questions wait: answered in threads, those that take longer apart from the others."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from jumok.view.answers import Answer, Unanswered
from jumok.view.questions import Pace, Questions
from jumok.view.stopping import Stop

__all__ = ["MOST_WAITING", "Desk", "Ticket"]

MOST_WAITING = 256
"""Questions that may wait or be answered at the same time; more are asked to come again."""

_SLOW = 2  # of those that pass over a whole map are answered at the same time


@dataclass(frozen=True, eq=False)
class Ticket:
    """A question that was taken.

    Attributes:
        answer: comes when it is there.
    """

    answer: Future[Answer]
    _stop: Stop

    def leave(self) -> None:
        """Nobody waits for the answer any more: it is not computed to its end."""
        self._stop.set()
        self.answer.cancel()


class Desk:
    """Takes questions and gives tickets.

    Args:
        questions: who answers.
    """

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        cores = max(2, os.cpu_count() or 2)
        self._pools: dict[Pace, ThreadPoolExecutor] = {
            "at once": ThreadPoolExecutor(cores, "jumok pointer"),
            "soon": ThreadPoolExecutor(cores, "jumok picture"),
            "slow": ThreadPoolExecutor(_SLOW, "jumok pass"),
        }
        self._lock = threading.Lock()
        self._tickets: set[Ticket] = set()

    @property
    def waiting(self) -> int:
        """How many tickets have not been given back."""
        return len(self._tickets)

    def ask(self, name: str, parameters: Mapping[str, str]) -> Ticket:
        """Take a question; its ticket is to be given back when its answer has been sent.

        Raises:
            Unanswered: too many wait already.
        """
        pool = self._pools[self._questions.pace(name, parameters)]
        stop = Stop()
        with self._lock:
            if len(self._tickets) >= MOST_WAITING:
                raise Unanswered("busy", "too many questions at once; ask again in a second")
            work = pool.submit(self._questions.answer, name, dict(parameters), stop)
            ticket = Ticket(work, stop)
            self._tickets.add(ticket)
        return ticket

    def give_back(self, ticket: Ticket) -> None:
        """The answer has been sent, or nobody wants it: there is room for another."""
        with self._lock:
            self._tickets.discard(ticket)

    def close(self) -> None:
        """Give up whatever has not been answered."""
        with self._lock:
            tickets = list(self._tickets)
            self._tickets.clear()
        for ticket in tickets:
            ticket.leave()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
