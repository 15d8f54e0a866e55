// Lints the OpenAPI document with redocly's rules: node lint.mjs DOCUMENT CONFIG. Fails on any finding.
import { formatProblems, getTotals, lint, loadConfig } from "@redocly/openapi-core";

const [document, configPath] = process.argv.slice(2);
const config = await loadConfig({ configPath });
const problems = await lint({ ref: document, config });
const totals = getTotals(problems);
formatProblems(problems, { format: "stylish", totals, version: "" });
console.log(`redocly: ${totals.errors} errors, ${totals.warnings} warnings`);
process.exit(totals.errors + totals.warnings === 0 ? 0 : 1);
