"""Asks a process of its own (`presage.foresee.desk`) what a page wants to know: the loop that
serves pages never computes, and a question that takes too long ends with that process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Any

from presage.model.errors import UserError

__all__ = ["Desk", "Desks"]

_ANSWER_BYTES = 16 << 20
_LOOK_S = 60.0
_PLAN_S = 120.0
_IDLE_S = 600.0


class Desk:
    """One process that answers one question after the other; it is started when it is first asked,
    and ended when nobody has asked for a while."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    async def ask(self, kind: str, question: dict[str, Any]) -> Any:
        """The answer; a `UserError` if it is no."""
        line = json.dumps({"kind": kind, "question": question}).encode() + b"\n"
        async with self._turn:
            self._keep()
            process = await self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                async with asyncio.timeout(self._timeout_s):
                    process.stdin.write(line)
                    await process.stdin.drain()
                    said = await process.stdout.readline()
            except TimeoutError:
                await self._end()
                limit = f"{self._timeout_s:g} s"
                raise UserError(f"this takes longer than {limit}: ask for less") from None
            except (OSError, ValueError):  # it died, or said too much
                said = b""
            except asyncio.CancelledError:
                await self._end()  # else the next question would get this answer
                raise
        if not said.endswith(b"\n"):
            await self._end()
            raise UserError("the process that foresees ended; try again, or see the log")
        answer = json.loads(said)
        if "error" in answer:
            raise UserError(str(answer["error"]))
        return answer["value"]

    async def close(self) -> None:
        """End the process."""
        if self._idle is not None:
            self._idle.cancel()
        await self._end()

    def _keep(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        loop = asyncio.get_running_loop()
        self._idle = loop.call_later(_IDLE_S, self._end_idle)

    def _end_idle(self) -> None:
        if not self._turn.locked() and self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            # One thread: it shares the machine with a scheduler.
            one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "presage.foresee.desk"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_ANSWER_BYTES,
                env={**os.environ, **one},
            )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class Desks:
    """One desk for what is answered at once, and one for plans, which take seconds."""

    def __init__(self) -> None:
        self.look = Desk(_LOOK_S)
        self.plan = Desk(_PLAN_S)
        self._names: dict[str, list[str]] | None = None

    async def names(self) -> dict[str, list[str]]:
        """Models and GPUs to choose from."""
        if self._names is None:
            self._names = await self.look.ask("names", {})
        return self._names

    async def close(self) -> None:
        """End both."""
        await self.look.close()
        await self.plan.close()
