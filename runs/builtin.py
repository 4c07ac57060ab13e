"""The workflows that come with the engine: reconciliation and retention, by themselves, and bulk work. Registered at
start-up.

Their steps ask providers, so none is atomic; each does a bounded amount of work, and the checkpoint says how far it
came. May import workflows, waits, recurring, reconciliation, comparison, bulk, retention, pruning.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from . import bulk, comparison, providers, pruning, reconciliation, recurring, retention, tools
from .comparison import Comparison
from .errors import ProviderDown
from .models import database_clock
from .reconciliation import Tally
from .waits import TimerWait, timer
from .workflows import Caps, Finish, Goto, Workflow, finish, goto

SLICE = timedelta(hours=6)
"""How much of a provider's list one step asks for at first; less when that proves too much."""
SHORTEST_SLICE = timedelta(seconds=1)
OVERLAP = timedelta(hours=1)
"""How far each comparison reaches back into the one before."""
SHARE = 3
"""A step works for at most this part of the time that is left to it, so that one slow answer more does no harm."""
REST, LONGEST_REST, MOST_RESTS = timedelta(minutes=5), timedelta(hours=2), 40
"""Between two tries with a provider that is down; doubled each time, so 40 of them are more than three days."""

MANY_STEPS = Caps(steps=100_000)

reconcile_unknown = Workflow("reconcile-unknown", title="Reconcile what is unknown", caps=MANY_STEPS)
reconcile_provider = Workflow("reconcile-provider", title="Compare with what providers list", caps=MANY_STEPS)

bulk_work = Workflow(bulk.WORKFLOW, title="Bulk work", caps=MANY_STEPS)

keep_only_so_long = Workflow("retention", title="Withhold what is kept no longer", caps=MANY_STEPS)

recurring.only_when("retention", lambda: bool(retention.configured().shortest))
recurring.only_when("reconcile-unknown", reconciliation.is_anything_open)


@reconcile_unknown.step
def settle(ctx: Any) -> Goto | Finish:
    """Look up effects whose outcome is unknown"""
    tally = Tally(**ctx.state.get("tally", {}))
    after = reconciliation.settle_batch(tally, ctx.state.get("after", 0), _time_for(ctx))
    progress = {"tally": asdict(tally), "after": after}
    if after is not None:
        return goto(settle, progress)
    words = f"{tally.confirmed} confirmed, {tally.found} new findings" + (", a provider is down" if tally.down else "")
    return finish(words, progress)


@bulk_work.step
def treat(ctx: Any) -> Goto | Finish:
    """Treat the chosen runs, one after the other"""
    after = bulk.work(ctx.run_key, ctx.state.get("after", 0), min(bulk.AT_WORK, _time_for(ctx)))
    return goto(treat, {"after": after}) if after is not None else finish(bulk.words(ctx.run_key))


@keep_only_so_long.step
def withhold(ctx: Any) -> Goto | dict[str, Any]:
    """Take out the values of runs that are kept no longer"""
    done, until = retention.Done(), time.monotonic() + _time_for(ctx)
    while is_more := retention.withhold(retention.configured(), done, actor=ctx.run_key):
        if time.monotonic() > until:
            break
    told = {"runs": ctx.state.get("runs", 0) + done.runs}
    # What was locked waits for the next time: only a step that took something goes on at once.
    return goto(withhold, told) if is_more and done.runs else told


@keep_only_so_long.step
def prune(ctx: Any) -> Finish:
    """Remove files and rows that nothing needs any more"""
    rule, files = retention.configured(), pruning.remove_files()
    listed, sessions = pruning.delete(pruning.old_listed(rule)), pruning.delete(pruning.old_sessions())
    pruning.forget_failures(rule)
    told = {"files": files.removed, "away": files.away, "listed": listed, "sessions": sessions}
    return finish(f"{ctx.state['runs']} runs withheld, {files.removed} files removed", told)


@reconcile_provider.step
def begin(ctx: Any) -> Goto:
    """Choose the time and the tools to compare"""
    now, every = database_clock(), timedelta(seconds=ctx.input.get("every", 86_400))
    due = datetime.fromisoformat(ctx.input["due_at"]) if "due_at" in ctx.input else now
    window = {"since": (due - every - OVERLAP).isoformat(), "until": now.isoformat()}
    left = [tool.name for tool in tools.with_listing()]
    return goto(choose, window | {"left": left, "down": [], "rests": 0, "done": []})


