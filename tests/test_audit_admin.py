"""The admin as audit trail: nobody changes a row there by page, action or address; rows are searched, narrowed by date,
followed, verified and exported; and that somebody read or exported what says something of persons is itself a row."""

import hashlib
import io
import json
import re
import zipfile

import pytest
from browsing import browser, text
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db import connection
from django.db.models import DateTimeField
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from stage import Stage, four_entries, tamper

from approvals import checkpoints, ledger
from approvals.models import Approval, Decision, LedgerEntry
from runs import audit_admin, repair, selection
from runs.audit_admin import ReadOnlyAdmin
from runs.models import Alarm, AuditEvent, Call, Run, Transition, database_clock

EDITED = {"approvals.authority", "runs.alarmrule"}
"""What is made and changed in the admin, each time with a ledger entry; nothing is ever deleted there."""


NO_AUDIT = {"auth.user", "auth.group", "claims.claim", "claims.reserveentry"}
"""People and groups, whose changes are ledger entries, and what the worked example keeps for itself."""


def models():
    """Whatever the admin shows and is not said to be something else: a table that is added is among them by itself."""
    # The addresses of the site take the queue's tables out of the admin.
    reverse("admin:index")
    return [model for model in admin.site._registry if model._meta.label_lower not in NO_AUDIT]


def list_of(model) -> str:
    return f"/admin/{model._meta.app_label}/{model._meta.model_name}/"


@pytest.fixture
def full(people):
    """Rows of many kinds."""
    with Stage(people) as stage:
        four_entries(stage)
        checkpoints.make()
        repair.fork("approved", "again-2", repeating=["approved:step2"], why="for this test")
        AuditEvent.objects.create(kind="verb-refused", detail="for this test", run=Run.objects.first())
        Alarm.objects.create(rule_id="dead-letter", subject="approved", sentence="for this test")
        yield stage


def values(row) -> dict:
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


# Nobody changes anything


def test_a_superuser_adds_changes_and_deletes_no_audit_row_by_page_action_or_address(full, people):
    root = browser(people.superuser)
    assert len(models()) > 25
    for model in models():
        assert_unchangeable(root, model)


def test_no_audit_table_offers_a_superuser_an_action_that_changes_a_row(people, rf):
    request = rf.get("/admin/")
    request.user = people.superuser
    for model in models():
        site, label = admin.site.get_model_admin(model), model._meta.label_lower
        assert not site.has_delete_permission(request), label
        assert set(site.get_actions(request)) <= {"export_selected"}, label
        if label not in EDITED:
            offered = (site.has_add_permission(request), site.has_change_permission(request))
            assert offered == (False, False), label
            assert [*site.list_editable, *site.inlines] == [], label


def assert_unchangeable(root, model) -> None:
    address, label = list_of(model), model._meta.label_lower
    row, before = model.objects.first(), model.objects.count()
    pk = row.pk if row else 1
    kept = values(row) if row else None
    everything = {field.name: "1" for field in model._meta.fields} | {"_save": "Save", "post": "yes"}
    refused = [
        (f"{address}{pk}/delete/", {"post": "yes"}),
        (f"{address}{pk}/delete/?_popup=1", {"post": "yes", "_popup": "1"}),
    ]
    if label not in EDITED:
        refused += [
            (f"{address}add/", everything),
            (f"{address}add/?_popup=1", everything | {"_popup": "1"}),
            (f"{address}{pk}/change/", everything),
            (f"{address}{pk}/change/", everything | {"_saveasnew": "1"}),
        ]
        assert root.get(f"{address}add/").status_code == 403
    for place, sent in refused:
        answer = root.post(place, sent)
        assert answer.status_code == 403, place
    for action in ("delete_selected", "nothing_known"):
        chosen = {"action": action, "_selected_action": [str(pk)], "index": "0", "select_across": "1", "post": "yes"}
        assert root.post(address, chosen).status_code in (200, 302)
        assert "Are you sure" not in text(root.get(address))
    edited = {"form-TOTAL_FORMS": "1", "form-INITIAL_FORMS": "1", "form-0-id": str(pk), "_save": "Save"}
    assert root.post(address, edited | {f"form-0-{name}": "1" for name in everything}).status_code in (200, 302)
    assert model.objects.count() == before or model is AuditEvent
    if row:
        assert values(model.objects.get(pk=row.pk)) == kept


