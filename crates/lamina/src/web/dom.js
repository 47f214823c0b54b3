// Elements and numbers. Text reaches the page as text alone: nothing here parses markup.

// An element with attributes and children; `class`, `aria-...` as they are written, `on` for listeners.
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'on') {
      Object.entries(value).forEach(([event, listener]) => element.addEventListener(event, listener));
    } else if (value !== undefined && value !== false) {
      element.setAttribute(key, value === true ? '' : value);
    }
  }
  element.append(...children);
  return element;
}

const SVG = 'http://www.w3.org/2000/svg';

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  element.append(...children);
  return element;
}

// The text of a node; nothing is touched that stays the same.
export function say(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function mark(node, name, value) {
  if (value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// Makes the children of `parent` those of `items`, in their order: an item that was there keeps its element, with its
// focus, its selection and what a person has typed.
export function keyed(parent, items, key, make, update) {
  parent.nodes ??= new Map();
  const wanted = new Set();
  // The head of a table stays.
  let next = parent.tHead ? parent.tHead.nextElementSibling : parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    if (wanted.has(name)) continue;
    wanted.add(name);
    let node = parent.nodes.get(name);
    if (!node) {
      node = make(item);
      parent.nodes.set(name, node);
    }
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
    update(node, item);
  }
  for (const [name, node] of parent.nodes) {
    if (!wanted.has(name)) {
      node.remove();
      parent.nodes.delete(name);
    }
  }
}

// States: a sign, for who sees no colours, and words.
export const MARKS = {
  ok: ['●', 'all is well'],
  info: ['ℹ', 'notice'],
  degraded: ['▲', 'degraded'],
  failed: ['■', 'failed'],
};

// Sentences with their severity.
export function listNotes(list, notes) {
  const numbered = notes.map((note, at) => ({ ...note, at }));
  const make = () => el('li', {}, el('span'), ' ', el('span'));
  keyed(list, numbered, (note) => note.at, make, (item, { severity, text }) => {
    mark(item, 'class', severity);
    say(item.firstChild, MARKS[severity].join(' '));
    say(item.lastChild, text);
  });
}

// A number in five characters or so: 0, 7.5, 812, 12.3k, 1.2M.
export function count(n) {
  if (n === 0) return '0';
  if (n < 9.95) return Number.isInteger(n) ? String(n) : n.toFixed(1);
  if (n < 9999.5) return n.toFixed(0);
  if (n < 999950) return (n / 1e3).toFixed(1) + 'k';
  return (n / 1e6).toFixed(1) + 'M';
}

export const mib = (bytes) => count(bytes / 1048576);

// Bytes for people: 4KiB, 1.25TiB.
export function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1023.5 && unit < 4) {
    bytes /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return Number(bytes.toFixed(digits)) + units[unit];
}

// A latency: 640ns, 81µs, 1.2ms, 2.1s; `–` if there was no request.
export function latency(ns) {
  if (ns === null || ns === undefined) return '–';
  if (ns < 1e3) return `${ns.toFixed(0)}ns`;
  const [value, unit] = ns < 1e6 ? [ns / 1e3, 'µs'] : ns < 1e9 ? [ns / 1e6, 'ms'] : [ns / 1e9, 's'];
  return value.toFixed(value < 9.95 ? 1 : 0) + unit;
}

// The two largest units of a time: 3d4h, 2h5m, 7m12s, 9s.
export function duration(seconds) {
  const s = Math.floor(seconds);
  const [d, h, m] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (d) return `${d}d${h}h`;
  if (h) return `${h}h${m}m`;
  if (m) return `${m}m${s % 60}s`;
  return `${s}s`;
}

// The larger of two latencies, of which each may be unknown.
export const slower = (a, b) => (a === null ? b : b === null ? a : Math.max(a, b));

// Cells of a row that are said to be of the same class as their heading.
export const cell = (name, text = '') => el('td', { class: name }, text);

// A table of texts: columns are [title, class, help].
export function table(columns, rows, caption) {
  const heading = ([title, name, help]) =>
    el('th', { scope: 'col', class: name }, help ? el('abbr', { title: help }, title) : title);
  const body = el('tbody');
  const made = el('table', {}, el('caption', { class: 'unseen' }, caption),
    el('thead', {}, el('tr', {}, ...columns.map(heading))), body);
  made.fill = (all) => keyed(body, all, (row) => row.key, () => el('tr'), (tr, row) => {
    keyed(tr, row.cells.map((text, at) => ({ text, at })), (c) => c.at,
      (c) => (c.at === 0 ? el('th', { scope: 'row', class: columns[0][1] }) : cell(columns[c.at][1])),
      (td, c) => say(td, c.text));
  });
  made.fill(rows);
  return made;
}
