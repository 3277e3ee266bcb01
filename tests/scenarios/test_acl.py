"""Who may do what on a provisioned broker.

A real mosquitto runs what `provision` wrote for fleet `farm`. An administrator added the user
`auditor`, who may read everything, so a refused message is shown to be nowhere, not only to be
unheard by those who may not hear it. mosquitto handles one packet after the other: when a later,
allowed message has arrived, an earlier one that has not arrived never will. So nothing here waits
for silence.
"""

import json
import os
import queue
import signal
import ssl
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker.brokers.mosquitto_process import Mosquitto
from broker.protocol.topics import Topics
from toolkit.provisioning.fleet import Provisioned, provision, remove, rotate
from toolkit.provisioning.mosquitto_files import hash_password

Start = Callable[[Path], Mosquitto]
FARM = Topics("farm")
GARDEN = Topics("garden")  # another fleet
DEVICES = ("one", "two", "three", "leaver", "changer")
SOON = 2.0  # seconds in which a change at the broker's plugin has its effect
Toolkit = Callable[..., Any]
PATIENCE = 20.0  # seconds until a test gives up; nothing takes that long
TAKEN = {0x00, 0x10}  # success, and success without a subscriber
NOT_AUTHORISED = 0x87


@dataclass(frozen=True)
class Broker:
    made: Provisioned
    port: int
    pid: int
    dynamic: bool = False

    @property
    def of_fleet(self) -> tuple[str, ...]:
        return "--fleet", "farm", "--out", str(self.made.folder)

    def password(self, user: str) -> str:
        return (self.made.credentials(user) / "password").read_text(encoding="utf-8").strip()


class Client:
    """One MQTT 5 connection: what arrived, and how the broker answered."""

    def __init__(
        self,
        broker: Broker,
        user: str | None,
        password: str = "",
        *,
        client_id: str = "",
        will: str | None = None,
        keeps_session: bool = False,
    ) -> None:
        self.inbox: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.answers: queue.Queue[int] = queue.Queue()
        self.links: queue.Queue[tuple[int, Properties]] = queue.Queue()
        self.losses: queue.Queue[int] = queue.Queue()
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id or user or "stranger", protocol=mqtt.MQTTv5
        )
        client.tls_set_context(ssl.create_default_context(cafile=broker.made.broker / "ca.pem"))
        if user is not None:
            client.username_pw_set(user, password or broker.password(user))
        if will is not None:
            client.will_set(will, b"will", qos=1)
        client.on_message = lambda _c, _u, m: self.inbox.put((m.topic, bytes(m.payload)))
        client.on_connect = lambda _c, _u, _f, code, p: self.links.put((code.value, p))
        client.on_disconnect = lambda _c, _u, _f, code, _p: self.losses.put(code.value)
        client.on_publish = lambda _c, _u, _m, code, _p: self.answers.put(code.value)
        client.on_subscribe = lambda _c, _u, _m, codes, _p: self.answers.put(codes[0].value)
        client.on_unsubscribe = lambda _c, _u, _m, codes, _p: self.answers.put(codes[0].value)
        session = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        session.SessionExpiryInterval = 3600 if keeps_session else 0
        client.connect("127.0.0.1", broker.port, clean_start=not keeps_session, properties=session)
        client.loop_start()
        self.client = client
        self.code, self.told = self.links.get(timeout=PATIENCE)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        """The broker's answer to a message of QoS 1."""
        self.client.publish(topic, payload, qos=1, retain=retain)
        return self.answers.get(timeout=PATIENCE)

    def subscribe(self, topic_filter: str) -> None:
        self.client.subscribe(topic_filter, qos=1)
        self.answers.get(timeout=PATIENCE)  # granted even where nothing will be delivered

    def unsubscribe(self, topic_filter: str) -> None:
        self.client.unsubscribe(topic_filter)
        self.answers.get(timeout=PATIENCE)

    def until(self, last: bytes) -> list[tuple[str, bytes]]:
        """Everything that has arrived up to the message `last`."""
        arrived = [self.inbox.get(timeout=PATIENCE)]
        while arrived[-1][1] != last:
            arrived.append(self.inbox.get(timeout=PATIENCE))
        return arrived

    def vanish(self) -> None:
        """Loses the connection without a goodbye, so that the broker publishes the will."""
        self.client.loop_stop()
        connection = self.client.socket()
        assert connection is not None
        connection.close()

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        del (
            self.client
        )  # its callbacks know this object: paho's sockets would wait for a collection


