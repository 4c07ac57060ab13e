"""With what words a decision is refused. An exception takes data and owns its sentence.

May import models.
"""

from datetime import datetime

from .models import Decision


class DecisionRefused(Exception):
    """Nothing was decided. `status` is the HTTP status that says the same."""

    status = 400


class Stranger(DecisionRefused):
    status = 404

    def __init__(self) -> None:
        super().__init__("There is no such approval.")


class NotAnApprover(DecisionRefused):
    status = 403


class AlreadyDecided(DecisionRefused):
    status = 409

    def __init__(self, sentence: str, decision: Decision | None = None) -> None:
        super().__init__(sentence)
        self.decision = decision


class TooLate(DecisionRefused):
    status = 410

    def __init__(self, due_at: datetime) -> None:
        super().__init__(f"This approval expired at {when(due_at)}. Nothing was decided and nothing is paid.")
        self.due_at = due_at


class Changed(DecisionRefused):
    status = 412

    def __init__(self, what: str) -> None:
        super().__init__(
            f"The {what} changed since you saw it. Nothing was decided; read what is shown now and decide on that."
        )
        self.what = what


class Invalid(DecisionRefused):
    status = 422

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


class NotTaken(Invalid):
    """The tool does not take these arguments. `problems`: what is wrong with each, by its name."""

    def __init__(self, sentence: str, problems: dict[str, str]) -> None:
        super().__init__("arguments", sentence)
        self.problems = problems


class FactsUnreadable(DecisionRefused):
    status = 503


class PasswordNeeded(DecisionRefused):
    """The person proved who they are too long ago for this amount."""

    status = 403
    what = "password"

    def __init__(self, seconds: int) -> None:
        super().__init__(
            f"Confirm your password: for this amount it must have been given in the last {seconds // 60} minutes. "
            "Nothing was decided."
        )


class TooManyTries(DecisionRefused):
    status = 429
    what = "password"

    def __init__(self, minutes: int) -> None:
        super().__init__(
            f"The password was wrong too often. Try again in {minutes} minutes, or sign in anew. Nothing was decided."
        )


def when(moment: datetime | None) -> str:
    """An instant as refusals spell it."""
    return f"{moment:%-d %b %Y, %H:%M:%S} UTC" if moment else "an unknown time"
