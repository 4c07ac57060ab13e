"""The outside world: a payment provider, a policy register and a flood-report service, in a process of its own.

Imports the standard library and itself, nothing else: what counts the payments shares no code with what makes them.
Start it with `python -m durable_site.sandbox --port N --store DIR`.
"""