@pytest.fixture(scope="module", params=["files", "dynamic"])
def broker(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    provisioned_mosquitto: Start,
) -> Iterator[Broker]:
    """The fleet's broker, with users in files or in its plugin, and `auditor` among them."""
    folder = tmp_path_factory.mktemp("acl") / "farm"
    dynamic = request.param == "dynamic"
    made = provision("farm", DEVICES, folder, roles=("observer", "operator"), dynamic=dynamic)
    if dynamic:
        add_auditor(made.broker / "dynamic-security.json")
    else:
        add_auditor_to_files(made)
    with provisioned_mosquitto(made.broker) as process:
        provision("farm", [], folder, host_names=["127.0.0.1"], port=process.port)
        yield Broker(made, process.port, process.pid, dynamic)


def add_auditor_to_files(made: Provisioned) -> None:
    with (made.broker / "passwords").open("a", encoding="utf-8") as file:
        file.write(f"auditor:{hash_password('audit')}\n")
    with (made.broker / "acl").open("a", encoding="utf-8") as file:
        file.write("\nuser auditor\ntopic read #\ntopic read $SYS/#\n")


def add_auditor(file: Path) -> None:
    """As an administrator would; and others may subscribe to anything, as with files."""
    table = json.loads(file.read_text(encoding="utf-8"))
    _, _, iterations, salt, digest = hash_password("audit").split("$")
    table["clients"].append(
        {
            "username": "auditor",
            "password": digest,
            "salt": salt,
            "iterations": int(iterations),
            "roles": [{"rolename": "auditor"}],
        }
    )
    kinds = ("publishClientReceive", "subscribePattern")
    acls = [
        {"acltype": kind, "topic": topic, "allow": True}
        for kind in kinds
        for topic in ("#", "$SYS/#")
    ]
    table["roles"].append({"rolename": "auditor", "acls": acls})
    file.write_text(json.dumps(table), encoding="utf-8")


@pytest.fixture(scope="module")
def clients(broker: Broker) -> Iterator[dict[str, Client]]:
    """Devices, aggregator and auditor, connected once; each can hear one message meant for it."""
    users = ("one", "two", "aggregator", "observer", "operator")
    connected = {user: Client(broker, user) for user in users}
    connected["auditor"] = Client(broker, "auditor", "audit")
    connected["auditor"].subscribe("#")
    for name in ("aggregator", "observer", "operator"):
        connected[name].subscribe(FARM.state("+"))
    for name in ("one", "two"):
        connected[name].subscribe(FARM.verdict(name))
    yield connected
    for client in connected.values():
        client.close()


def token() -> bytes:
    """A payload like no other."""
    return uuid.uuid4().bytes


