"""The sections of the configuration file about the management service. Durations need a unit: `30s`, `10min`, `7d`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pyarctic.units import parse_duration


def _parse_duration(value: Any) -> timedelta:
    text = str(value).strip()
    if text.replace(".", "", 1).isdigit() and text != "0":
        raise ValueError("needs a unit, such as 30s, 10min or 7d")
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a duration such as 30s, 10min or 7d") from None


def _empty_when_absent(value: Any) -> Any:
    return {} if value is None else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Duration = Annotated[timedelta, BeforeValidator(_parse_duration)]
Globs = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class Section(BaseModel):
    """A mapping of the file. Keys have hyphens; those that are not known are errors."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        alias_generator=lambda name: name.replace("_", "-"),
    )


class DatabaseSection(Section):
    """Where the service keeps what it knows."""

    url: str | None = None
    """By default a SQLite file in the state folder."""


class TablesSection(Section):
    """Which tables are watched: globs over full names."""

    include: Globs = ("*",)
    exclude: Globs = ()


class RefreshSection(Section):
    """How often tables are looked at. The interval of each adapts, between the least and the most."""

    interval: Duration = timedelta(minutes=10)
    min_interval: Duration = timedelta(minutes=1)
    max_interval: Duration = timedelta(hours=1)
    discover_interval: Duration = timedelta(minutes=10)
    threads: Annotated[int, Field(ge=1)] = 4


class PlanningSection(Section):
    """How often a table is planned because of periodic looks."""

    min_plan_interval: Duration = timedelta(minutes=1)


class OptimizerSection(Section):
    """How long optimizers may be silent, and tasks may take."""

    heart_beat_timeout: Duration = timedelta(minutes=1)
    task_ack_timeout: Duration = timedelta(seconds=30)
    task_execute_timeout: Duration = timedelta(hours=12)
    task_progress_timeout: Duration = timedelta(hours=1)


class RetrySection(Section):
    """When failed tasks are tried again, and how often."""

    scan: Duration = timedelta(seconds=5)
    interval: Duration = timedelta(seconds=30)
    max: Annotated[int, Field(ge=0)] = 3


class CommitSection(Section):
    """The least time between two commits of a table."""

    interval: Duration = timedelta(minutes=5)
    threads: Annotated[int, Field(ge=1)] = 4


class HistorySection(Section):
    """How long history is kept."""

    keep: Duration = timedelta(days=30)


def _section(kind: type[Section]) -> Any:
    return Field(default_factory=kind)


class ServiceSection(Section):
    """The section `service`."""

    database: Annotated[DatabaseSection, BeforeValidator(_empty_when_absent)] = _section(DatabaseSection)
    tables: Annotated[TablesSection, BeforeValidator(_empty_when_absent)] = _section(TablesSection)
    refresh_tables: Annotated[RefreshSection, BeforeValidator(_empty_when_absent)] = _section(RefreshSection)
    planning: Annotated[PlanningSection, BeforeValidator(_empty_when_absent)] = _section(PlanningSection)
    optimizer: Annotated[OptimizerSection, BeforeValidator(_empty_when_absent)] = _section(OptimizerSection)
    retry: Annotated[RetrySection, BeforeValidator(_empty_when_absent)] = _section(RetrySection)
    commit: Annotated[CommitSection, BeforeValidator(_empty_when_absent)] = _section(CommitSection)
    history: Annotated[HistorySection, BeforeValidator(_empty_when_absent)] = _section(HistorySection)


class HttpSection(Section):
    """The section `http`."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 1630
    auth: Literal["token", "none"] = "token"
    token: str | None = None
    """Of the administrator, in place of the one that the service makes: several services need the same."""
    advertised_url: str | None = None
    """Where others reach this service, if not at host and port."""
