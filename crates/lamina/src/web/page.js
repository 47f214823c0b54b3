// The page: asks the daemon each second, and changes what has changed.

import { hour, sparkline } from './charts.js';
import {
  MARKS, cell, count, duration, el, keyed, latency, listNotes, mark, mib, say, size, slower, table,
} from './dom.js';
import { errors, map, opened } from './volume.js';

const SECOND = 1000;
// Longer than the daemon may take.
const PATIENCE = 12 * SECOND;
const $ = (id) => document.getElementById(id);

// ---- The daemon --------------------------------------------------------------------------------------------------

const TOKEN = 'lamina-token';

// A token in the fragment of the address is kept for this tab, and taken out of the address.
function takeToken() {
  const told = new URLSearchParams(location.hash.slice(1)).get('token');
  if (told === null) return;
  sessionStorage.setItem(TOKEN, told);
  history.replaceState(null, '', location.pathname);
}

async function ask(path, body) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  if (body) headers['content-type'] = 'application/json';
  const answer = await fetch(path, { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body),
    signal: AbortSignal.timeout(PATIENCE) });
  const told = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(told.message ?? answer.statusText), { status: answer.status });
  return told;
}

const of = (path, name) => `${path}/${encodeURIComponent(name)}`;

// ---- Volumes -----------------------------------------------------------------------------------------------------

const open = new Set();
let volumes = [];
let minutes = {};

const whole = ({ activity: { read, write, other_iops: other } }) => read.iops + write.iops + other;
const slow = ({ activity: { read, write } }) => slower(read.p99_ns, write.p99_ns) ?? -1;
const ORDERS = {
  busy: (a, b) => whole(b) - whole(a),
  slow: (a, b) => slow(b) - slow(a),
  name: (a, b) => a.name.localeCompare(b.name, 'en', { numeric: true }),
};

function volumeBody(volume) {
  const state = el('span', { class: 'mark', 'aria-hidden': 'true' });
  const unseen = el('span', { class: 'unseen' });
  const id = `volume-${encodeURIComponent(volume.name)}`;
  const expands = { type: 'button', class: 'name', 'aria-expanded': 'false', 'aria-controls': id };
  const button = el('button', expands, volume.name);
  const note = el('span', { class: 'note' });
  const spark = sparkline();
  const names = ['n wide', '', ...Array(6).fill('n wide'), ...Array(3).fill('n narrow'), ...Array(3).fill('n wide')];
  const cells = names.map((name) => cell(name));
  cells[1].append(spark);
  const name = el('th', { scope: 'row' }, el('div', { class: 'volume' }, state, unseen, button, note));
  const row = el('tr', {}, name, ...cells);
  const below = el('tr', { id, class: 'below', hidden: true }, el('td', { colspan: cells.length + 1 }));
  const body = el('tbody', {}, row, below);
  Object.assign(body, { volume: volume.name, state, unseen, note, spark, cells, button, below });
  button.addEventListener('click', () => toggle(body, volume.name));
  return body;
}

function showVolume(body, volume) {
  const { activity: a } = volume;
  const [symbol, words] = MARKS[volume.state];
  say(body.state, symbol);
  mark(body.state, 'class', `mark ${volume.state}`);
  say(body.unseen, `${words}:`);
  say(body.note, [volume.kind, volume.read_only && 'read-only', volume.description].filter(Boolean).join(' · '));
  const both = a.read.bytes_per_second + a.write.bytes_per_second;
  const texts = [volume.size, null, count(a.read.iops), mib(a.read.bytes_per_second), latency(a.read.p99_ns),
    count(a.write.iops), mib(a.write.bytes_per_second), latency(a.write.p99_ns), count(whole(volume)), mib(both),
    latency(slower(a.read.p99_ns, a.write.p99_ns)), count(a.other_iops), a.queue, errors(a)];
  texts.forEach((text, at) => text !== null && say(body.cells[at], text));
  mark(body.cells[13], 'class', a.errors_new ? 'n wide failed' : 'n wide');
}

async function toggle(body, name) {
  const isOpen = !open.has(name);
  if (isOpen) open.add(name);
  else open.delete(name);
  mark(body.button, 'aria-expanded', isOpen);
  body.below.hidden = !isOpen;
  if (isOpen && !body.panel) {
    body.panel = opened(name, ask);
    body.below.firstElementChild.append(body.panel);
  }
  if (isOpen) {
    await Promise.all([refreshVolume(name), refreshHour(name)]).catch(gone);
  }
}

const bodyOf = (name) => $('table').nodes?.get(name);

