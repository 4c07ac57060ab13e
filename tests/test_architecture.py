"""The house keeps its floors: imports point down only, django_q stays behind the doorbell, views write nothing."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("runs", "approvals", "durable_site")

FLOORS = {
    "runs": [
        {
            "runs.states",
            "runs.errors",
            "runs.values",
            "runs.webhooks",
            "runs.money",
            "runs.failpoints",
            "runs.identity",
            "runs.timelimit",
            "runs.outcomes",
            "runs.artefacts",
            "runs.storage",
            "runs.otlp",
        },
        {
            "runs.models",
            "runs.columns",
            "runs.findings",
            "runs.artefact_rows",
            "runs.operations",
            "runs.watching",
            "runs.retention_rows",
            "runs.stuck",
        },
        {"runs.workflows", "runs.tools", "runs.waits", "runs.doorbell"},
        {
            "runs.lease",
            "runs.lightening",
            "runs.spending",
            "runs.effects",
            "runs.calls",
            "runs.engine",
            "runs.repair",
            "runs.actions",
            "runs.bulk",
            "runs.advance",
            "runs.sweep",
            "runs.runner",
            "runs.checks",
            "runs.evidence",
            "runs.providers",
            "runs.comparison",
            "runs.reconciliation",
            "runs.recurring",
            "runs.downloads",
            "runs.selection",
            "runs.upkeep",
            "runs.retention",
            "runs.pruning",
            "runs.telemetry",
            "runs.tallies",
            "runs.seeding",
            "runs.alerts",
            "runs.notices",
        },
        {
            "runs.testing",
            "runs.fake_world",
            "runs.tasks",
            "runs.alarms",
            "runs.history",
            "runs.timeline",
            "runs.waterfall",
            "runs.fragments",
            "runs.console",
            "runs.choice",
            "runs.narrowing",
            "runs.builtin",
            "runs.figures",
            "runs.metrics",
            "runs.health",
            "runs.health_cards",
            "runs.charts",
        },
        {
            "runs.limits",
            "runs.views",
            "runs.finding_views",
            "runs.action_views",
            "runs.artefact_views",
            "runs.health_views",
            "runs.health_urls",
            "runs.bulk_views",
            "runs.console_views",
            "runs.admin",
            "runs.audit_admin",
            "runs.dates",
            "runs.urls",
            "runs.apps",
            "runs.templatetags",
            "runs.management",
        },
    ],
    "approvals": [
        {"approvals.verifier", "approvals.rows"},
        {"approvals.models", "approvals.rungs", "approvals.chain", "approvals.signing", "approvals.merkle"},
        {
            "approvals.ledger",
            "approvals.facts",
            "approvals.faults",
            "approvals.guards",
            "approvals.checkpoints",
            "approvals.refusals",
        },
        {
            "approvals.authority",
            "approvals.alarm_rules",
            "approvals.standing",
            "approvals.rights",
            "approvals.passwords",
            "approvals.ladder",
            "approvals.given",
            "approvals.notices",
        },
        {
            "approvals.gate",
            "approvals.decisions",
            "approvals.assignment",
            "approvals.proposals",
            "approvals.escalation",
            "approvals.export",
            "approvals.workflows",
            "approvals.withholding",
            "approvals.checks",
        },
        {
            "approvals.inbox",
            "approvals.inbox_forms",
            "approvals.precedents",
            "approvals.reading",
            "approvals.measures",
            "approvals.seeding",
            "approvals.testing",
            "approvals.argument_fields",
            "approvals.forms",
            "approvals.answers",
        },
        {
            "approvals.views",
            "approvals.answer_views",
            "approvals.edit_views",
            "approvals.case_views",
            "approvals.inbox_views",
            "approvals.admin",
            "approvals.people_admin",
            "approvals.urls",
            "approvals.apps",
            "approvals.templatetags",
            "approvals.management",
        },
    ],
}
"""From the ground up: a module imports from its own floor and those below."""

AUTHORS_MAY_IMPORT = {
    "runs.workflows",
    "runs.tools",
    "runs.waits",
    "runs.errors",
    "runs.outcomes",
    "runs.engine",
    "approvals.gate",
}
"""…and the column types of runs.models, for an app whose rows are dated by the same clock."""

KNOWS_DJANGO_Q = {"runs.doorbell"}


def sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / line for line in listed.stdout.split()]
    return [
        path
        for path in paths
        if path.relative_to(ROOT).parts[0] in OURS and "migrations" not in path.parts and path.exists()
    ]


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every import in the file, relative ones resolved, also those inside functions."""
    package = module(path) if path.name == "__init__.py" else module(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            origin = (
                f"{base}.{node.module}".rstrip(".")
                if node.level and node.module
                else base
                if node.level
                else node.module or ""
            )
            yield from ((origin, alias.name) for alias in node.names)


def targets(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports."""
    for origin, name in imports(path):
        if origin.split(".")[0] in OURS:
            inner = f"{origin}.{name}"
            yield inner if (ROOT / Path(*inner.split("."))).with_suffix(".py").exists() else origin


def floor(name: str) -> int | None:
    app = name.split(".", maxsplit=1)[0]
    for number, modules in enumerate(FLOORS.get(app, [])):
        if name in modules or ".".join(name.split(".")[:2]) in modules:
            return number
    return None


@pytest.mark.parametrize("path", sources(), ids=module)
def test_imports_point_down_only(path):
    name = module(path)
    app = name.split(".")[0]
    for target in set(targets(path)) - {name}:
        other = target.split(".")[0]
        if app == "runs":
            assert other == "runs", f"{name} imports {target}: the engine knows nobody else"
        if app == "approvals":
            assert other in {"runs", "approvals"}, f"{name} imports {target}"
        if app == other and app in FLOORS and target != app:
            assert floor(name) is not None or name == app, f"{name} has no floor in the house; give it one in FLOORS"
            assert floor(target) is not None, f"{target} has no floor in the house; give it one in FLOORS"
            assert floor(name) is None or floor(target) <= floor(name), f"{name} imports {target}, which is above it"


@pytest.mark.parametrize(
    "path", [path for path in sources() if "claims" in path.parts and "testing" not in path.name], ids=module
)
def test_an_authors_app_uses_only_what_is_public(path):
    for origin, name in imports(path):
        if origin.split(".")[0] in {"runs", "approvals"}:
            columns = origin == "runs.models" and name in {"DatabaseNow", "JSONText"}
            assert origin in AUTHORS_MAY_IMPORT or columns, f"{module(path)} imports {name} from {origin}"


@pytest.mark.parametrize(
    "path", [path for path in sources() if "sandbox" in path.parts or path.name == "embedded.py"], ids=module
)
def test_the_outside_world_and_the_embedded_database_know_neither_us_nor_django(path):
    for origin, _ in imports(path):
        assert origin.split(".")[0] not in {"django", "runs", "approvals"}
        assert not origin.startswith("durable_site") or origin.startswith("durable_site.sandbox")


@pytest.mark.parametrize("path", sources(), ids=module)
def test_only_the_doorbell_imports_the_queue(path):
    if module(path) not in KNOWS_DJANGO_Q:
        assert not [origin for origin, _ in imports(path) if origin.split(".")[0] == "django_q"]


WRITES = {
    "save",
    "create",
    "update",
    "delete",
    "bulk_create",
    "bulk_update",
    "get_or_create",
    "update_or_create",
    "move",
    "set_password",
}


@pytest.mark.parametrize(
    "path",
    [path for path in sources() if path.name in {"inbox.py", "history.py"} or path.name.endswith("views.py")],
    ids=module,
)
def test_a_view_writes_nothing_itself(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_rows = isinstance(node.func.value, ast.Attribute) and node.func.value.attr == "objects"
            assert not (of_rows and node.func.attr in WRITES), f"{module(path)}:{node.lineno} {node.func.attr}"
            assert node.func.attr not in {"save", "bulk_create", "get_or_create", "move"}, (
                f"{module(path)}:{node.lineno} {node.func.attr}"
            )


def test_no_template_loads_from_outside_or_runs_inline_script():
    for path in (ROOT / "templates").rglob("*.html"):
        text = path.read_text().lower()
        for forbidden in (
            "<script>",
            "<style",
            'style="',
            "onclick=",
            "onload=",
            "javascript:",
            'src="http',
            'href="http',
            'src="//',
            "hx-on",
        ):
            assert forbidden not in text, f"{path.relative_to(ROOT)} holds {forbidden}"


def test_no_comment_of_a_template_goes_on_in_the_next_line():
    """Django would print it."""
    for path in (ROOT / "templates").rglob("*.html"):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            assert line.count("{#") == line.count("#}"), f"{path.relative_to(ROOT)}:{number}"


def test_the_top_level_holds_what_the_house_has_and_nothing_else():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    allowed = {
        "durable_site",
        "runs",
        "approvals",
        "templates",
        "static",
        "tests",
        "docs",
        "manage.py",
        "pyproject.toml",
        "README.md",
        "Makefile",
        "CHANGELOG.md",
        "LICENSE",
    }
    assert {name for name in top if not name.startswith(".")} <= allowed
