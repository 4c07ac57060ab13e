"""What a person sends to say who stands in while somebody is away; judged by assignment.delegate. May import
assignment."""

from typing import Any

from django import forms

from . import assignment

DAY = {"required": "Say a day, such as 2026-12-24.", "invalid": "Say a day, such as 2026-12-24."}


class AbsenceForm(forms.Form):
    """From the first to the last day, both included. Whom a person may choose is her team; what she may, the verb
    says."""

    person: Any = forms.ModelChoiceField(None, required=False)
    to: Any = forms.ModelChoiceField(
        None, error_messages=dict.fromkeys(("required", "invalid_choice"), "Choose a deputy.")
    )
    first = forms.DateField(error_messages=DAY)
    last = forms.DateField(error_messages=DAY)

    def __init__(self, *data: Any, user: Any) -> None:
        super().__init__(*data)
        choices: dict[str, Any] = self.fields
        choices["person"].queryset = assignment.team_mates(user)
        choices["to"].queryset = assignment.deputies(user)
        if user.has_perm(assignment.RIGHT):
            choices["to"].queryset = assignment.team_mates(user)
