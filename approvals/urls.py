"""Addresses of the pages for those who decide. Approvals have ids of their own: a run may ask more than once."""

from django.urls import path

from . import answer_views, case_views, edit_views, inbox_views, views

app_name = "approvals"

urlpatterns = [
    path("inbox/", inbox_views.inbox_page, name="inbox"),
    path("inbox/rows/", inbox_views.inbox_rows, name="inbox_rows"),
    path("inbox/assign/", inbox_views.assign_many, name="assign_many"),
    path("inbox/absences/", inbox_views.absences, name="absences"),
    path("inbox/absences/new/", inbox_views.delegate, name="delegate"),
    path("inbox/absences/<int:pk>/end/", inbox_views.end_absence, name="end_absence"),
    path("nav-counts/", views.nav_counts, name="nav_counts"),
    path("approvals/<int:pk>/", views.approval_page, name="approval"),
    path("approvals/<int:pk>/assign/", inbox_views.assign_one, name="assign_one"),
    path("approvals/<int:pk>/state/", views.approval_state, name="state"),
    path("approvals/<int:pk>/facts/", views.approval_facts, name="facts"),
    path("approvals/<int:pk>/decide/", views.decide, name="decide"),
    path("approvals/<int:pk>/receipt/", views.approval_receipt, name="approval_receipt"),
    path("approvals/<int:pk>/edit/", edit_views.edit, name="edit"),
    path("approvals/<int:pk>/respond/", answer_views.respond, name="respond"),
    path("approvals/<int:pk>/withdraw/", answer_views.withdraw, name="withdraw"),
    path("approvals/<int:pk>/payload.json", views.payload, name="payload"),
    path("cases/<slug:key>/", case_views.case, name="case"),
    path("receipts/<int:sequence>/", views.receipt, name="receipt"),
    path("receipts/<int:sequence>/record.json", views.record, name="record"),
]
