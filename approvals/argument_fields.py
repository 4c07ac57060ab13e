"""One labelled form field for each argument of a tool, from its JSON Schema: what a counter-proposal is typed into.

Text in, JSON values out, never through a float. Whether the tool takes them it says itself (proposals.previewed). A
shape without a field of its own is typed as JSON, that argument alone. May import runs' money, tools, values and how
they are shown.
"""

import json
import re
from datetime import date, datetime
from typing import Any, ClassVar, TypeGuard

from django import forms
from django.core.exceptions import ValidationError

from runs.money import amount, minor_units
from runs.templatetags.show import in_words, unseen_in
from runs.tools import Tool
from runs.values import LARGEST_EXACT_INTEGER, BadValue, as_json, canonical, from_json

ABSENT = object()
"""The value of an argument that is not given: the tool then has its own."""
LONGEST = 200_000
LONG = 80
"""A text of more characters gets several lines."""
_CURRENCY = re.compile(r"[A-Z]{3}")


class Argument(forms.CharField):
    """One argument as text. `kind` names the control to draw; `asked` is the value that is asked now."""

    kind: ClassVar[str] = "line"
    hint: ClassVar[str] = ""

    def __init__(self, name: str, asked: Any, schema: dict[str, Any], *, is_optional: bool = False) -> None:
        self.asked, self.is_optional = asked, is_optional
        hints = (schema.get("description", ""), self.hint, "Empty: none." if is_optional else "")
        super().__init__(
            required=False,
            strip=False,
            max_length=LONGEST,
            label=in_words(name.removesuffix("_minor")),
            help_text=" ".join(hint for hint in hints if hint),
            initial=self.spelled(asked),
        )

    def spelled(self, value: Any) -> str:
        return "" if value is ABSENT or value is None else self.written(value)

    def clean(self, typed: Any) -> Any:
        text = self.tidied(super().clean(typed).replace("\r\n", "\n"))
        if text == self.initial:
            return self.asked
        return None if self.is_optional and not text else self.read(text)

    def tidied(self, text: str) -> str:
        """Without the space around it that nobody sees; what was asked with such space may stay so."""
        return text if text == self.initial else text.strip()

    def written(self, value: Any) -> str:
        return str(value)

    def read(self, text: str) -> Any:
        return text


class Lines(Argument):
    kind = "lines"

    def tidied(self, text: str) -> str:
        return text


class WholeNumber(Argument):
    kind = "number"

    def read(self, text: str) -> int:
        if not re.fullmatch(r"-?\d{1,30}", text, re.ASCII):
            raise ValidationError("Write a whole number, in digits alone.")
        return _exact(int(text))


class Amount(Argument):
    """Money: major units in the form, integer minor units in the action."""

    kind = "amount"

    def __init__(self, name: str, asked: Any, schema: dict[str, Any], *, currency: str, is_optional: bool) -> None:
        self.currency = currency
        super().__init__(name, asked, schema, is_optional=is_optional)

    def written(self, value: Any) -> str:
        return amount(value, self.currency) if type(value) is int else str(value)

    def clean(self, typed: Any) -> str:
        # How many digits stand behind the point the currency says, which may be changed too: `in_units` is asked then.
        return str(forms.CharField.clean(self, typed)).strip()

    def in_units(self, text: str, currency: str) -> Any:
        if not text and (self.is_optional or self.asked is ABSENT):
            return None if self.is_optional else ABSENT
        try:
            minor = _exact(minor_units(text, currency))
        except ValueError as problem:
            raise ValidationError(str(problem)) from None
        if minor < 0 and not (type(self.asked) is int and self.asked < 0):
            raise ValidationError("An amount is not below zero.")
        return minor


class Day(Argument):
    kind = "day"

    def read(self, text: str) -> str:
        try:
            return date.fromisoformat(text if re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII) else "").isoformat()
        except ValueError:
            raise ValidationError("Say a day, such as 2026-12-24.") from None


class Instant(Argument):
    hint = "With its zone, such as 2026-12-24T18:00:00Z or 2026-12-24T18:00:00+01:00."

    def read(self, text: str) -> str:
        try:
            instant = datetime.fromisoformat(text)
        except ValueError:
            raise ValidationError("Say a day and a time, such as 2026-12-24T18:00:00Z.") from None
        if instant.tzinfo is None:
            raise ValidationError("Say the zone too: end it with Z for UTC, or with an offset such as +01:00.")
        return text


class Choice(Argument):
    """One of a few values; each stands in the form as its JSON, so that yes is not the word."""

    kind = "choice"

    def __init__(self, name: str, asked: Any, schema: dict[str, Any], *, values: list[Any], is_optional: bool) -> None:
        self.options = [(json.dumps(value), _option(value)) for value in values]
        if is_optional or asked is ABSENT or self.written(asked) not in dict(self.options):
            self.options.insert(0, ("", "None" if is_optional else "Choose…"))
        super().__init__(name, asked, schema, is_optional=is_optional)

    def written(self, value: Any) -> str:
        return json.dumps(value)

    def read(self, text: str) -> Any:
        if text not in dict(self.options) or not text:
            raise ValidationError("Choose one of these.")
        return json.loads(text)


