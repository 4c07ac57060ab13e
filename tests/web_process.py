"""The web server as a real process for tests, and people who sign in there and send its forms over HTTP.

gunicorn as production runs it, except that it loads the site before it forks: a worker that was killed is replaced at
once. Everybody has a session of their own, and sends the fields that the page holds, the token against forgery too.
"""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import psutil
from django.contrib.sessions.backends.db import SessionStore
from sandbox_process import wait_until

from durable_site.processes import Children, free_port

HOST = "127.0.0.1"
WORKERS = 2
PATIENCE = 60.0
"""Seconds until an answer that never comes is given up."""

Fields = dict[str, str | list[str]]


class WebProcess:
    """Use as a context manager. `folder` is for its logs. `environment`: settings besides those of the database."""

    def __init__(self, database: Any, folder: Path, **environment: str) -> None:
        self._pid_file = folder / "web.pid"
        arguments = {"GUNICORN_CMD_ARGS": f"--preload --pid {self._pid_file}"}
        self._children = Children(folder / "web", database.environment | arguments | environment)
        self.url = ""

    def __enter__(self) -> "WebProcess":
        self._children.__enter__()
        self.url = self._children.web(HOST, free_port(), workers=WORKERS)
        return self

    def __exit__(self, *_: object) -> None:
        self._children.__exit__()

    def workers(self) -> list[psutil.Process]:
        """Those that serve now."""
        children = psutil.Process(int(self._pid_file.read_text())).children()
        return [child for child in children if _lives(child)]

    def kill_workers(self) -> None:
        """SIGKILL to all of them, and wait until others serve."""
        killed = self.workers()
        for worker in killed:
            worker.kill()
        wait_until(lambda: len(set(self.workers()) - set(killed)) == WORKERS)

    def log(self) -> str:
        return (self._children.logs / "web.log").read_text()


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        # Reaped since it was listed.
        return False


class Visitor:
    """Somebody who has signed in: a session, and the forms of the pages it may see."""

    def __init__(self, web: WebProcess, user: Any, password: str) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=web.url, timeout=PATIENCE, limits=limits)
        proof = {"username": user.get_username(), "password": password}
        assert self.send("/sign-in/", self.form("/sign-in/", "/sign-in/", **proof)).status_code == 302

    def form(self, page: str, action: str, **filled: str) -> Fields:
        """What the form of this page with this action would send, with these fields filled in. A page with several such
        forms is told which by the hidden field `verdict`."""
        answer = self._client.get(page)
        assert answer.status_code == 200, f"{page}: {answer.status_code}"
        for found, fields in read_forms(answer.text):
            if (found or page) == action and fields.get("verdict") == filled.get("verdict"):
                return fields | filled
        raise AssertionError(f"{page} offers no form to {action}")

    def send(self, action: str, fields: Fields) -> httpx.Response:
        return self._client.post(action, data=fields)

    def signed_in_ago(self, seconds: int) -> None:
        """Let the session say that this person proved who they are so long ago."""
        session = SessionStore(self._client.cookies["sessionid"])
        session["signed_in_at"] -= seconds
        session.save()

    def close(self) -> None:
        self._client.close()


def read_forms(page: str) -> list[tuple[str, Fields]]:
    """The action and the fields of each form, as a browser that nobody touched would send them."""
    reader = _FormReader()
    reader.feed(page)
    return reader.forms


def words(answer: httpx.Response) -> str:
    """What a page says, without its markup."""
    reader = _WordReader()
    reader.feed(answer.text)
    return " ".join(" ".join(reader.heard).split())


class _FormReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[tuple[str, Fields]] = []
        self._area, self._select = "", ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        said = dict(attributes)
        name = said.get("name") or ""
        if tag == "form":
            self.forms.append((said.get("action") or "", {}))
        elif tag == "input" and name and self._is_sent(said):
            ticked = "on" if said.get("type") in ("checkbox", "radio") else ""
            self._add(name, said.get("value") or ticked)
        elif tag == "textarea":
            self._area = name
            self._add(name, "")
        elif tag == "select":
            self._select = name
        elif tag == "option" and "selected" in said:
            self._choose(said.get("value") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = ""

    def handle_data(self, data: str) -> None:
        if self._area:
            self._add(self._area, f"{self.forms[-1][1][self._area]}{data}")

    @staticmethod
    def _is_sent(said: dict[str, str | None]) -> bool:
        kind = said.get("type")
        return "checked" in said if kind in ("checkbox", "radio") else kind not in ("submit", "button", "file", "image")

    def _add(self, name: str, value: str) -> None:
        if self.forms:
            self.forms[-1][1][name] = value

    def _choose(self, value: str) -> None:
        chosen = self.forms[-1][1].setdefault(self._select, [])
        assert isinstance(chosen, list)
        chosen.append(value)


class _WordReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def handle_data(self, data: str) -> None:
        self.heard.append(data)
