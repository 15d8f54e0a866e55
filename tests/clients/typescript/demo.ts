// A whole task, played by an agent and two people with the client that openapi-typescript generates:
//
//     openapi-typescript openapi/mandate.json --output mandate.d.ts && tsc && node out/demo.js
//
// Needs openapi-fetch, openapi-typescript, typescript and @types/node in a package of type "module", the variables that
// `mandate dev --env-file` writes, and `mandate` on the PATH (or its place in MANDATE_BIN).

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import createClient from "openapi-fetch";

import type { components, paths } from "./mandate.js";

type Schemas = components["schemas"];

const COST = "0.152"; // 12,000 × 10 + 900 × 30 + 5,000 × 1 US dollars per million
const PATCH = "--- a/tests/login.ts\n+++ b/tests/login.ts\n";

function variable(name: string): string {
  const value = process.env[name];
  assert(value, `${name} is not set`);
  return value;
}

const baseUrl = variable("MANDATE_URL");
const org = variable("MANDATE_ORG");
const agent_slug = variable("MANDATE_AGENT");

/** Who calls with `token`. */
function caller(token: string) {
  return createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });
}

/** Service accounts get their short-lived tokens from Mandate itself. */
async function agentsToken(): Promise<string> {
  const { data, error } = await createClient<paths>({ baseUrl }).POST("/auth/token", {
    body: {
      grant_type: "client_credentials",
      client_id: variable("MANDATE_CLIENT_ID"),
      client_secret: variable("MANDATE_CLIENT_SECRET"),
    },
    headers: { "Content-Type": "application/x-www-form-urlencoded" },
  });
  assert(data, JSON.stringify(error));
  return data.access_token;
}

type Answer<T> = { data?: T; error?: unknown; response: Response };

/** The answer's body, which must come with that status. */
async function done<T>(call: Promise<Answer<T>>, status: number): Promise<T> {
  const { data, error, response } = await call;
  assert.equal(response.status, status, JSON.stringify(error));
  assert(data !== undefined);
  return data;
}

/** The entries of a page; the same route answers text where other media types are asked for. */
function entries<T>(page: string | T[]): T[] {
  assert(Array.isArray(page));
  return page;
}

async function refused(call: Promise<Answer<unknown>>, status: number, code: string): Promise<void> {
  const { error, response } = await call;
  assert.equal(response.status, status, JSON.stringify(error));
  assert.equal((error as Schemas["Problem"]).code, code);
}

function digestOf(content: string): string {
  return `sha256:${createHash("sha256").update(content).digest("hex")}`;
}

const ada = caller(variable("MANDATE_TOKEN"));
const grace = caller(variable("MANDATE_TOKEN_2"));
const agent = caller(await agentsToken());

// A person creates a task and says what it may cost.
const created = await done(
  ada.POST("/organizations/{org}/agent-tasks/", {
    params: { path: { org } },
    body: { agent_slug, title: "Fix the flaky login test", description: "It fails one time in ten.", budget: "2.00" },
  }),
  201,
);
assert.deepEqual([created.status, created.budget], ["queued", "2"]);
const task = created.short_id;
const path = { org, task };

// The agent opens a session, appends what it does and reports what it cost.
const opened = await done(
  agent.POST("/organizations/{org}/agent-tasks/{task}/sessions", {
    params: { path },
    body: { session_key: "typescript-1", harness_instance: "demo.ts" },
  }),
  201,
);
const session_id = opened.session.id;
const state = await done(
  agent.POST("/organizations/{org}/agent-tasks/{task}/sessions/{session}/heartbeat", {
    params: { path: { ...path, session: session_id } },
  }),
  200,
);
assert.deepEqual([state.status, state.control, state.budget_remaining], ["running", "run", "2"]);
const appended = await done(
  agent.POST("/organizations/{org}/agent-tasks/{task}/events", {
    params: { path },
    body: {
      session_id,
      events: [
        { type: "phase.changed", payload: { phase: "investigate", furthest_milestone: "reproduced" } },
        { type: "turn", payload: { body: "The test does not wait for the redirect." } },
        { type: "tool.called", payload: { tool: "shell", mutating: false, arguments: { command: "grep -rn sleep" } } },
      ],
    },
  }),
  201,
);
assert.deepEqual(appended.written.map((entry) => entry.type), ["phase.changed", "turn", "tool.called"]);
const report = {
  params: { path },
  body: {
    model_id: variable("MANDATE_MODEL"),
    tokens_in: 12_000,
    tokens_out: 900,
    cache_read_tokens: 5_000,
    idempotency_key: "typescript-1-call-1",
    session_id,
  },
};
const first = await done(agent.POST("/organizations/{org}/agent-tasks/{task}/usage", report), 201);
const repeat = await agent.POST("/organizations/{org}/agent-tasks/{task}/usage", report);
assert.equal(repeat.response.headers.get("Idempotency-Replayed"), "true");
assert.deepEqual([first.cost, repeat.data?.task.cost_total], [COST, COST], "the same report counts once");

async function ask(body: Schemas["AskPerson"]): Promise<string> {
  const answer = await done(
    agent.POST("/organizations/{org}/agent-tasks/{task}/requests", { params: { path }, body }),
    201,
  );
  assert.equal(answer.task.status, "blocked");
  return answer.request.id;
}

function resolve(person: typeof ada, request: string, body: Schemas["Resolve"]) {
  return person.POST("/organizations/{org}/agent-tasks/{task}/requests/{request}/resolve", {
    params: { path: { ...path, request } },
    body,
  });
}

