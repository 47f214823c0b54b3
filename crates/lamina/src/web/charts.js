// Charts: lines in SVG, heat maps on a canvas. Each says its numbers in words too.

import { count, el, latency, mark, mib, say, svg } from './dom.js';

const WIDTH = 360;
const HEIGHT = 72;
// Samples of a minute, of the shortest time that is drawn, and of the longest.
const [MINUTE, SLOTS_MIN, SLOTS_MAX] = [6, 30, 360];

// A daemon that has begun a moment ago has little to show: the width of a chart is then less than an hour.
const slotsFor = (samples) => Math.min(SLOTS_MAX, Math.max(SLOTS_MIN, Math.ceil(samples / SLOTS_MIN) * SLOTS_MIN));
const ago = (slots) => (slots === SLOTS_MAX ? '1 h ago' : `${slots / MINUTE} min ago`);

// A small line of the last hour, beside a name.
export function sparkline() {
  const line = svg('path', { class: 'line' });
  const area = svg('path', { class: 'area' });
  const shape = { class: 'spark', viewBox: '0 0 60 18', preserveAspectRatio: 'none', role: 'img' };
  const node = svg('svg', shape, area, line);
  node.show = (values) => {
    const most = Math.max(1, ...values.map((value) => value ?? 0));
    const d = path(values, most, 60, 17, Math.max(15, values.length));
    mark(line, 'd', d.line);
    mark(area, 'd', d.area);
    const known = values.filter((value) => value !== null);
    const words = known.length ? `at most ${count(Math.max(...known))}` : 'no samples yet';
    mark(node, 'aria-label', `requests a second in the last hour: ${words}`);
  };
  return node;
}

// The path of values, the newest at the right; a gap where one is unknown. `slots` is how many a whole width has.
function path(values, most, width, height, slots) {
  let [line, area, start, last] = ['', '', null, null];
  const close = () => {
    if (start !== null) area += `L${last},${height + 1}L${start},${height + 1}Z`;
    start = null;
  };
  values.forEach((value, at) => {
    if (value === null) return close();
    const x = (((slots - values.length + at + 1) * width) / slots).toFixed(1);
    const y = (height - (value / most) * (height - 2)).toFixed(1);
    // A lone sample is seen as well.
    const before = (x - width / slots).toFixed(1);
    const step = start === null ? `M${before},${y}L${x},${y}` : `L${x},${y}`;
    if (start === null) start = before;
    line += step;
    area += step;
    last = x;
  });
  close();
  return { line, area };
}

