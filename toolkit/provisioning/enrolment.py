"""Lets users in and shuts them out on a broker that runs, by its dynamic security plugin."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from broker.transport.address import Credentials, parse_address
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Connected, Disconnected, Packet
from toolkit.errors import ProvisionError
from toolkit.provisioning.certificates import Issued, Validity, issue_client
from toolkit.provisioning.dynamic_security import (
    ADMINISTRATOR,
    CONTROL,
    FILE,
    RESPONSE,
    Command,
    initial_file,
    letting_in,
    problems,
    shutting_out,
)
from toolkit.provisioning.mosquitto_files import hash_password, new_password
from toolkit.provisioning.private_files import read, write

LINK_SECONDS = 10.0  # until the broker has to have answered
PASSWORD, CERTIFICATE, KEY = "admin.password", "admin.pem", "admin.key"


def prepare_plugin(
    out: Path,
    fleet: str,
    hashes: dict[str, str],
    authority: Callable[[], Issued],
    validity: Validity,
) -> None:
    """Writes the file that the plugin starts from, once; afterwards it is the broker's."""
    if (out / "broker" / FILE).exists():
        return
    password, issued = new_password(), issue_client(authority(), fleet, ADMINISTRATOR, validity)
    folder = out / "authority"
    write(folder / PASSWORD, f"{password}\n")
    write(folder / CERTIFICATE, issued.certificate_pem)
    write(folder / KEY, issued.key_pem)
    write(out / "broker" / FILE, initial_file(fleet, hashes, hash_password(password)))


class Enrolment:
    """Speaks to the plugin as the administrator."""

    def __init__(self, transport: MqttTransport, fleet: str, url: str) -> None:
        self._transport = transport
        self._fleet = fleet
        self._url = url

    def let_in(self, user: str, folder: Path) -> None:
        """Adds the user whose credentials are in the folder, or renews his password."""
        text = read(folder / "password")
        if text is None:
            raise ProvisionError(
                f"{folder / 'password'} is missing; `toolkit provision --rotate {user}` makes "
                "another."
            )
        self._command(letting_in(user, text.strip(), self._fleet))

    def shut_out(self, user: str) -> None:
        self._command(shutting_out(user))

    def users(self) -> set[str]:
        """Returns who is known to the broker."""
        (answer,) = self._ask([{"command": "listClients"}])["responses"]
        found = answer.get("data", {}).get("clients", [])
        return {user for user in found if isinstance(user, str)}

    def _command(self, commands: list[Command]) -> None:
        if wrong := problems(self._ask(commands)):
            raise ProvisionError(f"the broker has not done what it was told: {wrong[0][:200]}.")

    def _ask(self, commands: list[Command]) -> dict[str, list[dict[str, dict[str, list[str]]]]]:
        self._transport.publish(CONTROL, json.dumps({"commands": commands}).encode())
        deadline = time.monotonic() + LINK_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            match self._transport.receive(left):
                case Packet(topic, payload) if topic == RESPONSE:
                    with contextlib.suppress(ValueError):
                        found: dict[str, list[dict[str, dict[str, list[str]]]]]
                        found = json.loads(payload)
                        return found
        raise ProvisionError(f"the broker at {self._url} does not answer as its plugin would.")

    def wait_for_link(self) -> None:
        deadline = time.monotonic() + LINK_SECONDS
        why = "no answer"
        while (left := deadline - time.monotonic()) > 0:
            match self._transport.receive(left):
                case Connected():
                    return
                case Disconnected(reason, final):
                    why = reason
                    if final:
                        break
        raise ProvisionError(
            f"the broker at {self._url} cannot be told ({why.rstrip('.')}); start it, and give "
            "the same command again."
        )


@contextlib.contextmanager
def enrolling(out: Path, fleet: str, url: str) -> Iterator[Enrolment]:
    """Yields a link to the broker of the fleet in `out`."""
    folder = out / "authority"
    if not (folder / PASSWORD).exists():
        raise ProvisionError(f"{folder / PASSWORD} is missing; only with it users are let in.")
    credentials = Credentials(
        ADMINISTRATOR,
        folder / PASSWORD,
        out / "broker" / "ca.pem",
        folder / CERTIFICATE,
        folder / KEY,
    )
    transport = MqttTransport(
        parse_address(url),
        client_id=f"{fleet}:{ADMINISTRATOR}-{secrets.token_hex(4)}",
        subscriptions=(RESPONSE,),
        credentials=credentials,
        keep_session=False,
    )
    with contextlib.closing(transport):
        enrolment = Enrolment(transport, fleet, url)
        enrolment.wait_for_link()
        yield enrolment
