"""The passes over the converter's model, one file each, in the order in which they run.

They make the file small on disk, and the model small in memory when it runs; none of them changes
what the model computes. `name_signatures` runs before them, since it needs the names.
"""

from __future__ import annotations

from collections.abc import Callable

from toolkit.conversion.flatbuffer import Model
from toolkit.conversion.passes.align_numbers import align_numbers
from toolkit.conversion.passes.deduplicate_buffers import deduplicate_buffers
from toolkit.conversion.passes.drop_default_options import drop_default_options
from toolkit.conversion.passes.drop_labels import drop_labels
from toolkit.conversion.passes.fill_zeros import fill_zeros
from toolkit.conversion.passes.flatten_broadcasts import flatten_broadcasts
from toolkit.conversion.passes.name_signatures import Names, name_signatures
from toolkit.conversion.passes.reshape_options import reshape_options
from toolkit.conversion.passes.schedule import schedule_operations
from toolkit.conversion.passes.share_tables import share_tables
from toolkit.conversion.passes.sort_opcodes import sort_opcodes

Pass = Callable[[Model], None]

PASSES: tuple[Pass, ...] = (
    fill_zeros,
    flatten_broadcasts,
    schedule_operations,
    drop_labels,
    drop_default_options,
    reshape_options,
    deduplicate_buffers,
    align_numbers,
    sort_opcodes,
    share_tables,  # the last: what is shared can no longer be changed on its own
)

__all__ = ["PASSES", "Names", "name_signatures"]