@reconcile_provider.step
def rest(ctx: Any) -> TimerWait:
    """Wait for the providers that are down"""
    again = {"left": ctx.state["down"], "down": [], "rests": ctx.state["rests"] + 1}
    return timer(after=min(LONGEST_REST, REST * 2 ** min(ctx.state["rests"], 10)), output=again)


@reconcile_provider.step
def choose(ctx: Any) -> Goto | Finish:
    """Choose the next tool"""
    state = ctx.state
    if not state["left"]:
        if state["down"] and state["rests"] < MOST_RESTS:
            return goto(rest)
        return _ended(state)
    tool, *left = state["left"]
    at = datetime.fromisoformat(state["since"]) - comparison.SKEW
    progress = {
        "progress": asdict(Comparison(tool)),
        "at": at.isoformat(),
        "slice": SLICE.total_seconds(),
        "after": None,
    }
    return goto(list_theirs, {"left": left} | progress)


@reconcile_provider.step
def list_theirs(ctx: Any) -> Goto:
    """Take over a part of the provider's list"""

    def work(tool: tools.Tool, progress: Comparison) -> Goto:
        at, width = datetime.fromisoformat(ctx.state["at"]), timedelta(seconds=ctx.state["slice"])
        end = _window(ctx)[1] + comparison.SKEW
        until, listed = min(end, at + width), progress.listed
        seconds = _time_for(ctx) if width > SHORTEST_SLICE else None
        if not comparison.take_list(tool, at, until, progress, seconds=seconds):
            progress.listed = listed
            return goto(list_theirs, {"slice": width.total_seconds() / 2})
        following = list_theirs if until < end else look_at_theirs
        return goto(following, {"progress": asdict(progress), "at": until.isoformat()})

    return _unless_down(ctx, work)


@reconcile_provider.step
def look_at_theirs(ctx: Any) -> Goto:
    """Compare what the provider lists with our effects"""

    def work(tool: tools.Tool, progress: Comparison) -> Goto:
        since, until = _window(ctx)
        since, until, after = since - comparison.SKEW, until + comparison.SKEW, ctx.state["after"]
        after = comparison.look_at_theirs(tool, since, until, progress, after)
        following = look_for_ours if after is None else look_at_theirs
        return goto(following, {"progress": asdict(progress), "after": list(after) if after else None})

    return _unless_down(ctx, work)


@reconcile_provider.step
def look_for_ours(ctx: Any) -> Goto:
    """Look for confirmed effects that the provider does not list"""

    def work(tool: tools.Tool, progress: Comparison) -> Goto:
        after = comparison.look_for_ours(tool, *_window(ctx), progress, ctx.state["after"], seconds=_time_for(ctx))
        following = close_gone if after is None else look_for_ours
        return goto(following, {"progress": asdict(progress), "after": after})

    return _unless_down(ctx, work)


@reconcile_provider.step
def close_gone(ctx: Any) -> Goto:
    """Close findings whose difference has gone"""

    def work(tool: tools.Tool, progress: Comparison) -> Goto:
        after = comparison.close_gone(tool, progress, ctx.state["after"], seconds=_time_for(ctx))
        if after is not None:
            return goto(close_gone, {"progress": asdict(progress), "after": after})
        return goto(choose, {"done": [*ctx.state["done"], asdict(progress)]})

    return _unless_down(ctx, work)


def _unless_down(ctx: Any, work: Callable[[tools.Tool, Comparison], Goto]) -> Goto:
    """Work on the tool at hand; when its provider is down, go on with the others first."""
    progress = Comparison(**ctx.state["progress"])
    tool = tools.get(progress.tool)
    if tool is None or tool.listing_function is None:
        return goto(choose)
    try:
        return work(tool, progress)
    except ProviderDown as down:
        providers.went_down(down)
        return goto(choose, {"down": [*ctx.state["down"], tool.name]})


def _window(ctx: Any) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(ctx.state["since"]), datetime.fromisoformat(ctx.state["until"])


def _ended(state: dict[str, Any]) -> Finish:
    listed, found = (sum(done[name] for done in state["done"]) for name in ("listed", "found"))
    words = f"{listed} listed, {found} new findings" + (", a provider is down" if state["down"] else "")
    return finish(words)


def _time_for(ctx: Any) -> float:
    return min(reconciliation.AT_WORK, ctx.remaining / SHARE)
