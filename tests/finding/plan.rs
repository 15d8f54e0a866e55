//! What a plan says that was run and measured.

use serde_json::Value;

/// A plan in short.
#[derive(Debug, Default)]
pub struct Plan {
    /// Rows that were answered.
    pub rows: u64,
    /// Blocks that were asked for, found in memory or not.
    pub blocks: u64,
    /// Tables that were read from end to end.
    pub scanned: Vec<String>,
    /// Whether anything was sorted.
    pub sorted: bool,
    /// The tree, for whoever reads a failure.
    pub text: String,
}

impl Plan {
    /// Reads `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)`.
    pub fn of(explained: &Value) -> Self {
        let root = &explained[0]["Plan"];
        let number = |name: &str| root[name].as_u64().unwrap();
        let mut plan = Self {
            rows: number("Actual Rows"),
            blocks: number("Shared Hit Blocks") + number("Shared Read Blocks"),
            ..Self::default()
        };
        plan.walk(root, 1);
        plan
    }

    fn walk(&mut self, node: &Value, depth: usize) {
        let text = |name: &str| node[name].as_str().unwrap_or_default().to_owned();
        let kind = text("Node Type");
        match kind.as_str() {
            "Seq Scan" => self.scanned.push(text("Relation Name")),
            "Sort" | "Incremental Sort" => self.sorted = true,
            _ => {}
        }
        let names = ["Relation Name", "Index Name", "Index Cond", "Filter", "Sort Key"];
        let told: Vec<_> =
            names.iter().filter(|name| !node[**name].is_null()).map(|name| node[*name].to_string()).collect();
        let line = format!("{}{kind} {} rows={}\n", "  ".repeat(depth), told.join(" "), node["Actual Rows"]);
        self.text.push_str(&line);
        for child in node["Plans"].as_array().into_iter().flatten() {
            self.walk(child, depth + 1);
        }
    }
}
