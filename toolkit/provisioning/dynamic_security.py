"""mosquitto's dynamic security plugin: the file that it starts from, and commands to it; pure.

Every user has a role of his own, named `stemshare-<user>`: the plugin of mosquitto 2.0 knows no
`%u`. The administrator's name begins with an underscore, which no device's does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from broker.protocol.topics import Topics
from toolkit.provisioning.rights import rights_of

FILE = "dynamic-security.json"
ADMINISTRATOR = "_admin"
CONTROL = "$CONTROL/dynamic-security/v1"
RESPONSE = f"{CONTROL}/response"
_LIBRARY = "mosquitto_dynamic_security.so"

Command = dict[str, Any]


def plugin_path() -> Path:
    """Returns where the plugin is on this machine, or where Debian has it on many others."""
    found = sorted(Path("/usr/lib").glob(f"*/{_LIBRARY}"))
    return found[0] if found else Path("/usr/lib/x86_64-linux-gnu") / _LIBRARY


def role_name(user: str) -> str:
    return f"stemshare-{user}"


def role_rules(user: str, fleet: str) -> list[dict[str, Any]]:
    """Returns the access rules of a user; what no rule allows is refused."""
    rights = rights_of(user, Topics(fleet))
    reads = dict.fromkeys(_with_parts(topic) for topic in rights.reads)
    return [
        *_rules("publishClientSend", rights.writes),
        *_rules("publishClientReceive", reads),
        *_rules("subscribePattern", reads),
    ]


def initial_file(fleet: str, hashes: Mapping[str, str], administrator: str) -> str:
    """Returns the plugin's file for these users, whose passwords are hashed as `$7$…`."""
    roles = [{"rolename": role_name(user), "acls": role_rules(user, fleet)} for user in hashes]
    controls = [
        *_rules("publishClientSend", ["$CONTROL/#"]),
        *_rules("publishClientReceive", ["$CONTROL/#"]),
        *_rules("subscribePattern", ["$CONTROL/#"]),
    ]
    clients = [_client(user, role_name(user), hashed) for user, hashed in hashes.items()]
    clients.append(_client(ADMINISTRATOR, ADMINISTRATOR, administrator))
    table = {
        "defaultACLAccess": {
            "publishClientSend": False,
            "publishClientReceive": False,
            "subscribe": False,
            "unsubscribe": True,
        },
        "clients": clients,
        "roles": [*roles, {"rolename": ADMINISTRATOR, "acls": controls}],
    }
    return json.dumps(table, indent=1)


def letting_in(user: str, password: str, fleet: str) -> list[Command]:
    """Returns the commands that add a user, or give him another password; he may be known."""
    role, rules = role_name(user), role_rules(user, fleet)
    client = {"username": user, "password": password, "roles": [{"rolename": role}]}
    return [
        {"command": "createRole", "rolename": role, "acls": rules},
        {"command": "modifyRole", "rolename": role, "acls": rules},
        {"command": "createClient", **client},
        {"command": "modifyClient", **client},
    ]


def shutting_out(user: str) -> list[Command]:
    """Returns the commands that remove a user; the plugin ends his session."""
    return [
        {"command": "deleteClient", "username": user},
        {"command": "deleteRole", "rolename": role_name(user)},
    ]


def problems(response: Any) -> list[str]:
    """Returns what the plugin did not do; that somebody was there or gone already is none."""
    if not isinstance(response, dict) or not isinstance(response.get("responses"), list):
        return ["its answer cannot be understood"]
    errors = (str(entry.get("error", "")) for entry in response["responses"] if entry)
    return [e for e in errors if e and "already exists" not in e and "not found" not in e]


def _client(user: str, role: str, hashed: str) -> dict[str, Any]:
    _, _, iterations, salt, digest = hashed.split("$")
    return {
        "username": user,
        "roles": [{"rolename": role}],
        "password": digest,
        "salt": salt,
        "iterations": int(iterations),
    }


def _rules(kind: str, topics: Iterable[str]) -> list[dict[str, Any]]:
    return [{"acltype": kind, "topic": topic, "priority": 0, "allow": True} for topic in topics]


def _with_parts(topic: str) -> str:
    """`shared/+` and `shared` are one rule: `shared/#`."""
    return f"{topic.removesuffix('/+')}/#" if topic.endswith("/+") else topic
