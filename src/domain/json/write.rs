//! From the tree back to text.

use super::text::write_escaped;
use super::{Text, Value};

/// How keys are ordered and strings spelled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As sent.
    Verbatim,
    /// The same for every document that means the same.
    Canonical,
}

impl Value<'_> {
    /// The document without insignificant white space, verbatim in all else.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        self.write(Form::Verbatim, &mut out);
        out
    }

    /// A text that is equal for reordered, re-spaced and differently escaped documents: keys sorted by their
    /// unescaped text, strings escaped no more than needed. Numbers stay verbatim, so `1.0` and `1` differ.
    pub fn canonical(&self) -> String {
        let mut out = String::new();
        self.write(Form::Canonical, &mut out);
        out
    }

    fn write(&self, form: Form, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
            Self::Number(digits) => out.push_str(digits),
            Self::String(text) => write_text(text, form, out),
            Self::Array(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    item.write(form, out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                if form == Form::Canonical {
                    members.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
                }
                out.push('{');
                for (at, (key, value)) in members.into_iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    write_text(key, form, out);
                    out.push(':');
                    value.write(form, out);
                }
                out.push('}');
            }
        }
    }
}

fn write_text(text: &Text<'_>, form: Form, out: &mut String) {
    match form {
        Form::Verbatim => out.push_str(text.raw()),
        Form::Canonical => write_escaped(text.as_str(), out),
    }
}
