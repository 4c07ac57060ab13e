"""`manage.py authorities VERB …`: who may decide how much; granting and ending. May import authority, models, and runs'
console."""

from collections.abc import Iterator
from typing import Any

from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.core.management.base import CommandParser

from approvals import authority
from approvals.models import Authority
from runs.management import console
from runs.management.console import Answer, Console, NotFound, Refused, Usage, Verbs, columns, moment, name_of

AMOUNTS = ("limit_minor", "payee_limit_minor", "password_above_minor")


class Command(Console):
    help = "Lists, grants and ends authorities to decide approvals. Each grant and each end is an entry of the ledger."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = Verbs(parser)
        verbs.add("list", self._list, _table, "list who may decide how much")
        grant = verbs.add("grant", self._grant, _line, "let a person or a group decide")
        grant.add_argument("--to-user", metavar="USER", type=console.text)
        grant.add_argument("--to-group", metavar="GROUP", type=console.text)
        grant.add_argument("--workflow", metavar="NAME", type=console.text, default="", help="of this workflow alone")
        grant.add_argument("--team", metavar="TEAM", type=console.text, help="of this team alone")
        grant.add_argument("--currency", metavar="CODE", type=console.text, default="", help="of the amounts, as USD")
        for name in AMOUNTS:
            grant.add_argument(f"--{name.replace('_', '-')}", metavar="N", type=int, help="in the smallest unit")
        end = verbs.add("end", self._end, _line, "let an authority be worth nothing from now on")
        end.add_argument("id", metavar="ID", type=int)

    def _list(self, options: dict[str, Any]) -> Answer:
        _check_right(console.person(options["user"]), "view_authority")
        return [_told(each) for each in Authority.objects.select_related("user", "group", "team").order_by("pk")]

    def _grant(self, options: dict[str, Any]) -> Answer:
        by = console.person(options["user"])
        _check_right(by, "add_authority")
        said = {name: options[name] for name in ("workflow", "currency", *AMOUNTS)}
        holder = {"user": console.person(options["to_user"]), "group": _group(options["to_group"])}
        try:
            return _told(authority.grant(by=by, team=_group(options["team"]), **holder, **said))
        except ValidationError as error:
            raise Usage(f"That cannot be granted: {' '.join(error.messages)} Nothing was granted.") from None

    def _end(self, options: dict[str, Any]) -> Answer:
        by = console.person(options["user"])
        _check_right(by, "change_authority")
        try:
            return _told(authority.end(options["id"], by=by))
        except Authority.DoesNotExist:
            raise NotFound(f"There is no authority {options['id']}. `manage.py authorities list` shows them.") from None


def _check_right(user: User | None, right: str) -> None:
    if user is not None and not user.has_perm(f"approvals.{right}"):
        raise Refused(f"{user.get_username()} does not have the right {right} (group admins). Nothing was changed.")


def _group(name: str | None) -> Group | None:
    if name is None:
        return None
    found = Group.objects.filter(name=name).first()
    if found is None:
        raise Usage(f"There is no group {name}.")
    return found


def _told(each: Authority) -> dict[str, Any]:
    plain = {name: getattr(each, name) for name in ("workflow", "currency", *AMOUNTS, "valid_from", "valid_to")}
    named = {name: group.name if (group := getattr(each, name)) else "" for name in ("group", "team")}
    return {"id": each.pk, "user": name_of(each.user)} | named | plain


def _table(authorities: list[dict[str, Any]]) -> Iterator[str]:
    if not authorities:
        yield "There are no authorities: nobody can decide anything. `manage.py authorities grant` makes one."
        return
    head = ("ID", "HOLDER", "WORKFLOW", "TEAM", "LIMIT", "PER PAYEE, 24 H", "PASSWORD ABOVE", "ENDS")
    yield from columns(head, map(_cells, authorities))


def _cells(told: dict[str, Any]) -> tuple[Any, ...]:
    holder = told["user"] or f"group {told['group']}"
    amounts = (_amount(told, name) for name in AMOUNTS)
    ends = moment(told["valid_to"]) if told["valid_to"] else "-"
    return told["id"], holder, told["workflow"] or "any", told["team"] or "own", *amounts, ends


def _amount(told: dict[str, Any], name: str) -> str:
    return "-" if told[name] is None else f"{told[name]} {told['currency']}"


def _line(told: dict[str, Any]) -> Iterator[str]:
    yield from _table([told])