MAY_WRITE = [
    ("one", FARM.state("one")),
    ("one", FARM.update("one")),
    ("one", f"{FARM.update('one')}/6"),
    ("one", FARM.metrics("one")),
    ("one", FARM.answer("one")),
    ("one", FARM.rollout("one")),
    ("operator", FARM.home_available),
    ("operator", FARM.home_state("one")),
    ("operator", "homeassistant/device/stemshare-farm/one/config"),
    ("operator", FARM.aggregator_command),
    ("operator", FARM.command("one")),
    ("operator", FARM.offer("one")),
    ("operator", FARM.pack("one")),
    ("operator", FARM.rollout("one")),
    ("operator", FARM.state("one")),
    ("operator", FARM.metrics("one")),
    ("aggregator", FARM.aggregator_state),
    ("aggregator", FARM.report),
    ("aggregator", FARM.aggregator_metrics),
    ("aggregator", FARM.shared),
    ("aggregator", f"{FARM.shared}/6"),
    ("aggregator", FARM.verdict("one")),
    ("aggregator", FARM.reply("two")),
    ("aggregator", f"{FARM.reply('two')}/6"),
]
MAY_NOT_WRITE = [
    ("one", FARM.state("two")),
    ("one", FARM.update("two")),
    ("one", f"{FARM.update('two')}/0"),
    ("one", FARM.metrics("two")),
    ("one", FARM.answer("two")),
    ("one", FARM.command("one")),
    ("one", FARM.command("two")),
    ("one", FARM.home_state("one")),
    ("one", FARM.home_switch("one")),
    ("observer", FARM.home_available),
    ("operator", FARM.home_switch("one")),
    ("operator", "homeassistant/device/stemshare-garden/one/config"),
    ("aggregator", FARM.home_state("one")),
    ("one", FARM.aggregator_command),
    ("one", FARM.aggregator_answer),
    ("observer", FARM.aggregator_command),
    ("operator", FARM.aggregator_answer),
    ("one", FARM.offer("one")),
    ("one", FARM.offer("two")),
    ("one", FARM.pack("two")),
    ("one", FARM.rollout("two")),
    ("one", FARM.report),
    ("observer", FARM.offer("one")),
    ("observer", FARM.rollout("one")),
    ("aggregator", FARM.offer("one")),
    ("aggregator", FARM.pack("one")),
    ("aggregator", FARM.rollout("one")),
    ("observer", FARM.command("one")),
    ("observer", FARM.state("one")),
    ("observer", FARM.metrics("one")),
    ("observer", FARM.answer("one")),
    ("observer", FARM.report),
    ("operator", FARM.shared),
    ("operator", FARM.update("one")),
    ("operator", FARM.verdict("one")),
    ("operator", FARM.aggregator_state),
    ("aggregator", FARM.command("one")),
    ("one", FARM.verdict("two")),
    ("one", FARM.verdict("one")),
    ("one", FARM.reply("one")),
    ("one", FARM.shared),
    ("one", f"{FARM.shared}/0"),
    ("one", FARM.aggregator_state),
    ("one", FARM.aggregator_metrics),
    ("one", f"{FARM.state('one')}/deeper"),
    ("one", FARM.state("%u")),
    ("one", FARM.root),
    ("one", GARDEN.state("one")),
    ("one", "anything"),
    ("one", "$SYS/broker/uptime"),
    ("one", "$CONTROL/dynamic-security/v1"),
    ("aggregator", FARM.state("one")),
    ("aggregator", FARM.update("one")),
    ("aggregator", GARDEN.shared),
    ("aggregator", "anything"),
    ("auditor", FARM.shared),
]
# Who reads, with which filter, who writes, and where.
MAY_READ = [
    ("one", f"{FARM.shared}/#", "aggregator", FARM.shared),
    ("one", f"{FARM.shared}/#", "aggregator", f"{FARM.shared}/6"),
    ("one", FARM.aggregator_state, "aggregator", FARM.aggregator_state),
    ("one", f"{FARM.reply('one')}/#", "aggregator", f"{FARM.reply('one')}/6"),
    ("one", FARM.verdict("one"), "aggregator", FARM.verdict("one")),
    ("aggregator", FARM.state("+"), "one", FARM.state("one")),
    ("aggregator", f"{FARM.update('+')}/#", "two", f"{FARM.update('two')}/6"),
    ("aggregator", FARM.metrics("+"), "two", FARM.metrics("two")),
    ("one", FARM.command("one"), "operator", FARM.command("one")),
    ("aggregator", FARM.aggregator_command, "operator", FARM.aggregator_command),
    ("operator", FARM.aggregator_answer, "aggregator", FARM.aggregator_answer),
    ("one", FARM.offer("one"), "operator", FARM.offer("one")),
    ("one", FARM.pack("one"), "operator", FARM.pack("one")),
    *((who, FARM.rollout("+"), "one", FARM.rollout("one")) for who in ("observer", "operator")),
    ("operator", FARM.answer("+"), "one", FARM.answer("one")),
    *((who, FARM.report, "aggregator", FARM.report) for who in ("observer", "operator")),
    ("observer", FARM.aggregator_metrics, "aggregator", FARM.aggregator_metrics),
    ("observer", FARM.metrics("+"), "two", FARM.metrics("two")),
]
MAY_NOT_READ = [
    ("two", f"{FARM.update('one')}/#", "one", FARM.update("one")),
    ("two", f"{FARM.update('+')}/#", "one", f"{FARM.update('one')}/0"),
    ("two", "#", "one", FARM.update("one")),
    ("two", "#", "one", FARM.state("one")),
    ("two", f"$share/group/{FARM.update('+')}/#", "one", FARM.update("one")),
    ("two", FARM.state("one"), "one", FARM.state("one")),
    ("two", FARM.command("+"), "operator", FARM.command("one")),
    ("two", FARM.answer("+"), "one", FARM.answer("one")),
    ("two", FARM.aggregator_command, "operator", FARM.aggregator_command),
    ("observer", FARM.aggregator_command, "operator", FARM.aggregator_command),
    ("two", FARM.offer("+"), "operator", FARM.offer("one")),
    ("two", FARM.pack("+"), "operator", FARM.pack("one")),
    ("two", FARM.rollout("+"), "one", FARM.rollout("one")),
    ("two", FARM.report, "aggregator", FARM.report),
    ("observer", "#", "one", FARM.update("one")),
    ("operator", "#", "one", FARM.update("one")),
    ("observer", FARM.verdict("+"), "aggregator", FARM.verdict("one")),
    ("two", FARM.metrics("+"), "one", FARM.metrics("one")),
    ("two", FARM.metrics("two"), "two", FARM.metrics("two")),
    ("two", FARM.verdict("one"), "aggregator", FARM.verdict("one")),
    ("two", f"{FARM.reply('+')}/#", "aggregator", FARM.reply("one")),
    ("two", FARM.aggregator_metrics, "aggregator", FARM.aggregator_metrics),
    ("aggregator", "#", "aggregator", FARM.verdict("one")),
]


