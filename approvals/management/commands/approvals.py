"""`manage.py approvals VERB …`: which approvals wait, what exactly one of them asks, and deciding it.

The verbs that answer are the page's, with the same refusals. May import decisions, facts, models, proposals, and runs'
console.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandParser
from django.db.models import QuerySet

from approvals import decisions, facts, ledger, proposals
from approvals.decisions import DecisionRefused, Stranger
from approvals.models import Approval, ApprovalStatus, Decision
from runs.management import console
from runs.management.console import ACTOR, Answer, Console, NotFound, Refused, Usage, Verbs, columns, moment, name_of
from runs.models import DatabaseNow
from runs.templatetags import show

UNSEEN = {"payload_digest": "", "facts_digest": ""}
"""The digests of whoever was shown nothing: the verb signs nothing on them."""


class Command(Console):
    help = "Lists, shows and decides approvals."
    refusals = (*Console.refusals, DecisionRefused, ledger.CannotSign)
    missing = (*Console.missing, Stranger)

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = Verbs(parser)
        listing = verbs.add("list", self._list, _table, "list what waits for an answer, the most urgent first")
        listing.add_argument("--overdue", action="store_true", help="only those whose time is over")
        _say_id(verbs.add("show", self._show, _whole_story, "show what exactly is asked, and on which facts"))
        decide = verbs.add("decide", self._decide, _receipt_lines, "sign an answer, as at the page", needs_person=True)
        _say_answer(decide)
        edit = verbs.add("edit", self._edit, _receipt_lines, "propose other arguments instead", needs_person=True)
        edit.add_argument("--arguments", metavar="JSON", type=console.text, required=True, help="all of them")
        respond = verbs.add("respond", self._respond, _receipt_lines, "ask for changes", needs_person=True)
        for verb in (edit, respond):
            verb.add_argument("--facts-digest", metavar="D", type=console.text, required=True, help=_PRINTED)
        withdraw = verbs.add("withdraw", self._withdraw, _receipt_lines, "take back what you asked", needs_person=True)
        for verb in (edit, respond, withdraw):
            _say_id(verb)
            verb.add_argument("--comment", metavar="TEXT", type=console.text, required=True, help="why")
            verb.add_argument("--payload-digest", metavar="D", type=console.text, required=True, help=_PRINTED)

    def described(self, refusal: Exception) -> dict[str, Any]:
        status = {"status": refusal.status} if isinstance(refusal, DecisionRefused) else {}
        return super().described(refusal) | status

    def _list(self, options: dict[str, Any]) -> Answer:
        visible = _visible(console.person(options["user"]))
        waiting = visible.overdue() if options["overdue"] else visible.waiting()
        rows = waiting.select_related("run", "team", "requested_by").prefetch_related("groups")
        rows = rows.defer("payload", "facts", "signed_facts", "run__input", "run__tags", "run__wait_terms")
        return [_summary(approval) for approval in rows.annotate(now=DatabaseNow()).order_by("due_at", "pk")]

    def _show(self, options: dict[str, Any]) -> Answer:
        user = console.person(options["user"])
        approval = _found(user, options["id"])
        if approval is None:
            raise NotFound(f"There is no approval {options['id']}. `manage.py approvals list` shows those that wait.")
        is_askable = user is not None and approval.status == ApprovalStatus.OPEN
        rule = decisions.may_decide(user, approval) if is_askable else ""
        return _story(approval) | {"forbidden_because": rule}

    def _decide(self, options: dict[str, Any]) -> Answer:
        user = console.person(options["user"])
        digests = {name: options[name] for name in UNSEEN if options[name]}
        if len(digests) < len(UNSEEN):
            digests = self._agreed(user, options) | digests
        decision = decisions.decide(
            options["id"],
            user=user,
            verdict=options["verdict"],
            comment=options["comment"],
            auth_method="command-line",
            actor=ACTOR,
            **digests,
        )
        return _receipt(decision)

    def _edit(self, options: dict[str, Any]) -> Answer:
        return _receipt(proposals.edit(options["id"], arguments=options["arguments"], **_said(options)))

    def _respond(self, options: dict[str, Any]) -> Answer:
        return _receipt(proposals.respond(options["id"], **_said(options)))

    def _withdraw(self, options: dict[str, Any]) -> Answer:
        return _receipt(proposals.withdraw(options["id"], **_said(options)))

    def _agreed(self, user: User | None, options: dict[str, Any]) -> dict[str, str]:
        """The digests of what was shown to the person, who agreed. Raises Refused, Usage."""
        approval = _found(user, options["id"])
        if approval is None or approval.status != ApprovalStatus.OPEN or decisions.may_decide(user, approval):
            # Nobody is asked to agree to what cannot be: the verb refuses it, and records that it did.
            return UNSEEN
        seen, verdict = _story(approval), options["verdict"]
        out = self.stderr if options["as_json"] else self.stdout
        meaning = f"To {verdict} this is to sign: {decisions.MEANING[Decision.Verdict(verdict)]}"
        out.write(console.terminal_text([*_whole_story(seen), "", meaning]), _as_it_is)
        if not options["yes"]:
            out.write(f'Type "{verdict}" to sign: ', _as_it_is, ending="")
            out.flush()
            _check_typed(verdict)
        return {"payload_digest": seen["payload_digest"], "facts_digest": seen["facts"]["now_digest"]}


# What is typed

_PRINTED = "as `approvals show` prints it"


def _said(options: dict[str, Any]) -> dict[str, Any]:
    said = {name: options[name] for name in ("comment", "payload_digest", "facts_digest") if options.get(name)}
    return said | {"user": console.person(options["user"]), "auth_method": "command-line", "actor": ACTOR}


def _say_id(parser: CommandParser) -> None:
    parser.add_argument("id", metavar="ID", type=int)


def _say_answer(parser: CommandParser) -> None:
    _say_id(parser)
    parser.add_argument("verdict", choices=Decision.Verdict.values)
    parser.add_argument("--comment", metavar="TEXT", type=console.text, default="", help="a rejection needs one")
    shown = "as `approvals show` printed it; with both digests nothing is shown or asked again"
    parser.add_argument("--payload-digest", metavar="D", type=console.text, help=f"of the payload, {shown}")
    parser.add_argument("--facts-digest", metavar="D", type=console.text, help="of the facts now, likewise")
    parser.add_argument("--yes", action="store_true", help="sign what is shown without asking")


def _check_typed(verdict: str) -> None:
    if not sys.stdin.isatty():
        raise Usage(
            "Nobody can be asked: standard input is no terminal. Give --yes, or --payload-digest and --facts-digest as "
            "`manage.py approvals show` prints them. Nothing was decided."
        )
    if sys.stdin.readline().strip() != verdict:
        raise Refused(f'"{verdict}" was not typed. Nothing was decided.')


# Data


def _visible(user: User | None) -> Any:
    return Approval.objects.all() if user is None else Approval.objects.visible_to(user)


def _found(user: User | None, pk: int) -> Approval | None:
    found: QuerySet[Approval] = _visible(user).filter(pk=pk).annotate(now=DatabaseNow())
    return found.select_related("run", "team", "requested_by").prefetch_related("groups", "decisions__user").first()


def _summary(approval: Any) -> dict[str, Any]:
    is_open = approval.status == ApprovalStatus.OPEN
    return {
        "id": approval.pk,
        "run": approval.run.key,
        "position": approval.position,
        "step": approval.step,
        "version": approval.version,
        "status": approval.status,
        "team": approval.team.name,
        "groups": sorted(group.name for group in approval.groups.all()),
        "requested_by": name_of(approval.requested_by),
        "statement": approval.statement,
        "tool": approval.tool,
        "amount_minor": approval.amount_minor,
        "currency": approval.currency,
        "payload_digest": approval.payload_digest,
        "required": approval.required,
        "asked_at": approval.asked_at,
        "due_at": approval.due_at,
        "overdue": is_open and approval.due_at <= approval.now,
        "closed_at": approval.closed_at,
    }


def _story(approval: Approval) -> dict[str, Any]:
    """Everything about one approval. `payload` is the exact text that is signed and executed."""
    return _summary(approval) | {
        "payload": approval.payload,
        "facts": _facts(approval),
        "decisions": [_decision(each) for each in sorted(approval.decisions.all(), key=lambda each: each.decided_at)],
        "spent_at": approval.spent_at,
        "spent_key": approval.spent_key,
    }


def _facts(approval: Approval) -> dict[str, Any]:
    """Facts at asking beside those of now while it can be decided, later beside those that were signed, if any were."""
    then = json.loads(approval.facts)
    told: dict[str, Any] = {"then": then, "then_digest": approval.facts_digest, "now": None, "now_digest": ""}
    told |= {"problem": "", "signed": json.loads(approval.signed_facts) if approval.signed_facts else None}
    if approval.status == ApprovalStatus.OPEN:
        now = facts.current(approval)
        told |= {"now": None if now.problem else now.values, "now_digest": now.digest, "problem": now.problem}
    later = told["signed"] if told["now"] is None else told["now"]
    return told | {"differences": [] if later is None else [asdict(each) for each in facts.compare(then, later)]}


def _decision(decision: Decision) -> dict[str, Any]:
    said = {"signer": decision.user.get_username(), "verdict": decision.verdict, "comment": decision.comment}
    return said | {"decided_at": decision.decided_at, "sequence": decision.entry_id}


def _receipt(decision: Decision) -> dict[str, Any]:
    entry, approval = decision.entry, decision.approval
    record = ledger.told(entry)
    signed = {name: record.get(name, "") for name in ("statement", "meaning", "payload_digest", "facts_digest")}
    where = {"approval": approval.pk, "run": approval.run.key, "status": approval.status}
    return where | _decision(decision) | {"entry_hash": entry.entry_hash, "key_id": entry.key_id} | signed


# Words


def _table(approvals: list[dict[str, Any]]) -> Iterator[str]:
    if not approvals:
        yield "No approvals wait."
        return
    head = ("ID", "RUN", "TEAM", "ASKED OF", "DUE", "STATEMENT")
    yield from columns(head, map(_cells, approvals))


def _cells(approval: dict[str, Any]) -> tuple[Any, ...]:
    groups = ", ".join(approval["groups"])
    return approval["id"], approval["run"], approval["team"], groups, _due(approval), approval["statement"]


def _due(approval: dict[str, Any]) -> str:
    return moment(approval["due_at"]) + (" (overdue)" if approval["overdue"] else "")


def _whole_story(approval: dict[str, Any]) -> Iterator[str]:
    yield f"Approval {approval['id']}: {approval['status']}"
    yield f"run {approval['run']}, step {approval['position']} {approval['step']}, team {approval['team']}"
    yield f"asked for by {approval['requested_by'] or 'the system'} at {moment(approval['asked_at'])}"
    yield f"asked of {', '.join(approval['groups']) or 'nobody'}, signatures required: {approval['required']}"
    yield f"due {_due(approval)}"
    yield ""
    yield f"Statement:      {approval['statement']}"
    yield f"Exact payload:  {approval['payload']}"
    yield f"Payload digest: {approval['payload_digest']}"
    if unseen := show.unseen_in(approval["statement"] + approval["payload"]):
        yield f"Beware, unseen characters are spelled here: {', '.join(unseen)}"
    yield from _fact_lines(approval["facts"])
    for decision in approval["decisions"]:
        yield f"{_told(decision)}, ledger entry {decision['sequence']}: {decision['comment'] or 'no comment'}"
    if approval["spent_key"]:
        yield f"spent on {approval['spent_key']} at {moment(approval['spent_at'])}"
    if approval.get("forbidden_because"):
        yield f"Not yours to decide: {approval['forbidden_because']}"


def _fact_lines(told: dict[str, Any]) -> Iterator[str]:
    yield f"Facts digest:   {told['then_digest']} (at asking)"
    if told["now_digest"]:
        yield f"                {told['now_digest']} (now)"
    if told["problem"]:
        yield told["problem"]
    yield ""
    if told["differences"]:
        later = "SIGNED" if told["now"] is None else "NOW"
        yield from columns(("FACT", "AT ASKING", later, "CHANGE"), map(_fact_cells, told["differences"]))
    else:
        yield from columns(("FACT", "AT ASKING"), ((name, _in_json(value)) for name, value in told["then"].items()))
    yield ""


def _fact_cells(difference: dict[str, Any]) -> tuple[Any, ...]:
    change = difference["change"]
    then = "-" if change == "added" else _in_json(difference["then"])
    now = "-" if change == "removed" else _in_json(difference["now"])
    return difference["name"], then, now, change


def _in_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _told(decision: dict[str, Any]) -> str:
    return f"{decision['verdict']} by {decision['signer']} at {moment(decision['decided_at'])}"


def _receipt_lines(receipt: dict[str, Any]) -> Iterator[str]:
    yield f"{_told(receipt)}: {receipt['statement']}"
    yield f"Approval {receipt['approval']} of run {receipt['run']} is {receipt['status']}."
    yield f"Ledger entry {receipt['sequence']}, {receipt['entry_hash']}, signed with {receipt['key_id']}."


def _as_it_is(words: str) -> str:
    """Standard error is red by default; what is to be read and signed is not an error."""
    return words
