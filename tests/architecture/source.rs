//! The crate's source as text: files, the code without comments and strings, and the rooms that it names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// One file of the crate.
pub struct Source {
    /// From the crate's folder on.
    pub path: PathBuf,
    /// As it stands.
    pub text: String,
    /// Without comments, the insides of strings, and what only tests see: nothing is left of a module of tests.
    pub code: String,
}

/// Every Rust file below `folder`.
pub fn read(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    collect(&root.join(folder), &mut files);
    files.sort();
    let mut of_tests = Vec::new();
    let mut sources = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let (code, modules) = without_tests(&plain(&text));
        of_tests.extend(modules.iter().map(|module| folder_of_modules(&file).join(module)));
        sources.push(Source { path: file.strip_prefix(root).unwrap().to_owned(), text, code });
    }
    for source in &mut sources {
        let file = root.join(&source.path);
        if of_tests.iter().any(|module| file.starts_with(module) || file == module.with_extension("rs")) {
            source.code.clear();
        }
    }
    sources
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn folder_of_modules(file: &Path) -> PathBuf {
    let is_root = ["mod.rs", "lib.rs", "main.rs"].iter().any(|name| file.ends_with(name));
    if is_root { file.parent().unwrap().to_owned() } else { file.with_extension("") }
}

/// The code without comments, and with empty strings.
pub fn plain(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = raw_string(rest, &code) {
            code.push_str("\"\"");
            length
        } else if first == '"' {
            code.push_str("\"\"");
            string(rest)
        } else if let Some(length) = character(rest) {
            code.push_str("' '");
            length
        } else {
            code.push(first);
            first.len_utf8()
        };
        rest = &rest[skipped..];
    }
    code
}

fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (index, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return index + 1,
            _ => {}
        }
    }
    rest.len()
}

fn raw_string(rest: &str, before: &str) -> Option<usize> {
    let after = rest.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let inside = after[hashes..].strip_prefix('"')?;
    if before.ends_with(|c: char| c.is_alphanumeric() && c != 'b') {
        return None;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    inside.find(&end).map(|at| 2 + hashes + at + end.len())
}

/// The length of a character literal; `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix('\'')?;
    let mut chars = inside.char_indices();
    let (_, first) = chars.next()?;
    if first == '\\' {
        let after = inside.get(2..)?;
        return after.find('\'').map(|at| 3 + at + 1);
    }
    let (at, second) = chars.next()?;
    (second == '\'').then_some(1 + at + 1)
}

/// The code without the items that only tests see, and the names of the modules that stand elsewhere.
fn without_tests(code: &str) -> (String, Vec<String>) {
    let (mut kept, mut modules, mut rest) = (String::new(), Vec::new(), code);
    while let Some(at) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..at]);
        let item = &rest[at..];
        let end = item.find(['{', ';']).unwrap();
        if item.as_bytes()[end] == b';' {
            modules.push(item[..end].split_whitespace().last().unwrap().to_owned());
            rest = &item[end + 1..];
        } else {
            rest = &item[end + block(&item[end..])..];
        }
    }
    kept.push_str(rest);
    (kept, modules)
}

/// The length of the block in braces with which `code` begins.
fn block(code: &str) -> usize {
    let mut depth = 0_i32;
    for (index, byte) in code.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    code.len()
}

/// Whether `word` stands in the code as a name of its own.
pub fn names(code: &str, word: &str) -> bool {
    words(code).any(|(_, found)| found == word)
}

/// Every name of the code with its place.
fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.split(move |c: char| !is_part(c))
        .filter(|word| !word.is_empty())
        .map(|word| (word.as_ptr() as usize - code.as_ptr() as usize, word))
}

/// The names right below the crate's root that the code of a module `depth` levels down reaches, by `crate::…` or by
/// `super::…`, grouped or not.
pub fn reached(code: &str, depth: usize) -> BTreeSet<String> {
    let code: String = code.split_whitespace().collect::<Vec<_>>().join(" ").replace(" ::", "::").replace(":: ", "::");
    let mut found = BTreeSet::new();
    for (at, word) in words(&code) {
        let mut rest = &code[at..];
        if word == "crate" {
            rest = &rest["crate".len()..];
        } else if word == "super" && !code[..at].ends_with("super::") {
            let mut climbed = 0;
            while let Some(above) = rest.strip_prefix("super") {
                climbed += 1;
                if climbed == depth {
                    rest = above;
                    break;
                }
                rest = above.strip_prefix("::").unwrap_or_default();
            }
            if climbed < depth {
                continue;
            }
        } else {
            continue;
        }
        let Some(path) = rest.strip_prefix("::") else { continue };
        match path.strip_prefix('{') {
            Some(group) => found.extend(heads(group)),
            None => found.extend(head(path)),
        }
    }
    found
}

fn head(path: &str) -> Option<String> {
    words(path).next().filter(|(at, _)| *at == 0).map(|(_, word)| word.to_owned())
}

/// The first names of a group's members.
fn heads(group: &str) -> Vec<String> {
    let (mut depth, mut member, mut members) = (0, String::new(), Vec::new());
    for c in group.chars() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => members.push(std::mem::take(&mut member)),
            _ => {}
        }
        if depth == 0 && c != ',' {
            member.push(c);
        }
    }
    members.push(member);
    members.iter().filter_map(|member| head(member.trim())).collect()
}