async function refreshVolume(name) {
  const told = await ask(of('/web/volumes', name)).catch((e) => {
    // A volume that a change has taken away is gone from the page a moment later.
    if (e.status !== 404) throw e;
  });
  if (!told) return;
  bodyOf(name)?.panel?.show(told, lastState.notes);
}

async function refreshHour(name) {
  const told = await ask(of('/web/history', name));
  bodyOf(name)?.panel?.showHour(told);
}

function showVolumes() {
  const order = ORDERS[$('order').value];
  // An element that has the focus would lose it if it were moved.
  const rests = $('table').tBodies.length && $('table').contains(document.activeElement);
  if (order && !rests) volumes = [...volumes].sort(order);
  else if (order) volumes = settled(volumes);
  keyed($('table'), volumes, (volume) => volume.name, volumeBody, showVolume);
  showFound();
}

// The volumes in the order in which they are on the page.
function settled(all) {
  const places = new Map([...$('table').tBodies].map((body, at) => [body.volume, at]));
  return [...all].sort((a, b) => (places.get(a.name) ?? Infinity) - (places.get(b.name) ?? Infinity));
}

function showFound() {
  const words = $('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const { name, kind, description, state, device } of volumes) {
    const text = `${name} ${device} ${kind} ${description} ${state}`.toLowerCase();
    const isShown = words.every((word) => text.includes(word));
    found += isShown;
    const body = bodyOf(name);
    if (body.hidden === isShown) body.hidden = !isShown;
  }
  say($('found'), words.length ? `${found} of ${volumes.length}` : String(volumes.length));
  $('none').hidden = found > 0 || volumes.length === 0;
}

// ---- Jobs --------------------------------------------------------------------------------------------------------

let maySteer = false;

function jobItem(job) {
  const said = el('p', { class: 'quiet', role: 'status' });
  const send = async (steer) => {
    try {
      say(said, '');
      await ask(`${of('/web/devices', job.device)}/jobs/${encodeURIComponent(job.name)}`, steer);
      await refresh();
    } catch (e) {
      say(said, e.message);
    }
  };
  const label = (action) => `${action} ${job.name} of ${job.device}`;
  const button = (text, click) => el('button', { type: 'button', 'aria-label': label(text), on: { click } }, text);
  const item = el('li', { class: 'job' });
  const pause = button('Pause', () => send({ action: item.state === 'paused' ? 'resume' : 'pause' }));
  const cancel = button('Cancel', () => {
    if (confirm(`Cancel ${job.name} of ${job.device}? The manual of its layer says what that undoes.`)) {
      send({ action: 'cancel' });
    }
  });
  const limit = el('input', { type: 'number', min: '0', step: 'any', placeholder: 'no limit',
    'aria-label': `Limit of ${job.name} of ${job.device} in MiB/s` });
  const set = el('form', { on: { submit: (event) => {
    event.preventDefault();
    const bytes = Math.round(Number(limit.value) * 1048576);
    send(bytes > 0 ? { action: 'limit', limit: bytes } : { action: 'limit' });
  } } }, limit, ' MiB/s ', el('button', { type: 'submit' }, 'Limit'));
  const bar = el('progress', { max: '1', 'aria-label': label('Progress of') });
  const [name, figures, error] = [el('strong', {}, `${job.device} ${job.name}`), el('span', { class: 'figures' }),
    el('p', { class: 'failed' })];
  const controls = el('div', { class: 'controls' }, pause, cancel, set);
  item.append(name, bar, figures, controls, error, said);
  return Object.assign(item, { pause, figures, error, bar, controls, label });
}

function showJob(item, job) {
  item.state = job.state;
  const part = job.total ? Math.min(job.done / job.total, 1) : 1;
  if (item.bar.value !== part) item.bar.value = part;
  // Never 100 before the end.
  const percent = (Math.floor(part * 1000) / 10).toFixed(1);
  const left = job.seconds_left === null ? '' : `, ${duration(job.seconds_left)} left`;
  const limit = job.limit ? `, limit ${size(job.limit)}/s` : '';
  say(item.figures, `${job.state}, ${percent}% of ${size(job.total)}, ${size(job.rate)}/s${left}${limit}`);
  const action = job.state === 'paused' ? 'Resume' : 'Pause';
  say(item.pause, action);
  mark(item.pause, 'aria-label', item.label(action));
  say(item.error, job.error ? `cannot go on: ${job.error}` : '');
  item.controls.hidden = !maySteer || job.state === 'cancelled';
}