// The agent asks; exactly one person answers.
const question = await ask({
  kind: "feedback",
  title: "Raise the timeout or wait for the redirect?",
  options: ["timeout", "redirect"],
  session_id,
});
const answered = await done(resolve(grace, question, { status: "answered", choice: "redirect" }), 201);
assert.equal(answered.request.resolution?.choice, "redirect");
await refused(resolve(ada, question, { status: "answered", choice: "redirect" }), 409, "request_resolved");

// The agent asks to merge a patch; a person approves the very bytes that she read.
const digest = digestOf(PATCH);
const kept = await done(
  agent.PUT("/organizations/{org}/artifacts/{digest}", {
    params: { path: { org, digest } },
    headers: { "Content-Type": "text/x-diff" },
    body: PATCH,
    bodySerializer: (bytes) => bytes,
  }),
  201,
);
const approval = await ask({
  kind: "approval",
  title: "Merge the fix?",
  why: "All checks are green.",
  artifact_digests: [digest],
  artifacts: [{ digest, name: "fix.patch", media_type: kept.media_type, size: kept.size }],
  session_id,
});
const read = await done(
  ada.GET("/organizations/{org}/artifacts/{digest}", { params: { path: { org, digest } }, parseAs: "text" }),
  200,
);
const right: Schemas["Resolve"] = { status: "approved", artifact_digests: [digestOf(read)] };
const wrong: Schemas["Resolve"] = { status: "approved", artifact_digests: [digestOf("another patch")] };
await refused(resolve(ada, approval, wrong), 409, "digest_mismatch");
await refused(resolve(agent, approval, right), 403, "person_required");
const approved = await done(resolve(ada, approval, right), 201);
assert.equal(approved.request.status, "approved");

function readTask() {
  return done(ada.GET("/organizations/{org}/agent-tasks/{task}", { params: { path } }), 200);
}

function end(name: string, body: Schemas["SetOutcome"]) {
  return agent.POST("/organizations/{org}/agent-tasks/{task}/outcome", {
    params: { path: { org, task: name } },
    body,
  });
}

// A part of the budget goes to a child; what it does not spend comes back.
const child = await done(
  agent.POST("/organizations/{org}/agent-tasks/{task}/children", {
    params: { path },
    body: {
      agent_slug,
      title: "Check the other tests",
      description: "Look for the same race.",
      budget: "0.25",
      session_id,
    },
  }),
  201,
);
const parent = await readTask();
assert.deepEqual([parent.set_aside, parent.budget_remaining], ["0.25", "1.598"]);
await done(end(child.short_id, { outcome: "done_acted" }), 200);
const waited = await done(
  agent.GET("/organizations/{org}/agent-tasks/{task}/events", {
    params: { path, query: { type: ["child.closed"], wait: 20 } },
  }),
  200,
);
assert.equal(waited.length, 1);

// The agent ends the task. Nothing that is closed reopens.
const result = { summary: "The test waits for the redirect.", artifacts: [digest] };
const closed = await done(end(task, { outcome: "done_acted", result, session_id }), 200);
assert.deepEqual([closed.status, closed.outcome, closed.budget_remaining], ["closed", "done_acted", "1.848"]);
await refused(end(task, { outcome: "no_reason_to_run", reason: "subject_gone" }), 409, "task_closed");
const ended = await readTask();

// The whole log, page by page.
const log: Schemas["EventView"][] = [];
for (;;) {
  const page = await done(
    ada.GET("/organizations/{org}/agent-tasks/{task}/events", {
      params: { path, query: { after_seq: log.at(-1)?.seq ?? 0, limit: 5 } },
    }),
    200,
  );
  if (page.length === 0) break;
  log.push(...entries(page));
}
const seqs = log.map((entry) => entry.seq);
assert.deepEqual(seqs, Array.from({ length: ended.last_seq }, (_, index) => index + 1), "a log has no gap");
const last = log.at(-1);
assert.equal(last?.digest, ended.log_digest);

// The organization's feed has the same events, in order.
const fed: number[] = [];
for (let after = ""; fed.at(-1) !== last?.seq; ) {
  const page = await done(
    ada.GET("/organizations/{org}/agent-events", { params: { path: { org }, query: { after, wait: 20 } } }),
    200,
  );
  fed.push(...entries(page).filter((entry) => entry.task.id === ended.id).map((entry) => entry.seq));
  after = entries(page).at(-1)?.cursor ?? after;
}
assert.deepEqual(fed, seqs);

// The exported log is proven without the server, by the head that the server signs.
const proof = await done(
  ada.GET("/organizations/{org}/agent-tasks/{task}/proof", { params: { path } }),
  200,
);
assert.equal(proof.log_digest, ended.log_digest);
const lines = await done(
  ada.GET("/organizations/{org}/agent-tasks/{task}/events", {
    params: { path },
    headers: { Accept: "application/x-ndjson" },
    parseAs: "text",
  }),
  200,
);
const folder = mkdtempSync(join(tmpdir(), "mandate-demo-"));
try {
  const file = join(folder, "log.ndjson");
  writeFileSync(file, lines);
  const mandate = process.env["MANDATE_BIN"] ?? "mandate";
  execFileSync(mandate, ["verify", file, "--head", ended.log_digest], { stdio: "inherit" });
} finally {
  rmSync(folder, { recursive: true });
}
console.log(
  `${task} closed as ${ended.outcome}: ${ended.last_seq} events, ${ended.cost_total} of ${ended.budget} US dollars`,
);
