"""The sections of `arctic.yaml` about the service."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from pyarctic import config
from pyarctic.ams.settings import ServiceSettings
from pyarctic.errors import ConfigError

WriteConfig = Callable[[str], Path]


def test_what_is_left_out_has_defaults(write_config: WriteConfig) -> None:
    write_config("service:\n  commit:\n  retry: {max: 5}\nhttp: ~\n")
    loaded = config.load()
    assert loaded.service is not None
    assert loaded.http is not None
    assert (loaded.http.host, loaded.http.port) == ("127.0.0.1", 1630)
    settings = ServiceSettings.of(loaded.service)
    assert settings.attempts.max_retries == 5
    assert settings == ServiceSettings(attempts=settings.attempts)


def test_every_setting_reaches_the_service(write_config: WriteConfig) -> None:
    write_config(
        "service:\n"
        "  database: {url: 'sqlite:///x.db'}\n"
        "  tables: {include: [prod.*, test.db.t], exclude: '*.tmp.*'}\n"
        "  refresh-tables: {interval: 5min, min-interval: 5s, max-interval: 2h, discover-interval: 7min, threads: 9}\n"
        "  planning: {min-plan-interval: 2min}\n"
        "  optimizer: {heart-beat-timeout: 20s, task-ack-timeout: 10s,\n"
        "    task-execute-timeout: 1h, task-progress-timeout: 3min}\n"
        "  retry: {scan: 1s, interval: 2s, max: 0}\n"
        "  commit: {interval: 0, threads: 2}\n"
        "  history: {keep: 7d}\n"
    )
    section = config.load().service
    assert section is not None
    assert section.database.url == "sqlite:///x.db"
    settings, default = ServiceSettings.of(section), ServiceSettings()
    assert settings.include == ("prod.*", "test.db.t")
    assert settings.exclude == ("*.tmp.*",)
    assert settings.commit_interval == timedelta(0)
    assert settings.dead_attempt_grace == timedelta(minutes=1)
    assert settings.attempts.acknowledge_timeout == timedelta(seconds=10)
    untouched = {"task_memory_bytes", "queue_capacity", "commit_retry", "keep_plans"}
    for name in ServiceSettings.__dataclass_fields__.keys() - untouched:
        assert getattr(settings, name) != getattr(default, name), name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("service:\n  comit: {interval: 5min}\n", ":2 service.comit: not a known key; did you mean 'commit'?"),
        (
            "service:\n  commit:\n    intervall: 5min\n",
            ":3 service.commit.intervall: not a known key; did you mean 'interval'?",
        ),
        ("service:\n  commit: {interval: 5}\n", ":2 service.commit.interval: needs a unit, such as 30s, 10min or 7d"),
        ("service:\n  commit: {interval: soon}\n", ":2 service.commit.interval: 'soon' is not a duration such as"),
        ("service:\n  retry: {max: -1}\n", ":2 service.retry.max: Input should be greater than or equal to 0"),
        ("http: {port: 70000}\n", ":1 http.port: Input should be less than or equal to 65535"),
        ("http: {auth: open}\n", ":1 http.auth: Input should be 'token' or 'none'"),
        ("service: [1]\n", ":1 service: must be a mapping of keys to values"),
    ],
)
def test_faults_name_line_and_key(write_config: WriteConfig, text: str, message: str) -> None:
    write_config(text)
    with pytest.raises(ConfigError) as caught:
        config.load()
    assert message in str(caught.value)
