"""What an address of the runs console asks for: a tab, filters, a search, and where a page is cut.

Every choice is in the address: a link is a saved view. May import states.
"""

from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, NamedTuple

from django.http import QueryDict

from .states import Status, WaitKind


class Tab(NamedTuple):
    name: str
    title: str
    statuses: tuple[Status, ...] = ()
    is_bad: bool = False


TABS = (
    Tab("all", "All"),
    Tab("working", "At work", (Status.READY, Status.RUNNING)),
    Tab("waiting", "Waiting", (Status.WAITING,)),
    Tab("sleeping", "Sleeping", (Status.SLEEPING,)),
    Tab("stuck", "Stuck", is_bad=True),
    Tab("overdue", "Overdue", is_bad=True),
    Tab("dead", "Dead letter", (Status.DEAD,), is_bad=True),
    Tab("paused", "Paused", (Status.PAUSED,)),
    Tab("completed", "Completed", (Status.COMPLETED,)),
    Tab("expired", "Expired", (Status.EXPIRED,)),
    Tab("cancelled", "Cancelled", (Status.CANCELLED,)),
)
AGES = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
AGE_TITLES = {"1h": "1 hour", "1d": "1 day", "7d": "7 days", "30d": "30 days"}


@dataclass(frozen=True)
class Choice:
    """What the address asks for; anything it should not ask for is taken as the default."""

    status: str = "all"
    search: str = ""
    workflow: str = ""
    version: str = ""
    team: str = ""
    tag: str = ""
    age: str = ""
    wait: str = ""
    after: int | None = None
    before: int | None = None

    @classmethod
    def of(cls, query: QueryDict) -> "Choice":
        words = {name: query.get(asked, "").strip().replace("\0", "")[:310] for name, asked in ASKED.items()}
        words["status"] = words["status"] if words["status"] in {tab.name for tab in TABS} else "all"
        words["age"] = words["age"] if words["age"] in AGES else ""
        words["wait"] = words["wait"] if words["wait"] in WaitKind.values else ""
        words["version"] = words["version"] if _number(words["version"], 5) is not None else ""
        return cls(**words, after=_number(query.get("after", "")), before=_number(query.get("before", "")))

    @property
    def tab(self) -> Tab:
        return next(tab for tab in TABS if tab.name == self.status)

    @property
    def filters(self) -> dict[str, str]:
        """What narrows the tab, by the names that the address has for it."""
        given = {ASKED[item.name]: getattr(self, item.name) for item in fields(self) if item.name in ASKED}
        return {name: value for name, value in given.items() if value and name != "status"}

    @property
    def hidden(self) -> dict[str, str]:
        """What a form has to carry so that it speaks of the same runs."""
        return {"status": self.status} | self.filters

    @property
    def cut(self) -> dict[str, int | None]:
        return {"after": self.after, "before": self.before}

    def whole(self) -> "Choice":
        return replace(self, after=None, before=None)

    def address(self, **changes: Any) -> str:
        """The query string of this choice with some changes; a change of anything starts at the first page again."""
        query = QueryDict(mutable=True)
        query.update({name: str(value) for name, value in (self.hidden | changes).items() if value})
        return f"?{query.urlencode()}"


ASKED = {
    "status": "status",
    "search": "q",
    "workflow": "workflow",
    "version": "version",
    "team": "team",
    "tag": "tag",
    "age": "age",
    "wait": "wait",
}
"""The members of a choice by the names that an address has for them."""


def _number(word: str, digits: int = 18) -> int | None:
    return int(word) if word.isascii() and word.isdecimal() and len(word) <= digits else None
