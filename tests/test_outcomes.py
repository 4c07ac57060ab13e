"""What each HTTP answer says about the world is written down once, and what cannot be read is never called failed."""

import pytest

from runs.errors import KeyConflict, OutcomeUnknown, Refused, Retryable
from runs.outcomes import Outcome, error_of, outcome_of


@pytest.mark.parametrize("status", [200, 201, 202])
def test_a_success_is_done(status):
    assert outcome_of(status) == Outcome.DONE


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 413, 422])
def test_a_refusal_says_that_nothing_happened(status):
    error = error_of(status, "no.", stored=True)
    assert isinstance(error, Refused)
    assert error.stored


@pytest.mark.parametrize("status", [409, 425, 429])
def test_come_back_keeps_the_key_and_says_when(status):
    error = error_of(status, "busy.", retry_after=7)
    assert isinstance(error, Retryable)
    assert error.retry_after == 7


@pytest.mark.parametrize("status", [0, 100, 204, 301, 304, 408, 418, 451, 499, 500, 502, 503, 504, 520, 599, 999])
def test_every_other_status_is_unknown(status):
    assert isinstance(error_of(status, "?"), OutcomeUnknown)


@pytest.mark.parametrize("status", [400, 409, 422])
def test_a_key_that_stands_for_another_request_is_never_called_a_refusal(status):
    assert isinstance(error_of(status, "another body", key_conflict=True), KeyConflict)
