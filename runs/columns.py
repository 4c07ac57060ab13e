"""Column types, the database's clock that all of our rows are dated by, and what queries need. Imports Django only."""

import json
from collections.abc import Iterable
from typing import Any

from django.db import models
from django.db.models import Func, Value


class DatabaseNow(Func):
    """The database's clock at the start of the statement (`runs_now()`); a test database can move it."""

    function = "runs_now"
    arity = 0
    output_field = models.DateTimeField()


class DatabaseClock(Func):
    """The database's clock at this very moment (`runs_clock()`), also inside a transaction that waited for a lock."""

    function = "runs_clock"
    arity = 0
    output_field = models.DateTimeField()


class Among(Func):
    """Texts as one array, as in `key__in=Among(keys)`: the statement's text stays the same however many there are, so
    that it is prepared once and fills no cache."""

    function = "unnest"
    template = "(SELECT %(function)s(%(expressions)s::text[]))"

    def __init__(self, texts: Iterable[str]) -> None:
        super().__init__(Value(list(texts)))


class JSONText(models.TextField):
    """JSON kept as text: reads back as the value, and the stored bytes are those that were written."""

    _pyi_private_get_type: Any
    _pyi_private_set_type: Any

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Any:
        return None if value is None else json.loads(value)

    def get_prep_value(self, value: Any) -> str | None:
        return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    def to_python(self, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    def value_to_string(self, obj: models.Model) -> str:
        return json.dumps(self.value_from_object(obj), ensure_ascii=False)
