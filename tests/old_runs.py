"""Runs that are old enough for retention, and what is left of them."""

from datetime import timedelta

from django.db import connection
from stage import fresh, question

from approvals import export
from approvals.gate import ask
from approvals.testing import answer
from runs import engine, retention
from runs.models import Run
from runs.retention import Done
from runs.testing import drain
from runs.waits import event

SECRET = "Jane Doe of Elm Street"
DAYS = timedelta(days=30)


def tells_secrets(stage):
    """Four steps that leave the secret wherever a value can stand; the last waits for an event."""
    pay = stage.tool(requires_approval=True)
    stage.facts = {"claimant": SECRET}

    @stage.flow.step
    def look(ctx):
        letter = ctx.artefact(f"Dear {SECRET}".encode(), media_type="text/plain")
        return {"whom": ctx.input["whom"], "letter": letter, "report": SECRET * 2000}

    @stage.flow.step
    def approve(ctx):
        terms = {"groups": ["adjusters"], "expires_in": timedelta(days=3), "facts": stage.source}
        return ask(pay.proposed(amount_minor=184_000, payee=SECRET), **terms)

    @stage.flow.step
    def settle(ctx):
        return {"payment": ctx.perform(approve)}

    @stage.flow.step
    def hear(ctx):
        return event("papers", expires_in=timedelta(days=3))

    @stage.flow.step
    def end(ctx):
        return {}


def secret_run(stage, key="run-1"):
    """Approved, paid and ended."""
    stage.receiver.script = [{"paid": True, "to": SECRET}]
    run = stage.begin(key, whom=SECRET)
    answer(question(run), stage.people.adjuster, comment=f"I know {SECRET}")
    drain()
    engine.deliver(key, "papers", {"from": SECRET})
    drain()
    assert fresh(run).status == "completed"
    return fresh(run)


def places_of(database, word):
    """Every column of every table of ours in which a word stands."""
    columns = database.query(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE (table_name LIKE 'runs\\_%%' OR table_name LIKE 'approvals\\_%%') "
        "AND data_type IN ('text', 'character varying') AND table_name <> 'approvals_inbox_rows'"
    )
    return [
        (table, column)
        for table, column in columns
        if database.query(f"SELECT count(*) FROM {table} WHERE {column} LIKE %s", f"%{word}%") != [(0,)]
    ]


def case(key="run-1"):
    return export.of_run(key, by=None, actor="test")


MADE = """
WITH made AS (
  INSERT INTO runs_run (key, workflow, version, team_id, input, tags, status, outcome, reason, position, next_step,
         attempt, fence, worker, asked, wait_kind, wait_name, finished_at)
  SELECT key, %s, 1, %s, '{"a":1}', '{}', 'completed', 'completed', '', 1, 'done', 0, 0, '', '', '', '', now() - %s
    FROM unnest(%s::text[]) AS key RETURNING id
)
INSERT INTO runs_checkpoint (run_id, position, step, output, wait_kind, closed_as, attempt, started_at, committed_at)
SELECT id, 1, 'done', '{"b":2}', '', '', 1, now(), now() FROM made
"""


def ended(*keys, team, flow="under-test", age=timedelta()):
    """Final runs, made in the database: each of one checkpoint."""
    with connection.cursor() as cursor:
        cursor.execute(MADE, [flow, team.pk, age, list(keys)])
    return list(Run.objects.filter(key__in=keys).order_by("key"))


def withheld():
    return sorted(Run.objects.filter(withholding__isnull=False).values_list("key", flat=True))


def take_all(rule, **options):
    done = Done()
    while retention.withhold(rule, done, actor="test", **options):
        pass
    return done
