// Drives a Chromium for tools/rig/browser.py: a line of JSON on standard input is an order, and its answer is a line on
// standard output. Usage: node browser.mjs PLAYWRIGHT_CORE CHROMIUM

import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const [, , playwright, executablePath] = process.argv;
const { chromium } = createRequire(import.meta.url)(playwright);

// A sandbox of its own needs rights that root in a container may not have; every page here is our own.
const args = ['--no-sandbox', '--disable-gpu', '--font-render-hinting=none'];
const browser = await chromium.launch({ executablePath, args });
let page = null;
let problems = [];
let requests = [];

const orders = {
  async open({ url, width, height, dark, allow_errors: allowed = [] }) {
    const context = await browser.newContext({ viewport: { width, height }, colorScheme: dark ? 'dark' : 'light',
      ignoreHTTPSErrors: true, reducedMotion: 'reduce' });
    await page?.context().close();
    page = await context.newPage();
    [problems, requests] = [[], []];
    page.on('console', (message) => {
      const text = message.text();
      if (['error', 'warning'].includes(message.type()) && !allowed.some((part) => text.includes(part))) problems.push(text);
    });
    page.on('pageerror', (error) => problems.push(String(error)));
    page.on('request', (request) => requests.push(request.url()));
    page.on('dialog', (dialog) => dialog.accept());
    await page.goto(url);
  },
  evaluate: ({ expression }) => page.evaluate(expression),
  press: ({ key }) => page.keyboard.press(key),
  type: ({ text }) => page.keyboard.type(text),
  resize: ({ width, height }) => page.setViewportSize({ width, height }),
  shot: ({ path, full }) => page.screenshot({ path, fullPage: Boolean(full) }).then(() => null),
  problems: () => problems,
  requests: () => requests,
};

for await (const line of createInterface({ input: process.stdin })) {
  const { order, ...more } = JSON.parse(line);
  try {
    console.log(JSON.stringify({ value: (await orders[order](more)) ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
await browser.close();