def test_every_audit_table_is_in_the_admin_read_only(database):
    runs = "run checkpoint call delivery transition auditevent artefact finding alarm sending batch batchitem"
    approvals = "approval decision ledgerentry ledgerbody ledgercheckpoint verifyingkey assignmentevent notice rung"
    kept = {("runs", name) for name in runs.split()} | {("approvals", name) for name in approvals.split()}
    for label in sorted(kept):
        assert isinstance(admin.site.get_model_admin(apps.get_model(*label)), ReadOnlyAdmin), label


def test_people_and_groups_are_never_deleted_in_the_admin(full, people):
    root = browser(people.superuser)
    for place, row in (("user", people.adjuster), ("group", Group.objects.get(name="adjusters"))):
        assert root.post(f"/admin/auth/{place}/{row.pk}/delete/", {"post": "yes"}).status_code == 403
        chosen = {"action": "delete_selected", "_selected_action": [str(row.pk)], "post": "yes"}
        root.post(f"/admin/auth/{place}/", chosen)
    assert User.objects.filter(pk=people.adjuster.pk).exists()
    assert Group.objects.filter(name="adjusters").exists()


def test_what_a_person_or_a_group_stands_for_is_entered_in_the_ledger_when_the_admin_changes_it(people):
    root, ada = browser(people.superuser), people.adjuster
    address = f"/admin/auth/user/{ada.pk}/change/"
    sent = {
        "username": "ada",
        "email": "ada@example.invalid",
        "is_active": "on",
        "groups": [str(Group.objects.get(name="ops").pk)],
        "date_joined_0": "2026-01-01",
        "date_joined_1": "00:00:00",
    }
    for _ in range(2):
        assert root.post(address, sent).status_code == 302
    assert root.post("/admin/auth/group/add/", {"name": "night-shift"}).status_code == 302
    word = "another long pass phrase"
    given = {"password1": word, "password2": word, "usable_password": "true", "set-password": "1"}
    assert root.post(f"/admin/auth/user/{ada.pk}/password/", given).status_code == 302
    records = [json.loads(entry.record) for entry in LedgerEntry.objects.order_by("sequence")]
    assert [(record["kind"], record["act"]) for record in records] == [
        ("standing", "changed"),
        ("standing", "made"),
        ("standing", "password set"),
    ]
    assert (records[0]["user"], records[0]["groups"], records[0]["by"]) == (ada.pk, ["ops"], people.superuser.pk)
    assert records[1]["name"] == "night-shift"
    assert not any("ada" in entry.record for entry in LedgerEntry.objects.all())
    assert ledger.verify().problems == []


# Read, searched, narrowed, followed


def test_every_list_is_searched_narrowed_by_date_and_counts_no_whole_table(full, people):
    root = browser(people.superuser)
    for model in models():
        assert_searchable(root, model)


def assert_searchable(root, model) -> None:
    address, site = list_of(model), admin.site.get_model_admin(model)
    assert site.search_fields, f"{model} cannot be searched"
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert root.get(address).status_code == 200
    statements = [query["sql"] for query in asked if f'"{model._meta.db_table}"' in query["sql"]]
    if isinstance(site, ReadOnlyAdmin):
        for statement in statements:
            assert not re.search(r"\b(MIN|MAX|DISTINCT)\b", statement) or "LIMIT" in statement, statement
            assert "COUNT(" not in statement or "LIMIT 10000" in statement, statement
    assert root.get(f"{address}?q=approved").status_code == 200
    for query in ("?q=%00", "?q=\u202e", "?p=99999", "?o=1.-2", "?nonsense=1", "?e=1"):
        assert root.get(f"{address}{query}").status_code in (200, 302), query
    if site.date_hierarchy:
        for query in ("2026", "2026&{0}__month=12", "2026&{0}__month=12&{0}__day=3"):
            asked_for = f"?{{0}}__year={query}".format(site.date_hierarchy)
            assert root.get(address + asked_for).status_code == 200, asked_for
        assert root.get(f"{address}?{site.date_hierarchy}__year=x").status_code in (200, 302)


