//! What pgbench is told: the statements, with something in place of each parameter.

use mandate::store::bare;

use super::asked::{self, Questions};
use super::pgbench::Script;
use super::sample::{Event, NUMBER, Sample, Step};
use super::seed::MODEL;

/// Events of a poll that finds some.
pub const FOUND: i64 = 10;

/// An id that sorts by the time of its making, as Mandate's do.
const NEW_ID: &str = "(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' ||
    substr(md5(random()::text), 1, 19))::uuid";
/// An id of its own for each number: unique per task is enough.
const ID_OF: &str = "lpad(to_hex(s), 32, '0')::uuid";
const DIGEST: &str = "'\\x0000000000000000000000000000000000000000000000000000000000000000'::bytea";

/// Where a statement finds its task, as expressions.
struct Where<'a> {
    task: &'a str,
    expected: &'a str,
    session: &'a str,
    alive: &'a str,
}

/// What each client looks up once, before its first statement: its task, and how long the log is.
fn begin(table: &str) -> String {
    format!(
        "\\if :begun = 0
         SELECT b.organization_id AS org, b.task_id AS task, b.session_id AS session, t.last_seq AS seq
         FROM bench.{table} b JOIN agent_runtime.tasks t ON t.organization_id = b.organization_id AND t.id = b.task_id
         WHERE b.client = :client_id \\gset
         \\set begun 1
         \\endif\n"
    )
}

/// An array in PostgreSQL's notation.
fn array<'a>(texts: impl Iterator<Item = Option<&'a str>>) -> String {
    let quote = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let texts: Vec<_> = texts.map(|text| text.map_or_else(|| "NULL".to_owned(), quote)).collect();
    format!("{{{}}}", texts.join(","))
}

impl Script {
    fn value(&mut self, name: &str, value: impl Into<String>) {
        self.values.push((name.to_owned(), value.into()));
    }

    /// The length of the log before a step. Like everything that is a parameter with the others and makes a difference
    /// to a plan, it is none that PostgreSQL knows when it plans.
    fn expected(&mut self, name: &str, step: &Step) -> String {
        self.value(&format!("{name}_expected"), step.expected.to_string());
        format!(":{name}_expected::bigint")
    }

    /// Nothing, which pgbench has no value for.
    fn none(&mut self) -> String {
        self.value("none", "none");
        "nullif(:none, 'none')".to_owned()
    }

    /// Adds a statement, with an expression in place of each parameter.
    fn statement(&mut self, sql: &str, parameters: &[String], end: &str) {
        let mut rest = sql;
        while let Some((before, after)) = rest.split_once('$') {
            let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            let number: usize = after[..digits].parse().unwrap_or_default();
            self.text.push_str(before);
            match number.checked_sub(1).and_then(|index| parameters.get(index)) {
                Some(expression) => self.text.extend(["(", expression, ")"]),
                // A statement that has grown a parameter is refused by PostgreSQL.
                None => self.text.extend(["$", &after[..digits]]),
            }
            rest = &after[digits..];
        }
        self.text.push_str(rest);
        self.text.push_str(end);
    }