// A chart with one or two lines over an hour. `format` writes a value.
export function lineChart(title, names, format) {
  const shown = names.map((name, n) => ({ name, line: svg('path', { class: `line line-${n}` }),
    area: svg('path', { class: `area area-${n}` }) }));
  const grid = [0.5, 1].map((part) => {
    const y = HEIGHT - part * (HEIGHT - 2);
    return svg('line', { class: 'grid', x1: 0, x2: WIDTH, y1: y, y2: y });
  });
  const picture = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT + 1}`, preserveAspectRatio: 'none', role: 'img' },
    ...grid, ...shown.flatMap(({ area, line }) => [area, line]));
  const most = el('span', { class: 'most' });
  const [now, start] = [el('span', { class: 'now' }), el('span')];
  const node = el('figure', { class: 'chart' }, el('figcaption', {}, el('span', {}, title), now),
    el('div', { class: 'plot' }, picture, most),
    el('div', { class: 'axis', 'aria-hidden': 'true' }, start, el('span', {}, 'now')));
  node.show = (columns) => {
    const known = columns.flat().filter((value) => value !== null);
    const top = known.length ? nice(Math.max(...known)) : 1;
    const slots = slotsFor(columns[0].length);
    say(start, ago(slots));
    shown.forEach(({ line, area }, n) => {
      const d = path(columns[n], top, WIDTH, HEIGHT, slots);
      mark(line, 'd', d.line);
      mark(area, 'd', d.area);
    });
    const newest = columns.map((column) => column[column.length - 1] ?? null);
    const words = newest.map((value, n) => `${names[n]} ${value === null ? '–' : format(value)}`.trim());
    say(now, words.join(', '));
    say(most, known.length ? format(top) : '');
    const largest = known.length ? `, at most ${format(Math.max(...known))}` : '';
    mark(picture, 'aria-label', `${title}: now ${words.join(', ')}${largest} in the last hour`);
  };
  return node;
}

// The next round number above.
function nice(value) {
  if (value <= 0) return 1;
  const scale = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 5, 10].map((step) => step * scale).find((step) => step >= value * 0.999);
}

// Colours of heat, from the style sheet: a ramp between two of its properties.
function ramp(node) {
  const style = getComputedStyle(node);
  const of = (name) => style.getPropertyValue(name).trim().match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
  const [low, high] = [of('--heat-low'), of('--heat-high')];
  return (part) => low.map((value, n) => Math.round(value + (high[n] - value) * part));
}

// Paints columns of shades (0 to 1; 0 is nothing) on a canvas, a pixel for each, the first row at the top.
function paint(canvas, columns, rows, shade) {
  mark(canvas, 'width', columns);
  mark(canvas, 'height', rows);
  const context = canvas.getContext('2d');
  const image = context.createImageData(columns, rows);
  const colour = ramp(canvas);
  for (let x = 0; x < columns; x += 1) {
    for (let y = 0; y < rows; y += 1) {
      const part = shade(x, y);
      if (part > 0) {
        const [r, g, b] = colour(part);
        image.data.set([r, g, b, 255], (y * columns + x) * 4);
      }
    }
  }
  context.putImageData(image, 0, 0);
}

// Latencies over an hour: a column for each sample, a row for each factor of two. Only rows with requests are shown.
export function heatChart() {
  const canvas = el('canvas', { role: 'img' });
  const [above, below, start, words] = [el('span'), el('span'), el('span'), el('span', { class: 'now' })];
  const node = el('figure', { class: 'chart heat' }, el('figcaption', {}, el('span', {}, 'Latency'), words),
    el('div', { class: 'plot' }, canvas, el('div', { class: 'scale' }, above, below)),
    el('div', { class: 'axis', 'aria-hidden': 'true' }, start, el('span', {}, 'now')));
  node.show = (bands, firstNs) => {
    const shades = bands.map((text) => (text.match(/../g) ?? []).map((two) => parseInt(two, 16)));
    const used = shades.flatMap((column) => column.flatMap((value, band) => (value ? [band] : [])));
    const low = Math.max(0, Math.min(...used, 30) - 1);
    const high = Math.min(23, Math.max(...used, low + 4) + 1);
    const most = Math.max(1, ...shades.flat());
    const slots = slotsFor(shades.length);
    say(start, ago(slots));
    const from = slots - shades.length;
    paint(canvas, slots, high - low + 1, (x, y) => {
      const value = shades[x - from]?.[high - y] ?? 0;
      return value ? 0.15 + (0.85 * value) / most : 0;
    });
    const bound = (band) => latency(firstNs * 2 ** band);
    say(above, used.length ? bound(high) : '');
    say(below, used.length ? bound(Math.max(0, low - 1)) : '');
    say(words, used.length ? 'shade: how many requests' : 'no request');
    mark(canvas, 'aria-label', used.length
      ? `heat map of latencies in the last hour: from ${bound(Math.min(...used) - 1)} to ${bound(Math.max(...used))}`
      : 'heat map of latencies in the last hour: no request');
  };
  return node;
}

// The four charts of a history.
export function hour() {
  const charts = [
    [lineChart('Requests/s', [''], count), (h) => [h.iops]],
    [lineChart('MiB/s', ['read', 'write'], mib), (h) => [h.read, h.write]],
    [lineChart('p99', [''], (us) => latency(us * 1000)), (h) => [h.p99_us]],
  ];
  const heat = heatChart();
  const node = el('div', { class: 'charts' }, ...charts.map(([chart]) => chart), heat);
  node.show = (history) => {
    charts.forEach(([chart, columns]) => chart.show(columns(history)));
    heat.show(history.bands, history.first_band_ns);
  };
  return node;
}

// The heat map of a device: a strip for each figure of its cells.
export function strips(answer) {
  const names = Object.keys(answer.cells[0] ?? {}).filter((name) => name !== 'offset');
  const strip = (name) => {
    const values = answer.cells.map((one) => Math.max(0, Number(one[name]) || 0));
    const most = Math.max(...values);
    const isRatio = name.endsWith('_ratio');
    const canvas = el('canvas', { role: 'img', 'aria-label': `${name} by address, at most ${most}` });
    const told = isRatio ? `at most ${(most * 100).toFixed(0)}%` : `at most ${count(most)}`;
    const row = el('div', { class: 'strip' }, el('span', {}, name.replaceAll('_', ' ')), canvas, el('span', {}, told));
    const shade = (x) => (isRatio ? Math.min(1, values[x]) : most > 0 ? Math.log1p(values[x]) / Math.log1p(most) : 0);
    // The colours are known when the canvas is on the page.
    requestAnimationFrame(() => paint(canvas, values.length, 1, shade));
    return row;
  };
  return el('div', { class: 'strips' }, ...names.map(strip));
}
