"""Everything the engine can say no with. An exception takes data and owns its sentence.

Failures derive from Exception; control flow (the lease is lost) derives from BaseException, so that an author's
`except Exception` cannot swallow it. Imports nothing of ours.
"""

from datetime import datetime


class RunError(Exception):
    """A verb was refused. Nothing was changed."""


class NoSuchRun(RunError):
    def __init__(self, key: str) -> None:
        super().__init__(f"There is no run {key}. `manage.py runs list` shows those you may see.")
        self.key = key


class NotAllowed(RunError):
    """The person may not do this; `rule` says which rule forbids it."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


class IllegalMove(RunError):
    def __init__(self, key: str, status: str, verb: str) -> None:
        super().__init__(f"Run {key} is {status}, so it cannot be {verb}. Nothing was changed.")
        self.key, self.status = key, status


class TooLate(RunError):
    def __init__(self, key: str, event: str, due_at: datetime) -> None:
        super().__init__(
            f"Run {key} waited for {event} until {due_at:%-d %b %Y, %H:%M:%S} UTC. It comes too late, and was not kept."
        )
        self.key = key


class WaitIsOver(RunError):
    def __init__(self, key: str, due_at: datetime) -> None:
        super().__init__(
            f"The wait of run {key} ended on {due_at:%-d %b %Y, %H:%M:%S} UTC, so it cannot be extended. "
            "Nothing was changed."
        )
        self.key = key


class ChangedMeanwhile(RunError):
    """Somebody acted on the run after this page was drawn."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(f"Since you opened this page {what}. Nothing was changed; look at run {key} again.")
        self.key = key


class AlreadyStarted(RunError):
    def __init__(self, key: str, difference: str) -> None:
        super().__init__(
            f"Run {key} was started before with another {difference}. "
            "The first run is untouched; use another key for another run."
        )
        self.key = key


class BadRequest(RunError):
    """The caller's words are off; the sentence says which."""


class NoSuchFinding(RunError):
    def __init__(self, finding_id: int) -> None:
        super().__init__(f"There is no finding {finding_id}. `manage.py findings list` shows those you may see.")


class NoSuchEffect(RunError):
    def __init__(self, key: str) -> None:
        super().__init__(f"There is no effect {key}. `manage.py runs show` lists the calls of a run.")


class FindingClosed(RunError):
    def __init__(self, finding_id: int) -> None:
        super().__init__(f"Finding {finding_id} is closed already. Nothing was changed.")


class EffectSettled(RunError):
    """The effect is not, or not now, for a person to settle."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key} cannot be settled by hand: {why}. Nothing was changed.")


class ToolError(Exception):
    """A tool could not do what it was asked. Raise one of its three kinds, which decide what the engine does next."""


class Retryable(ToolError):
    """Nothing happened, and trying again may help. `retry_after`: seconds the other side asked us to wait."""

    def __init__(self, sentence: str, *, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.retry_after = retry_after


class Refused(ToolError):
    """Nothing happened, and trying again cannot help. `stored`: the receiver says that this was its answer to the first
    request under the key too, so nothing happened then either."""

    def __init__(self, sentence: str, *, stored: bool = False) -> None:
        super().__init__(sentence)
        self.stored = stored


class KeyConflict(ToolError):
    """The receiver knows this key with another request. Nothing was done now; what it stands for there is unknown."""


class OutcomeUnknown(ToolError):
    """It may have happened: a time-out, a reset, a 5xx, an answer that cannot be read."""


class ProviderDown(Exception):
    """The receiver of a tool could not be asked what it did. `asked`: "list" or "lookup"."""

    def __init__(self, tool: str, asked: str, error: Exception) -> None:
        # A tool's own sentences are written to be shown; whatever else was raised may hold anything.
        self.why = sentence_of(error) if isinstance(error, ToolError) else type(error).__name__
        super().__init__(f"The provider of {tool} cannot be asked ({asked}): {self.why}")
        self.tool, self.asked = tool, asked


class PermanentError(Exception):
    """Raised by a step: trying again cannot help. The run goes to the dead letters with this sentence."""


class KeyReused(PermanentError):
    def __init__(self, key: str, stored_digest: str, digest: str) -> None:
        super().__init__(
            f"The idempotency key {key} already stands for another request "
            f"(sha256 {stored_digest[:12]}, now {digest[:12]}). Nothing was sent. "
            "A step must ask for the same effect each time it is tried."
        )
        self.key = key


class ConflictThere(PermanentError):
    def __init__(self, key: str, sentence: str) -> None:
        super().__init__(
            f"The receiver knows the idempotency key {key} with another request: {_ended(sentence)} "
            "What it stands for there is not known. Ask the provider, then settle it by hand."
        )
        self.key = key


class EffectRefused(PermanentError):
    def __init__(self, key: str, tool: str, sentence: str) -> None:
        super().__init__(f"{tool} refused {key}: {_ended(sentence)} Nothing happened; going on means asking anew.")
        self.key = key


class EffectUnresolved(PermanentError):
    def __init__(self, key: str, tool: str) -> None:
        super().__init__(
            f"It is not known whether {tool} ({key}) happened, its key is too old to be sent again, "
            "and it cannot be looked up. Ask the provider, then settle it by hand."
        )
        self.key = key


class NotApproved(PermanentError):
    def __init__(self, tool: str, why: str) -> None:
        super().__init__(f"{tool} was not sent: {why}")


class LeaseLost(BaseException):
    """Another worker, a person or the clock took the run. Stop, and change neither run nor checkpoints."""


def sentence_of(error: BaseException) -> str:
    """What an error says, as it can be kept: what no database holds is spelled, and one that says nothing is named."""
    said = str(error) or type(error).__name__
    return said.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _ended(sentence: str) -> str:
    """Somebody else's words as a sentence that another may follow."""
    return sentence if sentence.endswith((".", "!", "?", "…")) else f"{sentence}."
