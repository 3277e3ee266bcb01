"""How the page looks, in the light and in the dark, on a desk and on a phone."""

from __future__ import annotations

CSS = """
:root { --paper: #f4f6f8; --card: #ffffff; --ink: #1d232b; --soft: #5d6772; --edge: #e1e6eb;
  --line: #0072b2; }
body.body--dark { --paper: #14181d; --card: #1d232a; --ink: #e8ecf1; --soft: #9aa5b1;
  --edge: #2d353e; --line: #56b4e9; }
body { background: var(--paper) !important; color: var(--ink); }
.q-header { background: var(--card) !important; color: var(--ink) !important;
  border-bottom: 1px solid var(--edge); box-shadow: none !important; }
.nicegui-content { padding: 0; }
.wide { width: 100%; max-width: 1360px; margin: 0 auto; padding: 16px; gap: 16px; }
.panel { background: var(--card); border: 1px solid var(--edge); border-radius: 10px;
  padding: 14px 16px; box-shadow: none; width: 100%; min-width: 0; gap: 4px; }
.glance { display: grid; width: 100%; gap: 12px;
  grid-template-columns: repeat(auto-fit, minmax(210px, 1fr)); }
.pair { display: grid; width: 100%; gap: 16px; grid-template-columns: 3fr 2fr; }
.title { font-size: .8rem; font-weight: 600; letter-spacing: .02em; color: var(--soft);
  text-transform: none; }
.figure { font-size: 1.55rem; font-weight: 600; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.note { font-size: .82rem; color: var(--soft); overflow-wrap: anywhere; }
.row-line { display: flex; justify-content: space-between; gap: 12px; width: 100%;
  font-variant-numeric: tabular-nums; }
.mark { display: inline-block; width: 1.25em; text-align: center; font-weight: 700; }
.q-table__card, .q-table { background: transparent !important; color: inherit !important;
  box-shadow: none !important; }
.q-table th { font-size: .8rem; color: var(--soft); font-weight: 600; }
.q-table__bottom { border-color: var(--edge) !important; min-height: 36px; }
.q-table td { font-variant-numeric: tabular-nums; }
.q-table tbody td, .q-table th { border-color: var(--edge) !important; }
.bar { height: 5px; border-radius: 3px; background: var(--edge); overflow: hidden;
  margin-top: 3px; min-width: 90px; }
.bar > div { height: 100%; }
.device-card { border: 1px solid var(--edge); border-radius: 8px; padding: 10px 12px;
  margin-bottom: 8px; width: 100%; }
.spark { vertical-align: middle; }
.spark path { fill: none; stroke: currentColor; stroke-width: 1.6; }
*:focus-visible { outline: 2px solid #0072b2 !important; outline-offset: 2px; }
@media (max-width: 900px) { .pair { grid-template-columns: 1fr; } }
@media (max-width: 600px) { .wide { padding: 10px; gap: 10px; } .panel { padding: 12px; }
  .glance { grid-template-columns: 1fr 1fr; gap: 10px; }
  .glance > :last-child:nth-child(odd) { grid-column: span 2; } .figure { font-size: 1.25rem; }
  .hide-small { display: none !important; } }
"""

_SPARK = """<svg class="spark" width="92" height="22" aria-hidden="true"
  style="color: var(--line)"><path :d="props.row.spark" /></svg>"""
_NAME = """<q-btn flat dense no-caps padding="0 4px" class="text-weight-bold" align="left"
  :label="props.row.name" :aria-label="'details of ' + props.row.name"
  @click="() => $parent.$emit('open', props.row.name)" />"""
_STATE = """<span class="mark" :style="{color: props.row.colour}" aria-hidden="true"
  >{{ props.row.symbol }}</span>{{ props.row.state }}"""
_MEMORY = """{{ props.row.memory }}<div v-if="props.row.filled" class="bar"><div
  :style="{width: 100 * props.row.filled + '%', background: props.row.full}"></div></div>"""

# Cells of the table of devices, and on a phone the card that stands for a row.
SLOTS = {
    "body-cell-name": f"""<q-td :props="props">{_NAME}
      <div class="note" style="padding-left: 4px">{{{{ props.row.about }}}}</div></q-td>""",
    "body-cell-state": f"""<q-td :props="props" :data-state="props.row.state">{_STATE}
      <div class="note" style="white-space: normal; min-width: 130px; max-width: 260px"
      >{{{{ props.row.why }}}}</div></q-td>""",
    "body-cell-score": f"""<q-td :props="props"><div style="display: flex; align-items: center;
      justify-content: flex-end; gap: 10px">{_SPARK}<div style="min-width: 72px">
      {{{{ props.row.score }}}}<div class="note">{{{{ props.row.measure }}}}</div></div></div>
      </q-td>""",
    "body-cell-memory": f"""<q-td :props="props">{_MEMORY}</q-td>""",
    "item": f"""<div class="device-card" :data-state="props.row.state">
      <div class="row-line">{_NAME}<span>{_STATE}</span></div>
      <div class="note">{{{{ props.row.about }}}}<span v-if="props.row.why"> –
      {{{{ props.row.why }}}}</span></div>
      <div class="row-line"><span>{_SPARK}</span><span>{{{{ props.row.measure }}}}
      <b>{{{{ props.row.score }}}}</b></span></div>
      <div class="row-line note"><span>round {{{{ props.row.round }}}}</span>
      <span>{{{{ props.row.memory }}}}</span><span>{{{{ props.row.seen }}}}</span></div></div>""",
}
