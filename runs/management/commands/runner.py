"""manage.py runner: the background process, its state, or one pass without it."""

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from runs import runner
from runs.doorbell import run_cluster


class Command(BaseCommand):
    help = (
        "Run the background workers until SIGTERM or Ctrl-C. --status says whether runners live (exit code 1 when none "
        "does); --once works off what is ready and due in this process, and ends."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--once", action="store_true", help="work off what is ready and due, and end")
        what.add_argument("--status", action="store_true", help="show the runners that live, and the queue")
        what.add_argument("--cluster", type=int, metavar="PID", help="(the runner's own) be the queue's main process")
        parser.add_argument("--json", action="store_true", help="with --status: one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["cluster"]:
            run_cluster(options["cluster"])
        elif options["once"]:
            worked = runner.work_off()
            self.stdout.write(f"{worked} stretch{'' if worked == 1 else 'es'} of work done; nothing is left to do now.")
        elif options["status"]:
            self._show(runner.status(), as_json=options["json"])
        else:
            sys.exit(runner.Runner().run())

    def _show(self, status: dict[str, Any], *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps(status, cls=DjangoJSONEncoder))
        else:
            for beat in status["runners"]:
                state = "alive" if beat["alive"] else f"SILENT for {beat['silent_for']:.0f} s"
                self.stdout.write(
                    f"{beat['host']} (pid {beat['pid']}, {beat['workers']} workers): {state}, "
                    f"queue last answered {beat['queue_answered_at'] or 'never'}, restarts {beat['restarts']}"
                )
            queue = status["queue"]
            self.stdout.write(f"bells waiting {queue['bells']}, oldest {queue['oldest']:.0f} s")
            self.stdout.write(f"runs ready {status['ready']}, running {status['running']}")
        if not any(beat["alive"] for beat in status["runners"]):
            self.stderr.write("No runner is alive: runs do not move. Start one with `manage.py runner`.")
            sys.exit(1)