function showJobs(state) {
  maySteer = state.may_steer;
  $('jobs-section').hidden = state.jobs.length === 0;
  $('only-shows').hidden = maySteer;
  keyed($('jobs'), state.jobs, (job) => `${job.device} ${job.name}`, jobItem, showJob);
}

// ---- Tables of kinds, hosts, alerts, events ----------------------------------------------------------------------

// One table for each kind, with the devices of all hierarchies.
function kindsOf(tables) {
  const kinds = new Map();
  for (const one of tables) {
    const rows = one.rows.map(([device, cells]) => ({ key: device, cells: [device, ...cells] }));
    const known = kinds.get(one.kind);
    if (known) known.all.push(...rows);
    else kinds.set(one.kind, { ...one, all: rows });
  }
  return [...kinds.values()];
}

function kindSection(kind) {
  const columns = [[title(kind.heading), '', ''], ...kind.columns.map(({ title: text, help, is_text: isText }) =>
    [title(text), isText ? '' : 'n', help])];
  const inside = table(columns, kind.all, kind.summary);
  const id = `kind-${kind.kind}`;
  const label = `Devices of kind ${kind.kind}`;
  const scrolls = el('div', { class: 'scrolls', role: 'region', tabindex: '0', 'aria-label': label }, inside);
  const maps = el('div', { class: 'maps' });
  const section = el('section', { 'aria-labelledby': id },
    el('h2', { id }, kind.kind, ' ', el('span', { class: 'quiet' }, kind.summary)), scrolls, maps);
  section.show = ({ all, has_map: hasMap }) => {
    inside.fill(all);
    keyed(maps, hasMap ? all : [], (row) => row.key, (row) => map(row.key, ask), () => {});
  };
  return section;
}

// Titles of `lamina show` are in capitals, as a terminal has no other way to set them apart.
const title = (text) => text.charAt(0) + text.slice(1).toLowerCase();

const HOSTS = [['Host', '', ''], ['Address', '', 'Where it takes the writes of others'], ['State', '', ''],
  ['Heard', 'n', 'How long ago'], ['Volumes', '', '']];
const MEMBERS = [['Volume', '', ''], ['Member', '', 'A host with its flash'], ['State', '', ''],
  ['Lag', 'n', 'Writes that it lacks']];

function showCluster({ hosts, volumes: shared }) {
  $('cluster').hidden = shared.length === 0;
  if (shared.length === 0) return;
  const host = (h) => ({ key: `${h.vault} ${h.name}`, cells: [h.name, h.address ?? '–', h.here ? 'this host' : h.state,
    h.heard_seconds === null ? '–' : `${duration(h.heard_seconds)} ago`, h.volumes.join(', ')] });
  const member = (v) => (m, at) => ({ key: `${v.volume} ${m.flash} ${at}`,
    cells: [v.volume, m.host ?? m.flash, m.state, m.lag_writes ?? '–'] });
  fill($('hosts'), HOSTS, hosts.map(host), 'Hosts');
  fill($('members'), MEMBERS, shared.flatMap((v) => v.members.map(member(v))), 'Flashes with the writes of volumes');
  keyed($('promises'), shared, (v) => `${v.vault} ${v.volume}`, () => el('li'), (item, v) => {
    const dirty = v.dirty_bytes ? ` ${size(v.dirty_bytes)} are not on the store yet` : '';
    const alone = v.unprotected_bytes ? `, ${size(v.unprotected_bytes)} of them on one flash alone` : '';
    say(item, `${v.volume} (here ${v.role}, host ${v.host ?? 'none'}): ${v.promise}.${dirty}${alone}`);
  });
}

function fill(place, columns, rows, caption) {
  place.table ??= place.appendChild(table(columns, [], caption));
  place.table.fill(rows);
}

// Alerts are in sight; notices, of which each volume may have one, are a click away.
function showNotes(notes) {
  const alerts = notes.filter((note) => note.severity !== 'info');
  const infos = notes.filter((note) => note.severity === 'info');
  $('alerts').hidden = notes.length === 0;
  $('notices').hidden = infos.length === 0;
  say($('notices-title'), `${infos.length} notice${infos.length === 1 ? '' : 's'} without an alert`);
  listNotes($('notes'), alerts);
  listNotes($('infos'), infos);
}

let lastEvent = -1;

async function showEvents(newest) {
  if (newest === lastEvent) return;
  const events = await ask('/web/events');
  lastEvent = newest;
  $('no-events').hidden = events.length > 0;
  const make = ({ time_ms: ms, severity, device, message, times }) => {
    const time = el('time', { datetime: new Date(ms).toISOString() }, new Date(ms).toLocaleString('sv'));
    const part = (name, text) => el('span', { class: name }, text);
    const all = times > 1 ? `${message} (${times} times)` : message;
    const parts = [part('severity', severity), part('device', device ?? ''), part('message', all)];
    return el('li', { class: severity }, time, ...parts);
  };
  keyed($('events'), events, (event) => event.number, make, () => {});
}