@pytest.mark.parametrize(("user", "topic"), MAY_WRITE)
def test_writes_its_own(clients: dict[str, Client], user: str, topic: str) -> None:
    payload = token()
    assert clients[user].publish(topic, payload) in TAKEN
    assert (topic, payload) in clients["auditor"].until(payload)


@pytest.mark.parametrize(("user", "topic"), MAY_NOT_WRITE)
def test_writes_nothing_else(clients: dict[str, Client], user: str, topic: str) -> None:
    refused, allowed = token(), token()
    assert clients[user].publish(topic, refused, retain=True) == NOT_AUTHORISED
    clients["aggregator"].publish(FARM.shared, allowed)  # after the refusal was answered
    assert refused not in [payload for _, payload in clients["auditor"].until(allowed)]


@pytest.mark.parametrize(("reader", "topic_filter", "writer", "topic"), MAY_READ)
def test_reads_what_is_meant_for_it(
    clients: dict[str, Client], reader: str, topic_filter: str, writer: str, topic: str
) -> None:
    payload = token()
    clients[reader].subscribe(topic_filter)
    clients[writer].publish(topic, payload)
    assert clients[reader].until(payload)[-1] == (topic, payload)


@pytest.mark.parametrize(("reader", "topic_filter", "writer", "topic"), MAY_NOT_READ)
def test_reads_nothing_else(
    clients: dict[str, Client], reader: str, topic_filter: str, writer: str, topic: str
) -> None:
    hidden, allowed = token(), token()
    clients[reader].subscribe(topic_filter)
    assert clients[writer].publish(topic, hidden, retain=True) in TAKEN
    clients["auditor"].until(hidden)  # it was published
    clients[reader].unsubscribe(topic_filter)
    clients[reader].subscribe(topic_filter)  # nor does it come as a retained message
    if reader in ("aggregator", "observer", "operator"):
        clients["one"].publish(FARM.state("one"), allowed)
    else:
        clients["aggregator"].publish(FARM.verdict(reader), allowed)
    assert hidden not in [payload for _, payload in clients[reader].until(allowed)]
    clients[reader].unsubscribe(topic_filter)
    clients[writer].publish(topic, b"", retain=True)


