"""What of an output or an answer is moved to artefact storage, how it comes back, and which run keeps which artefact.

A row holds the object {"$kept": …} where a heavy value was, only there, and only as a member of an output or answer, as
an element of a list that is such a member, or as a whole answer. A value of an author's or of the outside world that
has such an object in it is itself moved, however small: so nobody but this module can have written one into a row.

What is small is left alone at the price of a look at its length. May import artefacts, models, values, errors.
"""

import logging
from typing import Any

from django.db import connection, transaction

from . import artefacts
from .artefacts import About, StorageAway
from .errors import PermanentError
from .failpoints import reach
from .models import Artefact, AuditEvent, DatabaseClock, Run
from .values import as_json, from_json

logger = logging.getLogger(__name__)

INLINE = 32_000
"""Bytes of JSON up to which a value stays in its row."""
LARGEST = 16_000_000
"""Bytes of JSON that an output or an answer may have before it is lightened."""
SOFT_LIMIT, HARD_LIMIT = 64_000, 1_000_000
"""Bytes of a checkpoint, lightened: above the first it is told of, above the second it is refused."""

MARK = "$kept"
_TOKEN = f'{{"{MARK}":'
"""How the mark's object begins in the JSON that rows hold. Within a string the quotation mark would be escaped."""
_MARK_SIZE = 160


def is_light(text: str) -> bool:
    """Whether this JSON text may stand in a row as it is."""
    return size_of(text) <= INLINE and _TOKEN not in text


def holds_marks(text: str) -> bool:
    """Whether a row's JSON text has anything to restore."""
    return _TOKEN in text


def size_of(text: str) -> int:
    """Bytes of the text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


# To rows


def lighten_output(run: Run, position: int, step: str, output: dict[str, Any]) -> str:
    """The JSON text of a checkpoint whose output is not light; what is heavy in it is kept before this returns.

    Raises PermanentError above HARD_LIMIT, before anything is written, and StorageAway.
    """
    bundle = _Bundle()
    text = as_json(bundle.members(output, "output"), where=f"step {step}: output", limit=LARGEST)
    size = size_of(text)
    if size > HARD_LIMIT:
        raise PermanentError(_too_large(step, output, size))
    bundle.store(run.pk, position)
    reach(run.key, position, "lightened")
    if size > SOFT_LIMIT:
        logger.warning("Run %s, step %s: its checkpoint %s takes %s bytes.", run.key, step, position, size)
        detail = f"step {step} left a checkpoint of {size:,} bytes; {SOFT_LIMIT:,} is large"
        AuditEvent.objects.create(
            kind=AuditEvent.Kind.LARGE_CHECKPOINT, run=run, position=position, detail=detail, actor=run.worker
        )
    return text


def lighten_answer(run_id: int, position: int, tool: str, answer: dict[str, Any]) -> dict[str, Any]:
    """What a call's row holds of an answer; what is heavy in it is kept before this returns. Raises StorageAway."""
    text = as_json(answer, where=f"{tool}'s answer", limit=LARGEST)
    if is_light(text):
        return answer
    bundle = _Bundle()
    light = bundle.members(answer, "answer")
    left = as_json(light, where=f"{tool}'s answer", limit=LARGEST)
    if size_of(left) > INLINE or left.startswith(_TOKEN):
        bundle = _Bundle()
        light = bundle.kept(text, "answer")
    bundle.store(run_id, position)
    return light


def lighten_outcome(run_id: int, position: int, tool: str, answer: dict[str, Any]) -> dict[str, Any]:
    """As `lighten_answer`, for what has happened or was paid: that is recorded whether or not the storage can be
    written; the answer then stays in its row."""
    try:
        return lighten_answer(run_id, position, tool, answer)
    except StorageAway as away:
        if _TOKEN in as_json(answer, where=f"{tool}'s answer", limit=LARGEST):
            raise
        logger.warning("The answer of %s stays in its row: %s", tool, away)
        return answer


def keep_by_hand(run_id: int, position: int, about: About) -> None:
    """Record that this run keeps an artefact whose bytes are stored. Raises StorageAway where they were removed just
    now."""
    if not _record(run_id, position, [("by hand", about)]):
        raise StorageAway("written", FileNotFoundError())


# From rows


