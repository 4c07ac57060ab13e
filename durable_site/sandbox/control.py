"""The control addresses: what tests do to the sandbox. No part of any service that it plays: requests here are never
scripted to fail and are not in the request log. Imports `clock`, `exchange`, `faults` and `messages`.
"""

from durable_site.sandbox.clock import Clock, stamp
from durable_site.sandbox.exchange import Api, Call, Reply, Table
from durable_site.sandbox.faults import FaultScript
from durable_site.sandbox.messages import json_object, require_number

FURTHEST_STEP = 1_000_000_000


def control_api(clock: Clock, script: FaultScript) -> Api:
    def add_fault(call: Call) -> Reply:
        script.add(json_object(call.request.body))
        return Reply.of(201, {"faults": script.listed()})

    def clear_faults(call: Call) -> Reply:
        script.clear()
        return Reply.of(200, {"faults": script.listed()})

    def move_clock(call: Call) -> Reply:
        step = json_object(call.request.body)
        require_number(step, "advance_seconds", least=0, most=FURTHEST_STEP)
        clock.advance(step["advance_seconds"])
        return tell_time(call)

    def tell_time(call: Call) -> Reply:
        return Reply.of(200, {"now": stamp(clock.now()), "ahead_seconds": clock.ahead_seconds})

    def list_faults(call: Call) -> Reply:
        return Reply.of(200, {"faults": script.listed()})

    return Api(
        Table(
            {
                ("faults",): {"GET": list_faults, "POST": add_fault, "DELETE": clear_faults},
                ("clock",): {"GET": tell_time, "POST": move_clock},
            }
        )
    )
