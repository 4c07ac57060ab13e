"""Meets the pages as a browser without a script does, and as htmx does."""

import re
from html.parser import HTMLParser

from django.test import Client

HTMX = {"HX-Request": "true", "HX-Current-URL": "http://testserver/inbox/?scope=team"}


def browser(person, **options):
    client = Client(**options)
    client.force_login(person)
    return client


def form(approval, verdict="approve", **changes):
    """What the page's form sends, read from the page itself."""
    page = browser(changes.pop("reader")).get(f"/approvals/{approval.pk}/").content.decode()
    digests = {name: re.search(rf'name="{name}" value="(\w+)"', page)[1] for name in ("payload_digest", "facts_digest")}
    return {"verdict": verdict, "comment": "", "read": "on"} | digests | changes


def text(response):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def decide(approval, person, headers=None, **words):
    sent = form(approval, reader=person, **words)
    return browser(person).post(f"/approvals/{approval.pk}/decide/", sent, headers=headers)


class Inline(HTMLParser):
    """Collects whatever a strict content policy would refuse."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        names = dict(attributes)
        if tag == "style" or (tag == "script" and "src" not in names):
            self.found.append(tag)
        self.found += [name for name in names if name == "style" or re.match(r"on[a-z]|hx-on", name)]