// ---- The present -------------------------------------------------------------------------------------------------

const all = hour();
$('hour').append(all);

function update(state) {
  const begun = performance.now();
  const busy = `${(state.cpu * 100).toFixed(1)}% of a core`;
  say($('daemon'), `up ${duration(state.uptime_seconds)} · ${state.resident} resident · ${busy}`);
  say($('sentence'), `${MARKS[state.state][0]} ${state.sentence}`);
  mark($('sentence'), 'class', `sentence ${state.state}`);
  const title = state.state === 'ok' ? 'Lamina' : `(${state.state}) Lamina`;
  if (document.title !== title) document.title = title;
  say($('version'), `lamina ${state.version}, process ${state.pid}`);
  showNotes(state.notes);
  showJobs(state);
  volumes = state.volumes;
  showVolumes();
  keyed($('tables'), kindsOf(state.tables), (kind) => kind.kind, kindSection, (section, kind) => section.show(kind));
  showCluster(state.cluster);
  const took = performance.now() - begun;
  // For whoever measures the page.
  document.documentElement.dataset.updateMs = took.toFixed(2);
  say($('update'), `· drawn in ${Math.ceil(took)} ms`);
}

function showMinutes() {
  for (const [name, values] of Object.entries(minutes)) bodyOf(name)?.spark.show(values);
}

// ---- Time --------------------------------------------------------------------------------------------------------

let lost = null;
let sampled = 0;
let drawn = 0;
let lastState = null;

async function refresh() {
  const state = await ask('/web/state');
  // Another daemon has another page.
  if (lastState && lastState.version !== state.version) location.reload();
  lastState = state;
  update(state);
  $('content').hidden = false;
  $('login').hidden = true;
  back();
}

async function refreshAll() {
  await refresh();
  const now = Date.now();
  // A volume that is gone is not asked for.
  const shown = [...open].filter(bodyOf);
  await Promise.all(shown.map(refreshVolume));
  if (now - sampled >= 10 * SECOND) {
    sampled = now;
    const [told] = await Promise.all([ask('/web/history/*'), ...shown.map(refreshHour)]);
    all.show(told);
  }
  if (now - drawn >= 60 * SECOND || (Object.keys(minutes).length === 0 && now - drawn >= 10 * SECOND)) {
    drawn = now;
    minutes = await ask('/web/history');
    showMinutes();
  }
  await showEvents(lastState.last_event);
}

function back() {
  if (lost === null) return;
  lost = null;
  lastEvent = -1;
  $('offline').hidden = true;
  document.body.classList.remove('stale');
}

function gone(e) {
  if (e.status === 401) {
    say($('wrong'), sessionStorage.getItem(TOKEN) ? 'This is not the token of this daemon.' : '');
    sessionStorage.removeItem(TOKEN);
    $('content').hidden = true;
    $('login').hidden = false;
    say($('sentence'), 'The token is needed');
    mark($('sentence'), 'class', 'sentence');
    return;
  }
  lost ??= new Date();
  const time = lost.toLocaleTimeString('sv');
  const why = e.status ? e.message : 'the daemon does not answer';
  say($('sentence'), `${MARKS.failed[0]} No answer since ${time}`);
  mark($('sentence'), 'class', 'sentence failed');
  document.title = '(no answer) Lamina';
  say($('offline'), `Since ${time}: ${why}. Below is what was known then; the page goes on by itself.`);
  $('offline').hidden = false;
  document.body.classList.add('stale');
}

async function live() {
  for (;;) {
    const begun = Date.now();
    // A page that nobody sees asks nothing.
    if (!document.hidden && $('login').hidden) {
      try {
        await refreshAll();
      } catch (e) {
        gone(e);
      }
    }
    const rest = Math.max(100, SECOND - (Date.now() - begun));
    await new Promise((resolve) => setTimeout(resolve, rest));
  }
}

$('filter').addEventListener('input', showFound);
$('order').addEventListener('change', showVolumes);
$('login').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, $('token').value.trim());
  $('token').value = '';
  refresh().catch(gone);
});
document.addEventListener('keydown', (event) => {
  const types = event.target.matches('input, select, textarea');
  if (event.key === '/' && !types && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    $('filter').focus();
  }
});
addEventListener('hashchange', takeToken);
takeToken();
live();
