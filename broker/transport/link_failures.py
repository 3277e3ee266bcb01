"""Why a connection to a broker failed, in one sentence, and whether trying again can help."""

from __future__ import annotations

import socket
import ssl

from paho.mqtt.reasoncodes import ReasonCode

from broker.transport.address import Address
from broker.transport.transport import Disconnected

WRONG_VERSION = 0x84
NOT_AUTHORISED = 0x87
TAKEN_OVER = 0x8E
_FINAL = {  # reason codes of MQTT 5; paho translates those of 3.1.1
    0x85: "does not accept the client id {client_id!r}",
    0x86: "does not accept the user or the password",
    NOT_AUTHORISED: "does not let this user in: user, password or permission is wrong",
    0x8A: "has banned this client",
    0x8C: "wants another kind of authentication",
}
_ANOTHER = "; if it does so again and again, another client may have the same name"


def explain_refusal(code: ReasonCode, address: Address, client_id: str) -> Disconnected:
    """Returns why the broker answered CONNECT with a failure."""
    known = _FINAL.get(code.value)
    if known is None:
        return Disconnected(f"{address} refuses the connection: {code.getName()}.", final=False)
    return Disconnected(f"{address} {known.format(client_id=client_id)}.", final=True)


def explain(error: OSError | None, address: Address, hint: str) -> Disconnected:
    """Returns why a connection could not be made or kept.

    `error` is None at the ordinary end of the stream; `hint` is what a closed connection may mean
    at this moment.
    """
    match error:
        case None | ssl.SSLEOFError() | ConnectionResetError() | BrokenPipeError():
            return Disconnected(f"{address} hung up{hint or _ANOTHER}.", final=False)
        case ssl.SSLCertVerificationError():
            what = error.verify_message.rstrip(".")
            return Disconnected(f"the certificate of {address} is refused: {what}.", final=True)
        case ssl.SSLError():
            reason = error.reason or "unknown"
            if "ALERT" in reason and any(
                word in reason for word in ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
            ):
                said = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
                sentence = f"{address} refuses this client's certificate: {said}."
                return Disconnected(sentence, final=True)
            if reason in ("WRONG_VERSION_NUMBER", "UNSUPPORTED_PROTOCOL", "HTTP_REQUEST") or (
                "PROTOCOL_VERSION" in reason
            ):
                return Disconnected(f"{address} does not speak TLS 1.2 or newer.", final=True)
            return Disconnected(f"TLS with {address} failed: {reason.lower()}.", final=False)
        case socket.gaierror():
            return Disconnected(f"the host of {address} is not known.", final=False)
        case ConnectionRefusedError():
            return Disconnected(f"nothing listens at {address}.", final=False)
        case TimeoutError():
            return Disconnected(f"{address} cannot be reached in time.", final=False)
    return Disconnected(f"{address} cannot be reached: {error.strerror or error}.", final=False)