class JSON(Argument):
    """Whatever has no field of its own: lists, objects, texts with characters that a field would hide or change."""

    kind = "json"
    hint = "Written as JSON."

    def spelled(self, value: Any) -> str:
        return "" if value is ABSENT else self.written(value)

    def written(self, value: Any) -> str:
        text = json.dumps(value, indent=2, ensure_ascii=False)
        return json.dumps(value, indent=2) if _hides(text) else text

    def read(self, text: str) -> Any:
        try:
            value = from_json(text, where=str(self.label))
            canonical(value, where=str(self.label))
        except BadValue as problem:
            raise ValidationError(f"{problem}.") from None
        return value


class ArgumentsForm(forms.Form):
    """All arguments of a tool. `asked`: those of the action that is asked now; `edited`: what the fields hold
    instead. Valid, `arguments` is what was typed, as JSON text."""

    def __init__(self, tool: Tool, asked: dict[str, Any], data: Any = None, edited: dict[str, Any] | None = None):
        super().__init__(data, prefix="argument")
        schema = tool.schema
        definitions = schema.get("$defs", {})
        for name, each in schema.get("properties", {}).items():
            shape, is_optional = _resolved(each, definitions)
            self.fields[name] = _field(name, shape, asked, is_optional=is_optional)
        if edited is not None:
            self.is_bound = True
            self.data = {self.add_prefix(name): _spelled(field, name, edited) for name, field in self.fields.items()}

    @property
    def currency(self) -> str:
        """What amounts are in, as the form says it now."""
        return str(self["currency"].value() or "").strip('" ') if "currency" in self.fields else ""

    @property
    def arguments(self) -> str:
        given = {name: value for name, value in self.cleaned_data.items() if value is not ABSENT}
        return as_json(given, where="arguments")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        currency = cleaned.get("currency")
        for name, field in self.fields.items():
            if isinstance(field, Amount) and name in cleaned:
                try:
                    cleaned[name] = field.in_units(
                        cleaned[name], currency if _is_currency(currency) else field.currency
                    )
                except ValidationError as problem:
                    self.add_error(name, problem)
        return cleaned

    def refuse(self, problems: dict[str, str]) -> None:
        """Put what the tool said beside the fields that it spoke of."""
        for path, problem in problems.items():
            name, _, inner = path.partition(".")
            if name in self.fields:
                self.add_error(name, f"{inner}: {problem}" if inner else problem)
            else:
                self.add_error(None, f"{path}: {problem}" if path else problem)


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """A schema without references and alternatives to null, and whether null will do."""
    if "$ref" in schema:
        target, is_optional = _resolved(definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return target | {name: value for name, value in schema.items() if name != "$ref"}, is_optional
    others = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    if len(others) == 1:
        inner, _ = _resolved(others[0], definitions)
        return inner | {name: value for name, value in schema.items() if name == "description"}, True
    return schema, False


def _field(name: str, schema: dict[str, Any], asked: dict[str, Any], *, is_optional: bool) -> Argument:
    value, currency = asked.get(name, ABSENT), asked.get("currency")
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    if schema.get("type") == "boolean":
        values = [True, False]
    if values:
        return Choice(name, value, schema, values=values, is_optional=is_optional)
    if schema.get("type") == "integer":
        if not (value is ABSENT or value is None or type(value) is int):
            return JSON(name, value, schema, is_optional=is_optional)
        if name.endswith("_minor") and _is_currency(currency):
            return Amount(name, value, schema, currency=currency, is_optional=is_optional)
        return WholeNumber(name, value, schema, is_optional=is_optional)
    return _text_field(schema, value, is_optional)(name, value, schema, is_optional=is_optional)


def _text_field(schema: dict[str, Any], value: Any, is_optional: bool) -> type[Argument]:
    """The field of a text, unless a field could not show this very text, or give it back."""
    is_empty = is_optional and value == ""
    if schema.get("type") != "string" or not (value is ABSENT or value is None or isinstance(value, str)) or is_empty:
        return JSON
    text = value if isinstance(value, str) else ""
    if _hides(text):
        return JSON
    by_format = {"date": Day, "date-time": Instant}.get(schema.get("format", ""))
    return by_format or (Lines if len(text) > LONG or "\n" in text else Argument)


def _spelled(field: Any, name: str, edited: dict[str, Any]) -> str:
    value, currency = edited.get(name, ABSENT), edited.get("currency")
    if isinstance(field, Amount) and type(value) is int and _is_currency(currency):
        return amount(value, currency)
    return str(field.spelled(value))


def _is_currency(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and _CURRENCY.fullmatch(value) is not None


def _hides(text: str) -> bool:
    return bool(unseen_in(text.replace("\n", "")))


def _exact(number: int) -> int:
    if abs(number) > LARGEST_EXACT_INTEGER:
        raise ValidationError(f"The largest number that can be signed is {LARGEST_EXACT_INTEGER:,}.")
    return number


def _option(value: Any) -> str:
    if isinstance(value, bool):
        return "Yes" if value else "No"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
