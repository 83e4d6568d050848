"""A Kafka broker that is its own controller, on loopback."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # so it is documented

from pyarctic.spark import java
from tests.support import jars
from tests.support.processes import HOST, free_port, running, wait_for

# Compile fast rather than well: a test's messages are few.
_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
_SECONDS = 30

Message = tuple[str | None, str | None]
"""Key and value; a value of None is a tombstone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """A running broker."""

    servers: str
    """For `kafka.bootstrap.servers`."""

    def create_topic(self, name: str, partitions: int = 1) -> None:
        client = AdminClient(self._client)  # its answers end with it
        client.create_topics([NewTopic(name, partitions, 1)])[name].result(_SECONDS)

    def send(self, topic: str, messages: Sequence[Message]) -> None:
        """Send messages, in order, and wait until the broker has them. Those with one key go to one partition."""
        producer = Producer({**self._client, "enable.idempotence": True})
        for key, value in messages:
            producer.produce(topic, key=key, value=value)
        if left := producer.flush(_SECONDS):
            raise TimeoutError(f"{left} messages were not sent to {topic}")

    @property
    def _client(self) -> dict[str, str | int | float | bool]:
        return {"bootstrap.servers": self.servers, "log_level": 0}


@contextmanager
def start(folder: Path) -> Iterator[Kafka]:
    """Start an empty broker, wait until it answers, and end it. Its log and its data are in this folder."""
    port, log, settings = free_port(), folder / "kafka.log", folder / "server.properties"
    settings.write_text("".join(f"{name}={value}\n" for name, value in _settings(folder, port).items()))
    command = [str(java.find_java().executable), *_OPTIONS, "-cp", os.pathsep.join(map(str, jars.KAFKA.paths()))]
    with log.open("ab") as output:
        prepare = [*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)]
        subprocess.run(prepare, check=True, stdout=output, stderr=output, cwd=folder)
    with running([*command, "kafka.Kafka", str(settings)], log) as process:
        kafka = Kafka(servers=f"{HOST}:{port}")
        wait_for(lambda: _is_up(kafka), log, process)
        yield kafka


def _settings(folder: Path, port: int) -> dict[str, str | int]:
    controller = free_port()
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / "kafka-data"),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }


def _is_up(kafka: Kafka) -> bool:
    try:
        AdminClient(kafka._client).list_topics(timeout=1)
    except KafkaException:
        return False
    return True
