// Opens the agent's page in a real Chromium, uses it, and prints what it has seen, as a line of JSON for each step.
//
//     node open_page.mjs NODE_MODULES CHROMIUM LINK PID WANTED [short]
//
// The page is opened by LINK. After the first line whoever started this has the process PID allocate, until its row has the text WANTED.
// With "short" that is all. A certificate that nobody has signed is taken: who checks certificates is tested by others.

import { createRequire } from "node:module";
import path from "node:path";

const [modules, executablePath, link, pid, wanted, length] = process.argv.slice(2);
const { chromium } = createRequire(path.join(modules, "x.js"))("playwright-core");

const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];
args.push("--disable-component-update", "--disable-sync");
const browser = await chromium.launch({ executablePath, args, timeout: 60_000 });
const say = (step) => console.log(JSON.stringify(step));
const wrong = [];

/** A page that notes whatever a page must not do: errors, dialogs, and requests elsewhere. */
async function opened(url, options) {
  const context = await browser.newContext({ ignoreHTTPSErrors: true, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => wrong.push(`dialog: ${dialog.message()}`));
  page.on("request", (request) => new URL(request.url()).host !== new URL(link).host && wrong.push(`request: ${request.url()}`));
  const answer = await page.goto(url);
  return { context, page, status: answer.status() };
}

const pids = (page) => page.locator("table.processes tbody button.open").allTextContents();

const { context, page, status } = await opened(link, { viewport: { width: 1280, height: 800 } });
await page.waitForSelector("#state.live");
const row = page.locator(`tr[data-pid="${pid}"]`);
await row.waitFor();
await page.locator("article.gpu canvas").first().waitFor();
say({ step: "open", status, url: page.url(), gpus: await page.locator("article.gpu").count(), plots: await page.locator("article.gpu canvas").count(), pids: await pids(page) });

await row.getByText(wanted, { exact: true }).first().waitFor();
say({ step: "changed", text: await row.innerText() });
if (length === "short") {
  say({ step: "wrong", wrong });
  await browser.close();
  process.exit(0);
}

await page.locator('th button[data-sort="pid"]').click();
const descending = await pids(page);
await page.locator('th button[data-sort="pid"]').click();
say({ step: "sorted", descending, ascending: await pids(page) });

await page.keyboard.press("/");
await page.keyboard.type(pid);
const filtered = await pids(page);
await page.keyboard.press("Escape");
say({ step: "filtered", filtered, all: await pids(page) });

await page.locator(`tr[data-pid="${pid}"] button`).focus();
await page.keyboard.press("Enter");
await page.locator("#panel h2").waitFor();
const panel = await page.locator("#panel").innerText();
await page.keyboard.press("Escape");
say({ step: "process", panel, closed: await page.locator("#panel").isHidden(), images: await page.locator("img").count() });

const narrow = { width: 400, height: 800 };
await page.setViewportSize(narrow);
// A plot gets its new width a moment after the window has it.
const fits = page.waitForFunction((width) => document.documentElement.scrollWidth <= width, narrow.width);
say({ step: "narrow", overflows: await fits.then(() => false, () => true) });

const plain = await opened(page.url(), { javaScriptEnabled: false });
say({ step: "without scripts", status: plain.status, text: await plain.page.locator("main").innerText(), images: await plain.page.locator("img").count() });
await plain.context.close();
await context.close();
say({ step: "wrong", wrong: [...wrong] });

const again = await opened(link, {});
say({ step: "again", status: again.status, text: await again.page.locator("main").innerText() });
await browser.close();