    /// What every statement that writes begins with, `$1` to `$17`; the values are named `step_…`.
    fn events(&mut self, step: &str, events: &[&Event], place: &Where<'_>) -> Vec<String> {
        let count = events.len();
        let each = |text: fn(&Event) -> &str| array(events.iter().map(|event| Some(text(event))));
        self.value(&format!("{step}_types"), each(|event| &event.name));
        self.value(&format!("{step}_versions"), array(events.iter().map(|_| Some("1"))));
        self.value(&format!("{step}_kinds"), each(|event| &event.actor_kind));
        self.value(&format!("{step}_actors"), each(|event| &event.actor_id));
        self.value(&format!("{step}_channels"), array(events.iter().map(|event| event.channel.as_deref())));
        self.value(&format!("{step}_payloads"), each(|event| &event.payload));
        self.value(&format!("{step}_redacted"), array(events.iter().map(|_| None)));
        let digest = format!("\\x{}", "00".repeat(32));
        self.value(&format!("{step}_digests"), array(events.iter().map(|_| Some(digest.as_str()))));
        let Where { task, expected, session, alive } = place;
        let all = |what: &str| {
            format!("ARRAY(SELECT {what} FROM generate_series({expected} + 1, {expected} + {count}) AS s)")
        };
        let named = |name: &str| format!(":{step}_{name}");
        let in_session = events.iter().all(|event| event.in_session);
        let sessions = if in_session { format!("{session}::uuid") } else { "NULL::uuid".to_owned() };
        vec![
            ":org::uuid".to_owned(),
            (*task).to_owned(),
            (*expected).to_owned(),
            "now()".to_owned(),
            all("s"),
            all(ID_OF),
            named("types"),
            named("versions"),
            named("kinds"),
            named("actors"),
            named("channels"),
            format!("array_fill({sessions}, ARRAY[{count}])"),
            format!("array_fill(now(), ARRAY[{count}])"),
            named("payloads"),
            named("redacted"),
            named("digests"),
            format!("{alive}::uuid"),
        ]
    }

    /// An append of so many turns to the task of `place`.
    fn append(&mut self, sample: &Sample, count: usize, place: &Where<'_>) {
        let turns = vec![&sample.append.events[0]; count];
        let mut parameters = self.events("append", &turns, place);
        let last = format!("{} + {count}", place.expected);
        parameters.extend([last, DIGEST.to_owned(), "NULL::text".to_owned(), "NULL::text".to_owned()]);
        self.statement(bare::append(), &parameters, ";\n");
    }

    /// A usage report.
    fn report(&mut self, sample: &Sample, place: &Where<'_>) {
        let events: Vec<_> = sample.report.events.iter().collect();
        let mut parameters = self.events("report", &events, place);
        self.value("account", sample.account.to_string());
        self.value("model", sample.model.to_string());
        let last = format!("{} + 1", place.expected);
        let counts = ["1200", "300", "5000", "800"];
        parameters.extend([last.clone(), DIGEST.to_owned(), "0.0126::numeric".to_owned()]);
        parameters.extend(counts.map(str::to_owned));
        parameters.extend(["0", "0", "true", NEW_ID, ":account::uuid"].map(str::to_owned));
        // A key of its own for each report; as long as an id, which is what harnesses send.
        parameters.extend([format!("lpad(({last})::text, 36, '0')"), DIGEST.to_owned()]);
        parameters.extend([format!("{}::uuid", place.session), format!("'{MODEL}'"), ":model::uuid".to_owned()]);
        parameters.extend(counts.map(str::to_owned));
        parameters.extend(["3", "15", "0.3", "3.75", "0.0126", "true", "NULL", "0", "0"].map(str::to_owned));
        parameters.push(last);
        self.statement(bare::report(), &parameters, ";\n");
    }

    /// Any other change; `rows` are expressions of sessions opened and closed, requests opened and settled.
    fn change(&mut self, name: &str, step: &Step, place: &Where<'_>, rows: [&str; 4], unexpired: &str) {
        let events: Vec<_> = step.events.iter().collect();
        let mut parameters = self.events(name, &events, place);
        self.value(&format!("{name}_facts"), step.facts.as_str());
        parameters.push(format!(":{name}_facts"));
        parameters.extend(rows.map(str::to_owned));
        parameters.extend(["'[]'".to_owned(), unexpired.to_owned()]);
        self.statement(bare::change(), &parameters, ";\n");
    }
}

/// Appends of `count` events.
pub fn append(sample: &Sample, count: usize) -> Script {
    let mut script = Script { text: begin("work"), ..Script::default() };
    script.value("begun", "0");
    script.append(sample, count, &Where::WORK);
    script.text.extend(["\\set seq :seq + ", &count.to_string(), "\n"]);
    script
}

/// Signs of life.
pub fn heartbeat() -> Script {
    let mut script = Script { text: begin("work"), ..Script::default() };
    script.value("begun", "0");
    script.statement(bare::heartbeat(), &[":org::uuid", ":task::uuid", ":session::uuid"].map(str::to_owned), ";\n");
    script
}

