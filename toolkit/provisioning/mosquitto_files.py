"""The text of the files that mosquitto reads: configuration, access rules, passwords."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from importlib import resources

from broker.protocol.topics import Topics
from toolkit.errors import ConfigurationError
from toolkit.provisioning.dynamic_security import FILE, plugin_path
from toolkit.provisioning.rights import ROLES, rights_of

ITERATIONS = 101  # the default of mosquitto_passwd; 256 random bits need no slower hash
SALT_BYTES = 12  # the default of mosquitto_passwd
PASSWORD_BYTES = 32


def configuration(
    text: str | None, *, port: int, require_certificate: bool, dynamic: bool = False
) -> str:
    """Returns `text`, or the shipped mosquitto.conf if it is None, with these settings."""
    if not 1 <= port <= 65535:
        raise ConfigurationError(f"{port} is not a port; a port is a number from 1 to 65535.")
    if text is None:
        shipped = resources.files("broker.brokers") / "mosquitto" / "mosquitto.conf"
        text = shipped.read_text(encoding="utf-8")
    if dynamic and "plugin_opt_config_file" not in text:
        plugin = f"plugin {plugin_path()}\nplugin_opt_config_file {FILE}"
        text = _set(text, "password_file", "passwords").replace("password_file passwords", plugin)
        text = re.sub(r"^acl_file[ \t]+\S+\n", "", text, flags=re.MULTILINE)
        # mosquitto 2.0.11 counts the plugin's memory wrongly, and ends its clients at any limit.
        text = re.sub(
            r"^memory_limit ", "# with the plugin: memory_limit ", text, flags=re.MULTILINE
        )
    text = _set(text, "listener", str(port))
    return _set(text, "require_certificate", "true" if require_certificate else "false")


def access_rules(fleet: str) -> str:
    """Returns the access rules; `%u` stands for the user, so the rules cover all devices."""
    topics = Topics(fleet)
    device = rights_of("%u", topics)
    lines = [
        f"# Fleet {fleet!r}. What no line allows is refused.",
        "# mosquitto checks reading when it delivers, so a refused subscription looks granted.",
        "",
        "# Every user, as the device whose name is the user's. mosquitto warns of the patterns",
        "# without %u; they are meant: every device may read them.",
        *_rules("pattern", "write", device.writes),
        *_rules("pattern", "read", device.reads),
    ]
    for user in ROLES:
        own = rights_of(user, topics)
        lines += ["", f"user {user}", *_rules("topic", "read", own.reads)]
        lines += _rules("topic", "write", own.writes)
    return "\n".join(lines) + "\n"


def new_password() -> str:
    return secrets.token_urlsafe(PASSWORD_BYTES)


def hash_password(password: str, *, salt: bytes | None = None) -> str:
    """Returns mosquitto 2.0's `$7$iterations$salt$hash`: PBKDF2 with HMAC-SHA512, 64 bytes."""
    salt = salt or secrets.token_bytes(SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
    return "$".join(("", "7", str(ITERATIONS), _base64(salt), _base64(digest)))


def read_hashes(text: str) -> dict[str, str]:
    """Returns the hashes in a password file, by user."""
    pairs = (line.partition(":") for line in text.splitlines() if line.strip())
    return {user: hashed for user, _, hashed in pairs}


def password_lines(hashes: Mapping[str, str]) -> str:
    return "".join(f"{user}:{hashed}\n" for user, hashed in hashes.items())


def _rules(kind: str, access: str, topics: Iterable[str]) -> list[str]:
    return [f"{kind} {access} {topic}" for topic in topics]


def _set(text: str, option: str, value: str) -> str:
    """Returns the text with the option's first value replaced and everything else unchanged."""
    line = re.compile(rf"^{option}[ \t]+\S+", re.MULTILINE)
    if len(line.findall(text)) != 1:
        raise ConfigurationError(
            f"mosquitto.conf does not have exactly one line {option!r}; mend it, or delete the "
            "file to have it written anew."
        )
    return line.sub(f"{option} {value}", text)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
