"""`manage.py signing_key create | show | rotate`: the key that signs decisions. May import ledger, faults, checkpoints,
models, signing and runs' console."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from approvals import checkpoints, faults, ledger
from approvals.ledger import CannotSign
from approvals.models import LedgerHead
from approvals.signing import BadSigningKey, make_key_file, read_key_file
from runs.management.console import ACTOR, Answer, Console, Refused, Verbs
from runs.models import database_clock

TRUST = "durable-runs/trust/1"


class Command(Console):
    help = "Makes, shows and replaces the key that signs decisions."
    refusals = (*Console.refusals, CannotSign, BadSigningKey)

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = Verbs(parser)
        create = verbs.add("create", self._create, _made, "make a new key in a file that only its owner can read")
        create.add_argument("--file", type=Path, required=True, help="a new file; one that exists is never touched")
        show = verbs.add("show", self._show, _keys, "show the public keys, for those who verify elsewhere")
        show.add_argument("--trust-file", type=Path, help="write what the verifier takes as TRUST into this new file")
        rotate = verbs.add("rotate", self._rotate, _rotated, "hand the ledger on to another key, signed by both")
        rotate.add_argument("--to", type=Path, required=True, help="the file of the new key, from signing_key create")

    def _create(self, options: dict[str, Any]) -> Answer:
        try:
            key = make_key_file(options["file"])
        except OSError as error:
            raise Refused(f"{options['file']}: {error.strerror}. No key was made.") from None
        return {"file": str(options["file"]), "key_id": key.key_id, "public_key": key.public_key}

    def _show(self, options: dict[str, Any]) -> Answer:
        with transaction.atomic():
            ledger.key_for(LedgerHead.objects.select_for_update().get())
        trust = {"schema": TRUST, "keys": _all_keys(), "checkpoints": []}
        if last := checkpoints.last():
            trust["checkpoints"] = [checkpoints.as_trusted(last)]
        if options["trust_file"]:
            _write_new(options["trust_file"], trust)
        return trust

    def _rotate(self, options: dict[str, Any]) -> Answer:
        new = read_key_file(options["to"])
        with transaction.atomic():
            entry = ledger.rotate(new, by=options["user"] or ACTOR, at=database_clock())
        return {"entry": entry.sequence, "old_key_id": entry.key_id, "key_id": new.key_id, "file": str(options["to"])}


def _all_keys() -> list[dict[str, Any]]:
    """`until`: the last entry that a replaced key may have signed."""
    keys = faults.all_keys()
    return [{"key_id": name, "public_key": keys.public[name], "until": keys.until[name]} for name in keys.public]


def _write_new(path: Path, trust: dict[str, Any]) -> None:
    try:
        with path.open("x") as file:
            file.write(json.dumps(trust, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}.") from None


def _made(answer: dict[str, Any]) -> Iterator[str]:
    yield f"{answer['file']} holds the new key {answer['key_id']} (public key {answer['public_key']})."
    yield "Set APPROVAL_SIGNING_KEY_FILE to it. Keep it secret, and keep it: decisions are signed with it."


def _keys(answer: dict[str, Any]) -> Iterator[str]:
    for key in answer["keys"]:
        until = f", replaced by entry {key['until']}" if key["until"] else ", signs now"
        yield f"{key['key_id']}  {key['public_key']}{until}"


def _rotated(answer: dict[str, Any]) -> Iterator[str]:
    yield f"Entry {answer['entry']} hands the ledger on from {answer['old_key_id']} to {answer['key_id']}."
    yield f"Now set APPROVAL_SIGNING_KEY_FILE to {answer['file']} and start web and runner again:"
    yield "until then nothing is decided. The old key signs nothing more: destroy it. Auditors need a new trust file."
