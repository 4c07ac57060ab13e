"""What a person sends to decide: parsed and given its words here, judged by decisions.decide."""

from django import forms

from .argument_fields import LONGEST
from .decisions import LONGEST_COMMENT, SAY_WHY
from .models import Decision

TOO_LONG = {"max_length": "The comment has %(show_value)s characters; %(limit_value)s is the most."}


class DecisionForm(forms.Form):
    """One form for both buttons. The digests are what the person was shown; they are checked, never trusted."""

    verdict = forms.ChoiceField(
        choices=[choice for choice in Decision.Verdict.choices if choice[0] in ("approve", "reject")],
        error_messages=dict.fromkeys(("required", "invalid_choice"), "Choose approve or reject."),
    )
    comment = forms.CharField(
        required=False,
        max_length=LONGEST_COMMENT,
        error_messages=TOO_LONG,
    )
    payload_digest = forms.CharField(required=False, max_length=64)
    facts_digest = forms.CharField(required=False, max_length=64)
    read = forms.BooleanField(required=False)
    password = forms.CharField(required=False, max_length=4096, strip=False)

    def clean(self) -> dict:
        cleaned = super().clean() or {}
        verdict = cleaned.get("verdict")
        if verdict == Decision.Verdict.APPROVE and not cleaned.get("read"):
            self.add_error("read", "Tick that you have read the payload and the facts.")
        if verdict == Decision.Verdict.REJECT and not cleaned.get("comment") and "comment" not in self.errors:
            self.add_error("comment", "Say why you reject this.")
        return cleaned


class AnswerForm(forms.Form):
    """Ask for changes, withdraw: words, and what was shown."""

    comment = DecisionForm.base_fields["comment"]
    payload_digest = DecisionForm.base_fields["payload_digest"]
    facts_digest = DecisionForm.base_fields["facts_digest"]


class ProposalForm(AnswerForm):
    """Propose otherwise. `arguments`: those that were previewed, as JSON text; what is typed is in argument_fields."""

    comment = forms.CharField(
        max_length=LONGEST_COMMENT,
        error_messages=TOO_LONG | {"required": SAY_WHY[Decision.Verdict.EDIT]},
    )
    arguments = forms.CharField(required=False, max_length=LONGEST, strip=False)