def test_whatever_grows_has_a_date_hierarchy(database):
    small = {"approvals.rung", "runs.beat", "runs.recurring", "approvals.verifyingkey"}
    part_of_another = {"runs.sending", "runs.batchitem"}
    for model in models():
        dated = [field for field in model._meta.fields if isinstance(field, DateTimeField)]
        if dated and model._meta.label_lower not in small | part_of_another | EDITED:
            assert admin.site.get_model_admin(model).date_hierarchy, model


def test_dates_lead_from_year_to_month_to_day(full, people):
    now, root = database_clock(), browser(people.superuser)
    page = root.get("/admin/runs/transition/").content.decode()
    assert f'at__year={now.year}"' in page
    page = root.get(f"/admin/runs/transition/?at__year={now.year}").content.decode()
    assert f"at__month={now.month}" in page
    page = text(root.get(f"/admin/runs/transition/?at__year={now.year}&at__month={now.month}&at__day={now.day}"))
    assert "approved" in page
    assert "0 transitions" in text(root.get("/admin/runs/transition/?at__year=2019"))


def test_a_row_leads_to_the_rows_that_refer_to_it_and_to_those_it_refers_to(full, people):
    root, run = browser(people.auditor), Run.objects.get(key="approved")
    page = root.get(f"/admin/runs/run/{run.pk}/change/").content.decode()
    for place in ("runs/checkpoint", "runs/call", "runs/transition", "runs/auditevent", "approvals/approval"):
        address = f"/admin/{place}/?run__id__exact={run.pk}"
        assert address in page, place
        assert root.get(address).status_code == 200, place
    assert "rejected" not in text(root.get(f"/admin/runs/transition/?run__id__exact={run.pk}")).split("paginator")[0]
    decision = Decision.objects.filter(approval__run=run).get()
    page = root.get(f"/admin/approvals/decision/{decision.pk}/change/").content.decode()
    assert f"/admin/approvals/approval/{decision.approval_id}/change/" in page
    assert f"/admin/approvals/ledgerentry/{decision.entry_id}/change/" in page
    listed = root.get("/admin/approvals/decision/").content.decode()
    assert f"/admin/approvals/approval/{decision.approval_id}/change/" in listed


# Proofs


def test_the_exact_payload_is_shown_as_text_with_its_digest_and_verified(full, people, database):
    approval = Approval.objects.filter(run__key="approved").get()
    address, root = f"/admin/approvals/approval/{approval.pk}/change/", browser(people.auditor)
    page = text(root.get(address))
    assert approval.payload.replace('"', "&quot;") in page
    assert f"✓ Verified These bytes give the SHA-256 that is kept: {approval.payload_digest}." in page
    assert "✗ Broken" not in text(root.get("/admin/approvals/approval/"))
    change = "UPDATE approvals_approval SET payload = replace(payload, '184000', '184001') WHERE id = %s"
    tamper(database, change, approval.pk)
    page = text(root.get(address))
    assert "✗ Broken These bytes give SHA-256" in page
    assert text(root.get("/admin/approvals/approval/")).count("✗ Broken") == 1


def test_a_call_whose_request_was_changed_is_marked_broken(full, people, database):
    call = Call.objects.first()
    assert "✓ Verified" in text(browser(people.auditor).get(f"/admin/runs/call/{call.pk}/change/"))
    tamper(database, "UPDATE runs_call SET request = request || ' ' WHERE id = %s", call.pk)
    assert "✗ Broken" in text(browser(people.auditor).get(f"/admin/runs/call/{call.pk}/change/"))


