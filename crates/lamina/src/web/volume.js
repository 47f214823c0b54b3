// An opened volume: its tree with rates and latency at each device, its last hour, where its time goes, its devices.

import { hour, strips } from './charts.js';
import { cell, count, el, keyed, latency, listNotes, mark, mib, say } from './dom.js';

const TITLES = [
  ['Device', '', ''],
  ['Kind', '', ''],
  ['Size', 'n wide', ''],
  ['Read/s', 'n', ''],
  ['MiB/s', 'n wide', 'Read'],
  ['p99', 'n', 'Of reads: 99 of 100 took at most so long, with all below'],
  ['Write/s', 'n', ''],
  ['MiB/s', 'n wide', 'Written'],
  ['p99', 'n', 'Of writes: 99 of 100 took at most so long, with all below'],
  ['Other/s', 'n wide', 'Flush, discard, zero'],
  ['Queue', 'n wide', 'Requests in flight'],
  ['Self', 'n', 'The part of the time of a request of this volume that it spends in this device, on average'],
  ['Errors', 'n', 'Failed requests since the device was opened'],
];

function values({ kind, again, size, activity: a, self_us: self }) {
  const own = self === null ? '–' : latency(self * 1000);
  if (again || !a) return [kind, again ? 'see above' : size, ...Array(8).fill(''), own, ''];
  const { read, write } = a;
  return [kind, size, count(read.iops), mib(read.bytes_per_second), latency(read.p99_ns), count(write.iops),
    mib(write.bytes_per_second), latency(write.p99_ns), count(a.other_iops), a.queue, own, errors(a)];
}

export const errors = (a) => (a.errors_new ? `${count(a.errors)} (+${count(a.errors_new)})` : count(a.errors));

// The part of a page below the row of a volume.
export function opened(name, ask) {
  const about = el('p', { class: 'about' });
  const promise = el('p', { class: 'promise' });
  const notes = el('ul', { class: 'notes' });
  const rows = el('tbody');
  const heading = ([title, kind, help]) =>
    el('th', { scope: 'col', class: kind }, help ? el('abbr', { title: help }, title) : title);
  const tree = el('table', { class: 'tree' }, el('caption', { class: 'unseen' }, `Devices of ${name}`),
    el('thead', {}, el('tr', {}, ...TITLES.map(heading))), rows);
  const charts = hour();
  const why = el('pre', { tabindex: '0', 'aria-label': 'Where the time goes' });
  const devices = el('div', { class: 'devices' });
  const scrolls = (label, ...children) =>
    el('div', { class: 'scrolls', role: 'region', tabindex: '0', 'aria-label': label }, ...children);
  const node = el('div', { class: 'opened' }, about, promise, notes, scrolls(`The tree of ${name}`, tree), charts,
    el('details', {}, el('summary', {}, 'Where the time goes'), why), devices);
  node.show = (volume, all) => {
    const names = new Set(volume.rows.map((row) => row.name));
    listNotes(notes, all.filter((note) => names.has(note.about)));
    const places = volume.endpoints.map(({ protocol, address }) => `${protocol} ${address}`).join(', ');
    const description = volume.description ? `${volume.description} — ` : '';
    const users = volume.clients.map(({ name, connections }) =>
      connections > 1 ? `${name} (${connections} connections)` : name);
    say(about, `${description}${volume.device} of ${volume.file}, core ${volume.core}; ${places || 'no address'}; ` +
      (users.length ? `used by ${users.join(', ')}` : 'no client now'));
    promise.hidden = !volume.promise;
    say(promise, volume.promise ?? '');
    keyed(rows, volume.rows.map((row, at) => ({ ...row, at })), (row) => `${row.at} ${row.name}`, treeRow, showRow);
    say(why, volume.why);
    keyed(devices, volume.devices, (device) => `${device.name} ${device.kind}`, (device) => declared(device, ask),
      (details, device) => details.show(device));
  };
  node.showHour = charts.show;
  return node;
}

function treeRow(row) {
  const branches = el('span', { class: 'branches', 'aria-hidden': 'true' }, row.branches);
  const name = el('th', { scope: 'row' }, branches, row.name);
  return el('tr', {}, name, ...TITLES.slice(1).map(([, kind]) => cell(kind)));
}

function showRow(tr, row) {
  mark(tr, 'class', row.unreachable ? 'failed' : false);
  values(row).forEach((text, at) => say(tr.children[at + 1], text));
}

// A device with everything that its kind declares: figures, commands, a heat map.
function declared(device, ask) {
  const figures = el('tbody');
  const kind = el('span', { class: 'quiet' }, `${device.kind}: ${device.summary}`);
  const summary = el('summary', {}, device.name, ' ', kind);
  const node = el('details', {}, summary);
  if (device.figures.length) {
    const caption = el('caption', { class: 'unseen' }, `Figures of ${device.name}`);
    node.append(el('table', { class: 'figures' }, caption, figures));
  }
  if (device.has_map) node.append(map(device.name, ask));
  if (device.commands) {
    const text = el('pre', { tabindex: '0', 'aria-label': `Commands of ${device.name}` }, device.commands);
    node.append(el('details', {}, el('summary', {}, `Commands, for lamina ctl ${device.name}`), text));
  }
  if (node.children.length === 1) {
    node.append(el('p', { class: 'quiet' }, 'This kind declares no figures and no commands.'));
  }
  node.show = (now) => {
    if (!node.open) return;
    const row = (figure) =>
      el('tr', {}, el('th', { scope: 'row' }, figure.label), cell('n'), cell('quiet', figure.help));
    keyed(figures, now.figures, (figure) => figure.label, row, (tr, figure) => say(tr.children[1], figure.value));
  };
  node.addEventListener('toggle', () => node.show(device));
  return node;
}

// A button, and the heat map of a device below it: made when it is asked for, as that is work for the device.
export function map(name, ask) {
  const place = el('div', { 'aria-live': 'polite' });
  const show = async () => {
    try {
      place.replaceChildren(strips(await ask(`/web/maps/${encodeURIComponent(name)}`)));
    } catch (e) {
      place.replaceChildren(el('p', { class: 'quiet' }, e.message));
    }
  };
  const button = el('button', { type: 'button', on: { click: show } }, `Heat map of ${name}`);
  return el('div', { class: 'map' }, button, place);
}
