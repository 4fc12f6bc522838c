// Bundles src/ into one page that needs no network: docs/explorer.html, or the path that is given.

import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => new URL(path, import.meta.url);
const read = (path) => readFileSync(here(path), "utf8");

const bundle = { bundle: true, minify: true, write: false, target: "es2022", format: "iife" };
const { outputFiles: [script], metafile } = await build({
  ...bundle, entryPoints: [fileURLToPath(here("src/main.js"))], metafile: true,
});
const { outputFiles: [style] } = await build({ ...bundle, entryPoints: [fileURLToPath(here("src/style.css"))] });

// The licences of what is bundled, once each.
const packages = new Set(Object.keys(metafile.inputs).flatMap((path) => path.match(/node_modules\/([^/]+)\//)?.[1] ?? []));
const licences = new Map();
for (const name of [...packages].sort()) {
  const text = read(`node_modules/${name}/LICENSE`).trim();
  licences.set(text, [...(licences.get(text) ?? []), name]);
}
const notices = [...licences].map(([text, names]) => `${names.join(", ")}:\n${text}`).join("\n\n");

// What the page was built from; a test compares it with the sources.
const sources = ["package.json", "package-lock.json", "build.mjs", ...readdirSync(here("src")).sort().map((name) => `src/${name}`)];
const digest = createHash("sha256");
for (const name of sources) digest.update(`${name}\0${read(name)}\0`);

const page = read("src/index.html")
  .replace("<!doctype html>\n", `<!doctype html>\n<!-- built by \`make explorer\`, sources sha256 ${digest.digest("hex")} -->\n`)
  .replace("/*STYLE*/", () => style.text.trim())
  .replace("/*SCRIPT*/", () => script.text.trim().replaceAll("</script", "<\\/script"))
  .replace("</body>", () => `<!--\n${notices}\n-->\n</body>`);
const target = process.argv[2] ?? fileURLToPath(here("../docs/explorer.html"));
writeFileSync(target, page);
console.log(`${target}: ${Math.round(page.length / 1024)} KiB`);
