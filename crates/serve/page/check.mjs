// Opens the page of a running server in a browser, asks something, and checks what a reader would see.
//
//   node check.mjs http://127.0.0.1:8080 out.png ["a message"]
//
// Needs Debian's chromium and, in the current directory, `npm install playwright-core`; neither belongs to the
// repository. Writes out.png, out-phone.png and out-dark.png. FORERUN_API_KEY is given to a server that wants a key;
// FORERUN_LOSSY says that it was started with --lossy-max 0.05.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import process from "node:process";

// An import would be looked up beside this file, where nothing is installed.
const { chromium } = createRequire(`${process.cwd()}/`)("playwright-core");

const [url, out, message = "Count from one to forty in words, then count once more."] = process.argv.slice(2);
assert(url && out, "usage: node check.mjs URL OUT.png [MESSAGE]");
const named = (suffix) => out.replace(/(\.png)?$/, `${suffix}.png`);
const ANSWER_MS_MAX = 300_000;

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
  ],
});
try {
  const page = await browser.newPage({ viewport: { width: 1280, height: 860 }, colorScheme: "light" });
  const errors = [];
  const strangers = [];
  page.on("console", (entry) => { if (entry.type() === "error") errors.push(entry.text()); });
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => {
    const to = new URL(request.url());
    if (to.protocol !== "data:" && to.host !== new URL(url).host) strangers.push(request.url());
  });
  const key = process.env.FORERUN_API_KEY;
  if (key) await page.addInitScript((value) => sessionStorage.setItem("forerun-key", value), key);

  const response = await page.goto(url, { waitUntil: "networkidle" });
  assert(response.ok(), `the page answers with status ${response.status()}`);
  const policy = response.headers()["content-security-policy"] ?? "";
  assert(policy.includes("default-src 'none'"), `the page is served with its content policy, not "${policy}"`);
  assert((await page.title()).includes("Forerun"), "the page has its title");

  // Every value that the figures take while the answer streams; polling could miss a quick answer.
  await page.evaluate(() => {
    const seen = (window.seen = { "rate": [], "per-round": [] });
    for (const [id, values] of Object.entries(seen)) {
      const element = document.getElementById(id);
      new MutationObserver(() => {
        const streaming = !document.getElementById("stop").hidden;
        if (streaming && values.at(-1) !== element.textContent) values.push(element.textContent);
      }).observe(element, { childList: true, characterData: true, subtree: true });
    }
  });

  // A short answer shows as much, also on a slow machine.
  await page.fill('#max-tokens', '80');
  await page.fill("#input", message);
  await page.press("#input", "Enter");
  await page.waitForSelector("#transcript .answered", { timeout: 10_000 });
  await page.waitForSelector("#send:not([hidden])", { timeout: ANSWER_MS_MAX });

  assert.equal(await page.locator(".notice").count(), 0, `no error is shown: ${await page.locator(".notice").allTextContents()}`);
  const answer = await page.locator("#transcript .answered .text").last().textContent();
  assert(answer.trim().length > 0, "the transcript has an answer");
  const tokens = async (classes) => page.locator(classes).count();
  const accepted = await tokens("#transcript .token.accepted");
  const own = await tokens("#transcript .token.corrected, #transcript .token.plain");
  assert(accepted > 0, "some tokens are accepted");
  assert(own > 0, "some tokens are the target's");

  const seen = await page.evaluate(() => window.seen);
  for (const [id, values] of Object.entries(seen)) {
    const numbers = new Set(values.filter((value) => Number(value) > 0));
    assert(numbers.size >= 2, `#${id} changes while the answer streams: ${values.join(", ")}`);
  }
  assert(Number(await page.textContent("#rounds")) > 0, "the rounds are counted");
  assert.match(await page.textContent("#accepted"), /^\d+ of \d+/, "accepted of drafted is shown");
  assert.equal(await page.locator("#status").textContent(), "Done.", "the status says that it is done");

  // Loss is offered where the server allows it, and what it changed is told under the answer.
  const lossy = page.locator("#rule-choice option", { hasText: "lossy, up to 0.05 per token" });
  if (process.env.FORERUN_LOSSY) {
    await page.selectOption("#rule-choice", await lossy.getAttribute("value"));
    await page.fill("#input", "And the sky?");
    await page.press("#input", "Enter");
    await page.waitForSelector("#send[hidden]", { state: "attached", timeout: 10_000 });
    await page.waitForSelector("#send:not([hidden])", { timeout: ANSWER_MS_MAX });
    const said = await page.locator("#transcript .answered").last().textContent();
    assert.match(said, /lossy account:0.05, 0\.\d{4} per token changed/, "an answer says what was changed");
    assert.match(await page.textContent("#lossless"), /no/, "the panel says that it is not lossless");
  } else {
    assert.equal(await lossy.count(), 0, "no loss is offered unless the server allows it");
  }

  const fitsInWidth = () => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
  assert(await fitsInWidth(), "nothing scrolls sideways on a desktop");
  await page.screenshot({ path: named("") });
  await page.emulateMedia({ colorScheme: "dark" });
  await page.screenshot({ path: named("-dark") });
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize({ width: 390, height: 844 });
  await page.waitForTimeout(200); // the strip is drawn again for its new width
  assert(await fitsInWidth(), "nothing scrolls sideways on a phone");
  await page.screenshot({ path: named("-phone") });

  assert.deepEqual(errors, [], "the console has no errors");
  assert.deepEqual(strangers, [], "no other host is asked");
  console.log(`ok: ${accepted} accepted and ${own} other tokens; rates seen: ${seen.rate.length}; pictures at ${named("")}`);
} finally {
  await browser.close();
}
