"""Column types and the database's clock, which all of our rows are dated by. Imports Django only."""

import json
from typing import Any

from django.db import models
from django.db.models import Func


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
