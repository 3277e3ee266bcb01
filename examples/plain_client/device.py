"""A device of a fleet in one file, written from docs/protocol.md; it imports nothing of stemshare.

It trains softmax regression in numpy, and shares kernel and bias. It may be killed at any moment:
the same command continues from the file in --state.
"""

import argparse
import base64
import hashlib
import json
import os
import queue
import secrets
import struct
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import paho.mqtt.client as mqtt
import safetensors.numpy as safetensors

ASK_SECONDS = 3.0  # without a θ_shared to train from, until it announces itself again
LARGEST = 2**26  # bytes of a message in parts
# Reasons that refuse an update, and not the device.
GO_ON = ("late", "early", "foreign", "replayed", "second", "finished")
NOTHING = {"round": -1, "last": False}  # in place of the fields of a θ_shared
CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def encode(kind, fields, tensors=None) -> bytes:
    """Returns a message: a safetensors file with one string of metadata."""
    return safetensors.save(tensors or {}, {"stemshare": json.dumps({"kind": kind, **fields})})


def decode(payload: bytes):
    """Returns the fields, `kind` among them, and the tensors of a message."""
    (length,) = struct.unpack_from("<Q", payload)
    header = json.loads(payload[8 : 8 + length])
    return json.loads(header["__metadata__"]["stemshare"]), safetensors.load(payload)


