"""A setting with which the control plane cannot start: what is wrong, and what to do."""

from __future__ import annotations


class SetupError(Exception):
    """Shown to the operator as it is. `next_step` is one sentence that tells what to do."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(f"{message} {next_step}")
        self.message = message
        self.next_step = next_step
