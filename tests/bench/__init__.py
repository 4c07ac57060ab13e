"""The benchmark: the engine beside bare psycopg loops on the same server, in one run. `python -m tests.bench`.

An installed app of its own, so that the real workers of the measured clusters know its workflows.
"""