def check_signature(key: bytes, topic, fields, tensors):
    """Raises InvalidSignature if the holder of the key has not signed this for this topic."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    rest = {k: v for k, v in fields.items() if k not in ("kind", "signature")}
    text = CANONICAL.encode({"topic": topic, "kind": fields["kind"], "fields": rest})
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(CANONICAL.encode([name, tensor.dtype.str, tensor.shape]).encode())
        digest.update(tensor.tobytes())
    signature = base64.b64decode(fields["signature"])
    Ed25519PublicKey.from_public_bytes(key).verify(signature, digest.digest())


class Device:
    def __init__(self, options):
        self.options = options
        manifest = json.loads((options.bundle / "manifest.json").read_text("utf-8"))
        self.fingerprint = manifest["fingerprint"]
        self.slice = {t["name"]: t for t in manifest["tensors"] if t["shared"]}
        self.kernel, self.bias = sorted(self.slice, key=lambda n: -len(self.slice[n]["shape"]))
        with np.load(options.data) as data:
            x, labels = data["images"].reshape(len(data["labels"]), -1), data["labels"]
        x = np.float32(x * manifest["branch"]["input"]["scale"])
        count = len(x) * 4 // 5  # the rest is held out
        begin, end = (int(float(part) * count) for part in options.share.split(":"))
        self.data, self.held_out = (x[begin:end], labels[begin:end]), (x[count:], labels[count:])
        self.key = options.aggregator_key and bytes.fromhex(options.aggregator_key.read_text())
        self.root = f"stemshare/v1/{options.fleet}"
        self.own_root = f"{self.root}/device/{options.id}"
        self.instance, self.inbox, self.parts = secrets.token_hex(8), queue.Queue(), {}
        self.aggregator, self.finished, self.joined = {}, False, ""  # joined: in which run
        self.shared, self.theta = NOTHING, {}  # newest θ_shared of the run
        self.due = 0.0  # when the update, or the birth, is sent again
        self.run, self.trained, self.nonce, self.pending = "", -1, "", b""  # kept in --state
        self.file = options.state / "plain.safetensors"
        if self.file.exists():
            kept, tensors = decode(self.file.read_bytes())
            self.run, self.trained, self.nonce = kept["run"], kept["trained"], kept["nonce"]
            self.pending = tensors["pending"].tobytes()
            self.say("restored", round=self.trained)

    def store(self, theta):
        """Writes beside the old file, syncs, and takes its place: the file is always whole."""
        fields = {"run": self.run, "trained": self.trained, "nonce": self.nonce}
        pending = np.frombuffer(self.pending, np.uint8)
        with self.file.with_suffix(".new").open("wb") as file:
            file.write(encode("plain", fields, {**theta, "pending": pending}))
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(self.file)

    def state(self, online: bool) -> bytes:
        fields = {"device": self.options.id, "online": online, "fingerprint": self.fingerprint}
        keys = ("shape", "dtype", "fingerprint")
        fields["tensors_shared"] = {n: {k: t[k] for k in keys} for n, t in self.slice.items()}
        fields["about"] = {"profile": "plain", "branch": "softmax", "runtime": "numpy"}
        asks = self.shared["round"] < self.aggregator.get("round", -1)
        return encode("device", fields | {"instance": self.instance, "asks": online and asks})

    def announce(self, online=True):
        self.client.publish(f"{self.own_root}/state", self.state(online), 1, retain=True)

    def act(self):
        """Trains, or sends what is due; called when everything that has come is read."""
        now, newer = time.monotonic(), self.shared["round"] > self.trained
        if not self.client.is_connected() or self.aggregator.get("status", "offline") == "offline":
            return
        if newer and self.aggregator["mode"] == "sync":
            self.pending = b""  # its round is over: a verdict that is still missing changes nothing
        if newer and not self.pending and self.joined == self.run and not self.shared["last"]:
            self.train_round()
            self.due = now
        if now >= self.due:
            if self.pending:
                self.client.publish(f"{self.own_root}/update", self.pending, 1)
            else:
                self.announce()
            self.due = now + self.options.resend_seconds

    def train_round(self):
        x, labels = self.data
        theta = {name: tensor.copy() for name, tensor in self.theta.items()}
        self.trained, self.nonce = self.shared["round"], secrets.token_hex(8)
        rng = np.random.default_rng(self.trained)
        for _ in range(self.options.steps):  # gradient descent on the mean cross-entropy
            batch = rng.integers(0, len(x), 32)
            p = np.exp(x[batch] @ theta[self.kernel] + theta[self.bias])
            p /= p.sum(1, keepdims=True)
            p[np.arange(len(p)), labels[batch]] -= 1  # d loss / d scores, times the batch size
            theta[self.kernel] -= self.options.rate / len(p) * x[batch].T @ p
            theta[self.bias] -= self.options.rate / len(p) * p.sum(0)
        slice_ = base64.b64encode(bytes.fromhex(self.fingerprint)).decode().rstrip("=")
        update = {"d": self.options.id, "run": self.run, "r": self.trained, "n": self.nonce}
        update |= {"s": len(x), "x": "delta", "f": slice_, "e": "float32"}
        self.pending = encode("update", update, {n: theta[n] - self.theta[n] for n in theta})
        self.store(theta)  # before it is sent: after a kill the same bytes are sent again
        self.say("trained", round=self.trained)

    def receive(self, topic, payload):
        if topic == "connected":
            topics = [f"{self.root}/{end}" for end in ("aggregator/state", "shared", "shared/+")]
            topics += [f"{self.own_root}/{end}" for end in ("shared", "shared/+", "verdict")]
            self.client.subscribe([(topic, 1) for topic in topics])
            self.announce()
            self.due = time.monotonic() + (0.0 if self.pending else ASK_SECONDS)
            return
        try:
            fields, tensors = decode(payload)
            if fields["kind"] == "part":
                topic = topic.rpartition("/")[0]
                if not (payload := self.assemble(topic, fields, tensors["part"])):
                    return
                fields, tensors = decode(payload)
            if self.key:
                signed_for = f"{self.root}/shared" if fields["kind"] == "shared" else topic
                check_signature(self.key, signed_for, fields, tensors)
            getattr(self, f"on_{fields['kind']}")(fields, tensors)
        except Exception as error:  # whatever is wrong with a message: nothing of it counts
            self.say("ignored", topic=topic, why=repr(error))

    def assemble(self, topic, part, data) -> bytes:
        """Returns the message once all of its parts are here, and nothing before."""
        if part["bytes"] > LARGEST:
            raise ValueError("larger than any θ_shared")
        # By digest: the broker may still have parts of an older message, so some are kept.
        kept = self.parts[topic] = dict([*self.parts.get(topic, {}).items()][-2:])
        pieces = kept.setdefault(part["digest"], {})
        pieces[part["index"]] = data.tobytes()
        whole = b"".join(pieces[i] for i in sorted(pieces)) if len(pieces) == part["count"] else b""
        return whole if hashlib.sha256(whole).hexdigest() == part["digest"] else b""

    def on_aggregator(self, fields, _):
        known, self.aggregator = self.aggregator, fields
        self.finished = fields["status"] == "finished"
        if fields["exchange"] != "delta":
            sys.exit("error: this device sends deltas, and the fleet exchanges gradients.")
        if fields["run"] != self.run:
            self.run, self.trained, self.pending, self.shared = fields["run"], -1, b"", NOTHING
        if known and fields["instance"] != known["instance"]:
            self.announce()

    def on_shared(self, fields, tensors):
        theta = {name: np.float32(tensors[name]) for name in self.slice}
        for name, tensor in theta.items():
            if list(tensor.shape) != self.slice[name]["shape"] or not np.isfinite(tensor).all():
                raise ValueError(f"{name} has another shape, or is not finite")
        newer = (fields["round"], fields["last"]) > (self.shared["round"], self.shared["last"])
        if fields["run"] == self.run and newer:
            self.shared, self.theta = fields, theta

    def on_verdict(self, fields, _):
        join, reason = fields["about"] == "join", fields["reason"]
        self.say("verdict", about=fields["about"], round=fields["round"], reason=reason)
        if fields["run"] != self.run or fields["nonce"] not in (self.fingerprint, self.nonce):
            return
        if reason and (join or reason not in GO_ON):
            sys.exit(f"error: the aggregator refused this device: {fields['text']!a}")
        if reason == "early":  # the aggregator was set back: its next θ_shared is older than ours
            self.shared = NOTHING
        if join:
            self.joined = self.run
        else:
            self.pending, self.due = b"", time.monotonic() + ASK_SECONDS

    def live(self):
        client_id = f"{self.options.fleet}:{self.options.id}"
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id, clean_session=False)
        self.client.will_set(f"{self.own_root}/state", self.state(online=False), 1, retain=True)
        self.client.on_connect = lambda *_: self.inbox.put(("connected", b""))
        self.client.on_message = lambda *a: self.inbox.put((a[2].topic, a[2].payload))
        address = urlsplit(self.options.broker)
        self.client.connect_async(address.hostname, address.port or 1883, keepalive=60)
        self.client.loop_start()  # connects, and again whenever the link is lost
        # Until the last θ_shared of a run that this device was in, if the aggregator agrees.
        while not (self.shared["last"] and self.finished and self.trained >= 0):
            try:
                self.receive(*self.inbox.get(timeout=0.1))
            except queue.Empty:
                self.act()
        self.pending = b""
        self.store(self.theta)
        self.announce(online=False)  # is sent before the client disconnects, if there is a link
        self.client.disconnect()
        self.client.loop_stop()
        scores = self.held_out[0] @ self.theta[self.kernel] + self.theta[self.bias]
        print(json.dumps({"accuracy": float((scores.argmax(1) == self.held_out[1]).mean())}))

    def say(self, event, **fields):
        print(json.dumps({"event": event, **fields}), file=sys.stderr, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--fleet", required=True)
    add("--id", required=True)
    add("--bundle", type=Path, required=True, help="folder, of which manifest.json is read")
    add("--data", type=Path, required=True, help=".npz with images and labels")
    add("--state", type=Path, required=True, help="folder of its checkpoint")
    add("--broker", default="mqtt://127.0.0.1:1883", help="default %(default)s")
    add("--share", default="0:1", help="part of the training data, as 0:0.5 (default all)")
    add("--steps", type=int, default=100, help="mini-batches in a round (default %(default)s)")
    add("--rate", type=float, default=0.1, help="of learning (default %(default)s)")
    add("--resend-seconds", type=float, default=10.0, help="default %(default)s")
    add("--aggregator-key", type=Path, help="hexadecimal; then only what it signed is believed")
    options = parser.parse_args()
    options.state.mkdir(parents=True, exist_ok=True)
    Device(options).live()
