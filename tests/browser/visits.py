"""One person's visit to the site in a browser of their own, and everything that went wrong during it.

Imports nothing of the product: a visit knows only what a person sees, and what the browser complains of.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Locator, Page, Request, Response, expect

LONGEST = 20_000
"""Milliseconds that a person is made to wait for anything."""

UNSETTLED = ".htmx-request, .htmx-swapping, .htmx-settling"

REPORT_VIOLATIONS = """
document.addEventListener('securitypolicyviolation', violation =>
  console.error(`content policy: ${violation.effectiveDirective} refused ${violation.blockedURI}`));
"""

HIDE = """hidden => {
  Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event('visibilitychange'));
}"""


class Visit:
    """Reads like what the person does. Ask `faults` at the end: a visit that went well has none."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.context, self._address = context, address
        self.faults: list[str] = []
        self.asked: list[str] = []
        self._refusal = 0
        self._watch()
        self.page = context.new_page()
        self.page.set_default_timeout(LONGEST)
        self.page.set_default_navigation_timeout(LONGEST)

    # What the person does

    def go(self, path: str) -> None:
        self.page.goto(path)

    def sign_in(self, name: str, password: str) -> None:
        self.page.get_by_label("User name").fill(name)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()

    def tick(self) -> None:
        self.page.get_by_label("I have read the action").check()

    def approve(self) -> None:
        self.tick()
        self.approve_button.click()

    def reject(self, why: str = "") -> None:
        self.page.locator("summary", has_text="Reject").click()
        self.reason.fill(why)
        self.reject_button.click()

    def another_tab(self) -> Page:
        return self.context.new_page()

    def wait(self, seconds: int) -> None:
        """Let that much time pass in the browser, at once: every timer due by then fires once. A visit that waits has
        installed the clock before its first page."""
        # What came before is settled first: a leap would let a poll fire ahead of the answer that ends it.
        expect(self.page.locator(UNSETTLED)).to_have_count(0)
        self.page.clock.fast_forward(seconds * 1000)

    def waits_until(self, condition: Callable[[], object]) -> None:
        """Look again and again, and let the browser's news in meanwhile; fails when it does not come."""
        until = time.monotonic() + LONGEST / 1000
        while not condition():
            assert time.monotonic() < until, "it did not happen in time"
            self.page.wait_for_timeout(20)

    def open_everything(self) -> None:
        """Whatever is folded."""
        self.page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true })")

    def wait_for_poll(self, path: str, seconds: int) -> None:
        """As `wait`, until what the page then asked for has been answered."""
        with self.page.expect_response(lambda response: path in response.url):
            self.wait(seconds)

    def hide_tab(self, hidden: bool) -> None:
        """Headless tabs are never hidden, so the page is told that it is."""
        self.page.evaluate(HIDE, hidden)

    # What the person sees

    @property
    def approve_button(self) -> Locator:
        return self.page.get_by_role("button", name="Sign and approve")

    @property
    def reject_button(self) -> Locator:
        return self.page.get_by_role("button", name="Sign and reject")

    @property
    def reason(self) -> Locator:
        return self.page.get_by_label("Why are you rejecting it?")

    @property
    def decision(self) -> Locator:
        return self.page.locator("#decision")

    @property
    def notice(self) -> Locator:
        return self.page.locator("#notice")

    def sees(self, *words: str, within: str = "main") -> None:
        """Waits until all of it can be seen; fails when it does not come."""
        for word in words:
            expect(self.page.locator(within)).to_contain_text(word, use_inner_text=True, timeout=LONGEST)

    def is_at(self, path: str) -> None:
        """Waits until the page there is loaded; `path` is a pattern."""
        # Not wait_for_url: it gives up when two polls that find the session ended lead to sign in one after the other.
        expect(self.page).to_have_url(re.compile(re.escape(self._address) + path), timeout=LONGEST)
        self.page.wait_for_load_state()

    def is_signed_for(self) -> None:
        """The receipt is shown, and says that it holds."""
        self.is_at(r"/receipts/\d+/$")
        self.sees("Valid Signature, hash, record and rows agree")

    def polled(self, path: str) -> int:
        """How often the page asked for this path."""
        return sum(address == self._address + path for address in self.asked)

    @contextmanager
    def refused(self, status: int) -> Iterator[None]:
        """What is done inside must be answered with this status, which counts as no fault there."""
        self._refusal = status
        with self.page.expect_response(lambda response: response.status == status):
            yield

    # What went wrong

    def _watch(self) -> None:
        self.context.add_init_script(REPORT_VIOLATIONS)
        self.context.on("console", self._on_console)
        self.context.on("page", lambda page: page.on("crash", lambda: self._fault("the page crashed")))
        self.context.on("weberror", lambda error: self._fault(f"uncaught: {error.error}"))
        self.context.on("dialog", self._on_dialog)
        self.context.on("request", self._on_request)
        self.context.on("requestfailed", self._on_failure)
        self.context.on("response", self._on_response)

    def _fault(self, sentence: str) -> None:
        self.faults.append(sentence)

    def _on_console(self, message: ConsoleMessage) -> None:
        # A status of 400 and more also comes as a response, where it is judged.
        if message.type in ("error", "warning") and "the server responded with a status of" not in message.text:
            self._fault(f"console: {message.text}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self._fault(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        self.asked.append(request.url.partition("?")[0])
        if not request.url.startswith(f"{self._address}/"):
            self._fault(f"asked for something elsewhere: {request.url}")

    def _on_failure(self, request: Request) -> None:
        # Whoever leaves a page ends the polls that are under way.
        if request.failure != "net::ERR_ABORTED":
            self._fault(f"failed: {request.method} {request.url}: {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status < 400:
            return
        if response.status != self._refusal:
            self._fault(f"{response.status}: {response.request.method} {response.url}")
        self._refusal = 0


def sideways(page: Page) -> Any:
    """How many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
