"""PostgreSQL taken away under live runs: it is found again, the runs go on where they were, each pays once."""

import os
import random
import signal
import time
from dataclasses import replace

import dj_database_url
import psutil
import pytest
from blocked_port import BlockedPort
from django.core.management import call_command
from django.db import connections
from traffic import BOUND, is_whole, restarts, seconds_until

from durable_site import embedded

pytestmark = pytest.mark.faults_long

DATABASE_BOUND = BOUND + 10
THROW_OUT = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture
def server(tmp_path):
    """An embedded server of this test's own."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DURABLE_RUNS_DATA", str(tmp_path / "postgres"))
        embedded.database_url()
        try:
            yield embedded.EmbeddedServer()
        finally:
            embedded.remove()


@pytest.fixture
def own_database(database, server):
    """The database of that server, which Django uses meanwhile."""
    url, wrapper = embedded.database_url(), connections["default"]
    address = {name: value for name, value in dj_database_url.parse(url).items() if name in {"HOST", "USER", "NAME"}}
    before = {name: wrapper.settings_dict[name] for name in address}
    wrapper.close()
    wrapper.settings_dict.update(address)
    call_command("migrate", verbosity=0, skip_checks=True)
    yield replace(database, name=address["NAME"], url=url)
    wrapper.close()
    wrapper.settings_dict.update(before)


class TestItsOwnServer:
    @pytest.fixture
    def database(self, own_database):
        return own_database

    def test_postgresql_is_stopped_at_once_and_started_5_times(self, traffic, runner, measured, server):
        for number in range(5):
            traffic.add(20)
            time.sleep(random.uniform(0.2, 1.5))
            # Immediate stop; every second time its main process is killed and its children are left to find out.
            began = time.monotonic()
            stop_at_once(server, signal.SIGKILL if number % 2 else signal.SIGQUIT)
            embedded.database_url()
            traffic.seconds_to_the_next_checkpoint()
            measured("PostgreSQL is stopped at once and started", time.monotonic() - began, DATABASE_BOUND)
            traffic.wait_for_all()
            seconds_until(lambda: is_whole(runner))
        assert restarts() == 0
        traffic.assert_all_came_out_right()

    def test_postgresql_is_away_for_ten_seconds(self, traffic, runner, measured, server):
        traffic.add(20)
        time.sleep(1)
        stop_at_once(server, signal.SIGQUIT)
        time.sleep(10)
        embedded.database_url()
        measured("PostgreSQL was away for 10 s", traffic.seconds_to_the_next_checkpoint(), DATABASE_BOUND)
        seconds_until(lambda: is_whole(runner))
        traffic.assert_all_came_out_right()


def stop_at_once(server, number: int) -> None:
    postmaster = psutil.Process(server.main_pid())
    os.kill(postmaster.pid, number)
    seconds_until(lambda: not postmaster.is_running() or postmaster.status() == psutil.STATUS_ZOMBIE)


def test_the_port_is_blocked_for_a_minute(traffic, launch, measured, database):
    """C13: nothing is refused and nothing broken; no answer comes any more, and every lease ends meanwhile."""
    with BlockedPort(database.url) as port:
        runner = launch(DATABASE_URL=port.url)
        for seconds in (3, 20, 60):
            traffic.add(10)
            time.sleep(1)
            with port.blocked():
                time.sleep(seconds)
            recovered = traffic.seconds_to_the_next_checkpoint()
            measured(f"the database's port is blocked for {seconds} s", recovered, DATABASE_BOUND)
            traffic.wait_for_all()
        seconds_until(lambda: is_whole(runner))
        traffic.assert_all_came_out_right()


def test_every_connection_is_terminated_20_times(traffic, runner, measured, database):
    for number in range(20):
        if number % 4 == 0:
            # A step that lost the database at all its five attempts would be a dead letter.
            traffic.wait_for_all()
        traffic.add(4)
        time.sleep(random.uniform(0.1, 1.0))
        assert database.query(THROW_OUT)[0][0] >= 3
        measured("every connection is terminated", traffic.seconds_to_the_next_checkpoint(), BOUND)
        seconds_until(lambda: is_whole(runner))
    assert restarts() == 0
    traffic.assert_all_came_out_right()


def test_an_idle_runner_does_not_notice_that_its_connections_are_gone(traffic, runner, measured, database):
    for _ in range(5):
        traffic.probe()
        time.sleep(1.2)
        database.query(THROW_OUT)
        measured("every connection of an idle runner is terminated", traffic.probe(), BOUND)
    assert "The sweep will ring again" not in runner.log()
    traffic.assert_all_came_out_right()