def test_nobody_of_the_fleet_reads_what_the_broker_says_of_itself(
    clients: dict[str, Client],
) -> None:
    for user in ("auditor", "two", "aggregator"):
        clients[user].subscribe("$SYS/#")
    for user, writer, topic in (
        ("auditor", "aggregator", FARM.shared),
        ("two", "aggregator", FARM.verdict("two")),
        ("aggregator", "one", FARM.state("one")),
    ):
        allowed = token()
        clients[writer].publish(topic, allowed)
        heard = [t for t, _ in clients[user].until(allowed) if t.startswith("$SYS/")]
        assert bool(heard) == (user == "auditor")
    for user in ("auditor", "two", "aggregator"):
        clients[user].unsubscribe("$SYS/#")


@pytest.mark.parametrize(
    ("user", "password"),
    [(None, ""), ("one", "wrong"), ("nobody", "wrong"), ("aggregator", "wrong")],
    ids=["anonymous", "device", "unknown", "aggregator"],
)
def test_nobody_connects_without_the_right_password(
    broker: Broker, user: str | None, password: str
) -> None:
    stranger = Client(broker, user, password)
    stranger.close()
    assert stranger.code == NOT_AUTHORISED


def test_nobody_is_anonymous_even_where_clients_choose_their_id(
    tmp_path: Path, provisioned_mosquitto: Start
) -> None:
    """Two settings refuse the nameless; here the one that also binds client ids is off."""
    made = provision("farm", [], tmp_path / "farm")
    settings = made.broker / "mosquitto.conf"
    text = settings.read_text(encoding="utf-8")
    assert "use_username_as_clientid true" in text
    text = text.replace("use_username_as_clientid true", "use_username_as_clientid false")
    settings.write_text(text, encoding="utf-8")
    with provisioned_mosquitto(made.broker) as process:
        stranger = Client(Broker(made, process.port, process.pid), None)
        stranger.close()
    assert stranger.code == NOT_AUTHORISED


def test_the_password_of_one_device_does_not_open_another(broker: Broker) -> None:
    thief = Client(broker, "two", broker.password("one"))
    thief.close()
    assert thief.code == NOT_AUTHORISED


def test_a_device_cannot_take_the_client_id_of_another(
    broker: Broker, clients: dict[str, Client]
) -> None:
    """Device three says that its client id is `two`; two stays connected and is heard."""
    three = Client(broker, "three", client_id="two")
    payload, verdict = token(), token()
    assert three.publish(FARM.state("three"), payload) in TAKEN
    clients["auditor"].until(payload)
    clients["aggregator"].publish(FARM.verdict("two"), verdict)
    clients["two"].until(verdict)
    assert clients["two"].losses.empty()
    three.close()


def test_a_will_obeys_the_same_rules(broker: Broker, clients: dict[str, Client]) -> None:
    """Device three is lost twice: its will for another's topic is dropped, its own is published."""
    for topic in (FARM.state("two"), FARM.state("three")):
        Client(broker, "three", will=topic).vanish()
    wills = [topic for topic, payload in clients["auditor"].until(b"will") if payload == b"will"]
    assert wills == [FARM.state("three")]


def test_a_large_slice_passes_the_limits(broker: Broker, clients: dict[str, Client]) -> None:
    """θ_shared of 7 MB, in parts, reaches a device that is there and one that was away."""
    parts = [bytes([index]) * 990_000 for index in range(7)]
    Client(broker, "three", keeps_session=True).close()
    away = Client(broker, "three", keeps_session=True)
    away.subscribe(f"{FARM.reply('three')}/#")
    away.close()
    clients["two"].subscribe(f"{FARM.shared}/#")
    for index, part in enumerate(parts):
        assert clients["aggregator"].publish(f"{FARM.shared}/{index}", part) in TAKEN
        assert clients["aggregator"].publish(f"{FARM.reply('three')}/{index}", part) in TAKEN
    arrived = [payload for _, payload in clients["two"].until(parts[-1]) if len(payload) > 16]
    assert arrived == parts
    clients["two"].unsubscribe(f"{FARM.shared}/#")
    back = Client(broker, "three", keeps_session=True)
    assert [payload for _, payload in back.until(parts[-1])] == parts
    back.close()


def test_the_broker_says_how_large_a_packet_may_be(broker: Broker) -> None:
    """Whoever sends more is cut off instead of hearing that all went well."""
    three = Client(broker, "three")
    assert vars(three.told)["MaximumPacketSize"] == 2_000_000
    three.client.publish(FARM.update("three"), b"\0" * 2_000_001, qos=1)
    three.losses.get(timeout=PATIENCE)
    three.client.loop_stop()
    assert three.answers.empty()


