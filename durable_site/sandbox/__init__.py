"""The outside world in a process of its own: a payment provider, whose payments can be ordered through an API of its
own and through a part of Stripe's, a ticket desk, a policy register and a flood-report service.

Imports the standard library and itself, nothing else: what counts the payments shares no code with what makes them.
Start it with `python -m durable_site.sandbox --port N --store DIR`; `--help` names what can be chosen, and `faults.py`
what can be scripted to go wrong.
"""