def test_a_decision_and_its_entry_are_marked_by_what_the_ledger_proves(full, people, database):
    decision, root = Decision.objects.first(), browser(people.auditor)
    rows = (f"decision/{decision.pk}", f"ledgerentry/{decision.entry_id}")
    places = [f"/admin/approvals/{row}/change/" for row in rows]
    for place in places:
        assert "✓ Verified" in text(root.get(place))
    tamper(database, "UPDATE approvals_decision SET comment = 'another word' WHERE id = %s", decision.pk)
    for place in places:
        assert "✗ Broken" in text(root.get(place))


# Recorded


def reads() -> list[str]:
    return list(AuditEvent.objects.filter(kind="read").order_by("pk").values_list("detail", flat=True))


def test_that_somebody_read_what_says_something_of_persons_is_recorded(full, people):
    root, approval = browser(people.auditor), Approval.objects.first()
    root.get("/admin/runs/transition/")
    root.get("/admin/runs/run/")
    assert reads() == []
    root.get("/admin/approvals/approval/?q=approved")
    root.get(f"/admin/approvals/approval/{approval.pk}/change/")
    root.get(f"/admin/runs/run/{approval.run_id}/change/")
    root.get("/admin/runs/run/999999/change/")
    assert reads() == [
        "approvals.approval: a list, ?q=approved",
        f"approvals.approval {approval.pk}",
        f"runs.run {approval.run_id}",
    ]
    event = AuditEvent.objects.filter(kind="read").last()
    assert (event.user, event.run_id, event.actor) == (people.auditor, approval.run_id, "admin")


def test_whoever_may_not_read_leaves_no_reading(full, people):
    for person in (people.adjuster, people.ops):
        assert browser(person).get("/admin/approvals/approval/").status_code in (302, 403)
    assert reads() == []


def export(person, model="approvals/approval", chosen=(), query="", **more):
    sent = {"action": "export_selected", "_selected_action": [str(pk) for pk in chosen], "index": "0"} | more
    return browser(person).post(f"/admin/{model}/{query}", sent)


def test_a_selection_is_exported_with_a_manifest_and_the_export_is_recorded(full, people):
    chosen = list(Approval.objects.order_by("pk").values_list("pk", flat=True)[:2])
    answer = export(people.auditor, chosen=chosen, query="?q=re")
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/zip")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        rows, text_of_it = archive.read("rows.jsonl"), archive.read("manifest.json")
    told, manifest = [json.loads(line) for line in rows.decode().splitlines()], json.loads(text_of_it)
    kept = {row["pk"]: row["fields"] for row in told}
    shown = [pk for pk in chosen if Approval.objects.filter(pk=pk, run__key__startswith="re").exists()]
    assert list(kept) == shown
    assert [fields["payload"] for fields in kept.values()] == [Approval.objects.get(pk=pk).payload for pk in shown]
    assert manifest["files"] == {"rows.jsonl": hashlib.sha256(rows).hexdigest()}
    assert (manifest["model"], manifest["rows"], manifest["exported_by"], manifest["chosen"]) == (
        "approvals.approval",
        len(shown),
        "aud",
        "?q=re",
    )
    event = AuditEvent.objects.get(kind="exported")
    assert (event.user, event.actor) == (people.auditor, "admin")
    assert event.detail.endswith(f"manifest {hashlib.sha256(text_of_it).hexdigest()}")


@pytest.mark.parametrize(("more", "is_refused"), [(-1, False), (0, False), (1, True)])
def test_more_rows_than_an_archive_holds_are_refused_with_a_sentence(full, people, more, is_refused, monkeypatch):
    monkeypatch.setattr(selection, "MOST", Transition.objects.count() - more)
    answer = export(people.auditor, "runs/transition", [1], select_across="1")
    assert (answer.status_code == 302) == is_refused
    assert AuditEvent.objects.filter(kind="exported").exists() != is_refused
    if is_refused:
        assert "narrow the list" in text(browser(people.auditor).get("/admin/runs/transition/")) or answer.cookies


def test_a_list_counts_no_further_than_it_says(full, people, monkeypatch):
    monkeypatch.setattr(audit_admin, "MOST_COUNTED", 5)
    page = text(browser(people.auditor).get("/admin/runs/transition/"))
    assert re.search(r"\b5 transitions", page)