/// Polls from so many events before the end on.
pub fn poll(behind: i64) -> Script {
    let mut script = Script { text: begin("reading"), ..Script::default() };
    script.value("begun", "0");
    script.value("behind", behind.to_string());
    script.value("most", "101");
    let parameters = [":seq::bigint - :behind::bigint", ":most::bigint", ":org::uuid", ":task::uuid"];
    script.statement(bare::poll(), &parameters.map(str::to_owned), ";\n");
    script
}

/// Usage reports.
pub fn usage(sample: &Sample) -> Script {
    let mut script = Script { text: begin("work"), ..Script::default() };
    script.value("begun", "0");
    script.report(sample, &Where::WORK);
    script.text += "\\set seq :seq + 1\n";
    script
}

/// Answers to questions, each client to its part of them.
pub fn resolve(sample: &Sample, questions: Questions) -> Script {
    let number = format!("\\set number :client_id * {} + :done\n", questions.each);
    let mut script = Script { text: number, ..Script::default() };
    script.value("done", "0");
    script.value("org", sample.organization.to_string());
    let step = &sample.asked.resolve;
    let id = asked::id_in_sql(":number");
    let expected = script.expected("resolve", step);
    let place = Where { task: &id, expected: &expected, session: "NULL", alive: &script.none() };
    script.value("settled", step.rows.as_str());
    let settled = format!("replace(:settled, '{}', {id}::text)", sample.asked.request);
    script.change("resolve", step, &place, ["'[]'", "'[]'", "'[]'", &settled], &format!("ARRAY[{id}]"));
    script.text += "\\set done :done + 1\n";
    script
}

/// Whole lives of tasks.
pub fn life(sample: &Sample) -> Script {
    let mut script = Script { text: "BEGIN;\n".to_owned(), ..Script::default() };
    script.value("org", sample.organization.to_string());
    script.value("agent", sample.agent.to_string());
    // The ids come with the number, as pgbench cannot make any.
    let end = format!(" AS number, {NEW_ID} AS task, {NEW_ID} AS session \\gset\n");
    script.statement(bare::next_number(), &[":org::uuid", ":agent::uuid"].map(str::to_owned), &end);
    let (expected, none) = (script.expected("create", &sample.create), script.none());
    let unborn = Where { task: ":task::uuid", expected: &expected, session: "NULL", alive: &none };
    let events: Vec<_> = sample.create.events.iter().collect();
    let mut parameters = script.events("create", &events, &unborn);
    script.value("create_facts", sample.create.facts.as_str());
    script.value("pinned", sample.create.rows.as_str());
    parameters.extend([":create_facts".to_owned(), format!("replace(:pinned, '{NUMBER}', :number)")]);
    script.statement(bare::create(), &parameters, ";\nCOMMIT;\n");

    let named = |rows: &str| format!("replace(:{rows}, '{}', :session)", sample.session);
    script.value("opened", sample.open.rows.as_str());
    script.value("closed", sample.close.rows.as_str());
    let expected = script.expected("open", &sample.open);
    let place = Where { expected: &expected, alive: &none, ..Where::WORK };
    script.change("open", &sample.open, &place, [&named("opened"), "'[]'", "'[]'", "'[]'"], "'{}'");
    let expected = script.expected("append", &sample.append);
    script.append(sample, 1, &Where { expected: &expected, ..Where::WORK });
    let expected = script.expected("report", &sample.report);
    script.report(sample, &Where { expected: &expected, ..Where::WORK });
    let expected = script.expected("close", &sample.close);
    let place = Where { expected: &expected, ..Where::WORK };
    script.change("close", &sample.close, &place, ["'[]'", &named("closed"), "'[]'", "'[]'"], "'{}'");
    script
}

impl Where<'static> {
    /// The task of the client.
    const WORK: Self = Self { task: ":task::uuid", expected: ":seq::bigint", session: ":session", alive: ":session" };
}