def test_a_removed_device_is_shut_out_and_others_are_not(broker: Broker, toolkit: Toolkit) -> None:
    password = broker.password("leaver")
    leaver = Client(broker, "leaver", password)
    assert leaver.code == 0
    if broker.dynamic:
        said = toolkit("provision", *broker.of_fleet, "--remove", "leaver")
        assert said.out == "leaver is shut out\n"
        leaver.losses.get(timeout=SOON)
    else:
        remove(broker.made.folder, "leaver")
        os.kill(broker.pid, signal.SIGHUP)
        leaver.losses.get(timeout=PATIENCE)  # it was connected
    leaver.close()
    late = Client(broker, "leaver", password)
    three = Client(broker, "three")
    late.close()
    three.close()
    assert (late.code, three.code) == (NOT_AUTHORISED, 0)


def test_a_rotated_password_replaces_the_old_one(broker: Broker, toolkit: Toolkit) -> None:
    old = broker.password("changer")
    if broker.dynamic:
        toolkit("provision", *broker.of_fleet, "--rotate", "changer")
    else:
        rotate(broker.made.folder, "changer")
        os.kill(broker.pid, signal.SIGHUP)
    codes = {}
    for name, password in (("new", broker.password("changer")), ("old", old)):
        for _ in range(100):  # mosquitto reloads at its next turn
            client = Client(broker, "changer", password)
            client.close()
            codes[name] = client.code
            if (client.code == 0) == (name == "new"):
                break
    assert codes == {"new": 0, "old": NOT_AUTHORISED}


def test_a_device_and_users_are_let_in_while_the_broker_runs(
    tmp_path: Path,
    provisioned_mosquitto: Start,
    toolkit: Toolkit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the plugin: no file is copied, and no signal is sent."""
    folder = tmp_path / "farm"
    made = provision("farm", ["one"], folder, host_names=["127.0.0.1"], dynamic=True)
    assert "acl_file" not in (made.broker / "mosquitto.conf").read_text(encoding="utf-8")
    with provisioned_mosquitto(made.broker) as process:
        provision("farm", [], folder, port=process.port)
        broker = Broker(made, process.port, process.pid, dynamic=True)
        said = toolkit(
            "provision", *broker.of_fleet, "--device", "newcomer", "--observer", "--operator"
        )
        assert said.code == 0, said
        assert "the broker lets them in from now on" in said.out
        members = (folder / "aggregator" / "members").read_text(encoding="utf-8")
        assert members == "one\nnewcomer\n"
        began = time.monotonic()
        newcomer, observer = Client(broker, "newcomer"), Client(broker, "observer")
        operator, one = Client(broker, "operator"), Client(broker, "one")
        assert [c.code for c in (newcomer, observer, operator, one)] == [0] * 4
        for client, topic in ((observer, FARM.state("+")), (newcomer, FARM.command("newcomer"))):
            client.subscribe(topic)
        assert newcomer.publish(FARM.state("newcomer"), b"here") in TAKEN
        assert observer.until(b"here") == [(FARM.state("newcomer"), b"here")]
        assert operator.publish(FARM.command("newcomer"), b"pause") in TAKEN
        assert newcomer.until(b"pause")
        assert newcomer.publish(FARM.state("one"), b"lie") == NOT_AUTHORISED
        assert observer.publish(FARM.state("one"), b"lie") == NOT_AUTHORISED
        assert observer.publish(FARM.state("observer"), b"lie") == NOT_AUTHORISED
        assert time.monotonic() - began < SOON
        toolkit("provision", *broker.of_fleet, "--remove", "newcomer")
        newcomer.losses.get(timeout=SOON)
        again = toolkit("provision", *broker.of_fleet, "--device", "one")
        assert "nobody added, aggregator, one as before" in again.out
        for client in (newcomer, observer, operator, one):
            client.close()
    monkeypatch.setattr("toolkit.provisioning.enrolment.LINK_SECONDS", 0.5)
    refused = toolkit("provision", *broker.of_fleet, "--device", "late")
    assert "cannot be told (nothing listens at" in refused.refusal