def restored(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer as the tool gave it. Raises Damaged, StorageAway."""
    return _value_of(answer) if _is_mark(answer) else restored_members(answer)


def restored_members(output: dict[str, Any]) -> dict[str, Any]:
    """The output, or a fold of outputs, as its steps returned it. Raises Damaged, StorageAway."""
    return {name: _restored(member) for name, member in output.items()}


def _restored(member: Any) -> Any:
    if isinstance(member, list):
        return [_value_of(item) if _is_mark(item) else item for item in member]
    return _value_of(member) if _is_mark(member) else member


def _is_mark(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and MARK in value


def _value_of(mark: dict[str, Any]) -> Any:
    return from_json(artefacts.read(About.of(mark[MARK])).decode())


# Which run keeps what


def kept_by(run: Run, sha256: str) -> Artefact | None:
    """The artefact of these bytes, if this run keeps it, or kept it until its values were withheld."""
    return Artefact.objects.filter(run=run, sha256=sha256).order_by("pk").first()


def _record(run_id: int, position: int, kept: list[tuple[str, About]]) -> bool:
    """Write down that the run keeps these, unless one of them was removed since it was stored: False, and nothing is
    written."""
    # Not guarded by the fence: who keeps what is never wrong, and the outcome of an effect is recorded after a lost
    # lease too. A step that is tried again keeps the same things again.
    rows = [
        Artefact(run_id=run_id, position=position, place=place[:200], kept_at=DatabaseClock(), **about._asdict())
        for place, about in kept
    ]
    with transaction.atomic():
        # Until this is committed no file of these is removed: it might be one that was found stored, and nobody kept.
        _hold_files({about.sha256 for _, about in kept})
        if not all(artefacts.is_there(about.sha256) for _, about in kept):
            return False
        Artefact.objects.bulk_create(rows, ignore_conflicts=True)
    return True


def claim_file(sha256: str) -> bool:
    """Hold the file alone until the transaction ends, to remove it; False while somebody is naming it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(hashtextextended('artefact ' || %s, 0))", [sha256])
        return bool(cursor.fetchone()[0])


def _hold_files(names: set[str]) -> None:
    """Hold these files until the transaction ends, with all others who name them; waits for whoever removes one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_advisory_xact_lock_shared(hashtextextended('artefact ' || name, 0))) "
            "FROM unnest(%s::text[]) AS name",
            [sorted(names)],
        )


class _Bundle:
    """The heavy values of one output or answer: first all are found and weighed, then they are stored."""

    def __init__(self) -> None:
        self._found: list[tuple[str, About, bytes]] = []

    def members(self, value: dict[str, Any], where: str) -> dict[str, Any]:
        return {name: self._member(member, f"{where}.{name}") for name, member in value.items()}

    def kept(self, text: str, place: str) -> dict[str, Any]:
        content = text.encode()
        about = artefacts.measured(content, "application/json")
        self._found.append((place, about, content))
        return {MARK: about._asdict()}

    def store(self, run_id: int, position: int) -> None:
        for _ in range(2):
            for _, about, content in self._found:
                artefacts.keep(content, media_type=about.media_type)
            reach("artefacts", position, "stored")
            if _record(run_id, position, [(place, about) for place, about, _ in self._found]):
                return
        raise StorageAway("written", FileNotFoundError())

    def _member(self, member: Any, place: str) -> Any:
        if not isinstance(member, str | list | dict):
            return member
        text = as_json(member, where=place, limit=LARGEST)
        if is_light(text):
            return member
        return (isinstance(member, list) and self._elements(member, place)) or self.kept(text, place)

    def _elements(self, items: list[Any], place: str) -> list[Any] | None:
        """The list with its heavy elements kept: one that comes again in another list is stored once. None when that
        would not make it light."""
        texts = [as_json(item, where=place, limit=LARGEST) for item in items]
        left = sum(size_of(text) if is_light(text) else _MARK_SIZE for text in texts)
        if left > INLINE:
            return None
        return [
            item if is_light(text) else self.kept(text, f"{place}[{index}]")
            for index, (item, text) in enumerate(zip(items, texts, strict=True))
        ]


def _too_large(step: str, output: dict[str, Any], size: int) -> str:
    sizes = {name: size_of(as_json(member, limit=LARGEST)) for name, member in output.items()}
    light = {name: size for name, size in sizes.items() if size <= INLINE}
    largest = max(light, key=lambda name: light[name])
    return (
        f"step {step}: output takes {size:,} bytes as JSON and the limit is {HARD_LIMIT:,}, though what is over "
        f"{INLINE:,} bytes was left out; of the rest output.{largest} is the largest ({light[largest]:,} bytes). "
        "Keep what is large together, in one member or with ctx.artefact(…)."
    )
