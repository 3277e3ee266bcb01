"""What is in a bundle: signatures, operations, tensors and what is shared."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table

from firmware_sim.bundle.reader import Bundle


def inspect_bundle(bundle: Bundle) -> dict[str, Any]:
    """The manifest, with the operations of each signature of both models beside it."""
    return {
        **bundle.manifest.to_json(),
        "operations": {
            file.name: operations(file.read_bytes())
            for file in (bundle.model, bundle.infer, bundle.prefix)
            if file is not None
        },
    }


def operations(data: bytes) -> dict[str, dict[str, int]]:
    """How often each builtin operation is in each signature; custom ones (Flex) by their name."""
    from toolkit.conversion.flatbuffer import operation, parse

    model = parse(data)
    names = {s.subgraphIndex: s.signatureKey.decode() for s in model.signatureDefs or []}
    return {
        names.get(index, f"subgraph {index}"): dict(
            sorted(Counter(operation(model, op) for op in subgraph.operators).items())
        )
        for index, subgraph in enumerate(model.subgraphs)
    }


def frozen_lines(manifest: dict[str, Any]) -> list[str]:
    """What of the branch is frozen, what is received, and by which plan; nothing if all trains."""
    lines = []
    if manifest["update"] != "all":
        lines.append(f"update plan {manifest['update']}")
    if frozen := manifest.get("frozen"):
        numbers = sum(math.prod(shape) for shape in frozen["tensors"].values())
        layers = dict.fromkeys(name.rpartition("/")[0] for name in frozen["tensors"])
        names = ", ".join([*layers][:8]) + (", …" if len(layers) > 8 else "")
        lines.append(f"frozen: {numbers:,} numbers in {len(layers)} layers ({names})")
    if prefix := manifest.get("prefix"):
        shape = "×".join(map(str, prefix["features"]))
        lines.append(
            f"prefix in {prefix['precision']}, {prefix['micro_batch_size']} examples at once; "
            f"features of {shape} numbers"
        )
    received = [t["name"] for t in manifest["tensors"] if _shared(t) == "received"]
    if received:
        lines.append(f"received from the fleet, and not trained: {', '.join(received)}")
    return lines


def _shared(tensor: dict[str, Any]) -> str:
    if not tensor["shared"]:
        return ""
    return "shared" if tensor["trainable"] else "received"


def print_report(report: dict[str, Any], console: Console) -> None:
    branch, profile = report["branch"], report["profile"]
    console.print(
        f"[bold]{branch['name']}[/] for profile [bold]{profile['name']}[/]: "
        f"{branch['parameters']:,} parameters ({branch['shared_parameters']:,} shared), "
        f"{branch['operations']:,} operations"
    )
    if early := branch["learning"].get("early_output"):
        console.print(f"a cascade with a loss at both outputs, its own and that of layer {early}")
    console.print(f"slice fingerprint {report['fingerprint']}")
    if measured := report["measured"]:
        console.print(
            f"measured in {measured['runtime']} {measured['runtime_version']}, "
            f"{measured['threads']} thread(s): peak {measured['peak_bytes'] / 2**20:.0f} MiB, "
            f"{measured['step_seconds'] * 1e3:.3g} ms a step of {report['batch_size']} "
            f"in micro-batches of {report['micro_batch_size']}; "
            f"estimated peak {report['estimated']['peak_bytes'] / 2**20:.0f} MiB"
        )
    for line in frozen_lines(report):
        console.print(line, highlight=False)
    files = Table("file", "bytes", "sha256")
    for name, entry in report["files"].items():
        files.add_row(name, f"{entry['bytes']:,}", entry["sha256"][:16] + "…")
    tensors = Table("tensor", "shape", "shared", "trainable")
    for tensor in report["tensors"]:
        tensors.add_row(
            tensor["name"],
            "×".join(map(str, tensor["shape"])) or "scalar",
            _shared(tensor),
            "yes" if tensor["trainable"] else "",
        )
    signatures = Table("signature", "takes", "operations")
    counted = report["operations"]["model.tflite"]
    for name, signature in report["signatures"].items():
        takes = ", ".join(signature["inputs"]) if len(signature["inputs"]) < 8 else "all tensors"
        listed = ", ".join(f"{op} {n}" for op, n in counted[name].items())
        signatures.add_row(name, takes or "nothing", listed)
    for table in (files, tensors, signatures):
        console.print(table)
