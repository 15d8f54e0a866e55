//! Tokens that are recognised by their shape alone.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

#[cfg(test)]
mod tests;

/// Shapes that nothing else has: the literals of which one occurs in every match, and the pattern.
///
/// Every pattern takes all letters and digits that follow, so that nothing is left beside a hidden token that could
/// look like a token of its own.
const SHAPES: &[(&[&str], &str)] = &[
    // Mandate's own client secrets.
    (&["mds_"], r"mds_[A-Za-z0-9_-]{43,}"),
    // GitHub, GitLab, Bitbucket and Atlassian.
    (&["ghp_", "gho_", "ghu_", "ghs_", "ghr_"], r"gh[pousr]_[A-Za-z0-9_-]{20,}(?:\.[A-Za-z0-9_-]{16,}){0,2}"),
    (&["github_pat_"], r"github_pat_[A-Za-z0-9_]{20,}"),
    (
        &["glpat-", "glptt-", "gldt-", "glrt-", "glcbt-", "glsoat-"],
        r"gl(?:pat|ptt|dt|rt|cbt|soat)-[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9]+)*",
    ),
    (&["ATATT3", "ATBB"], r"(?:ATATT3[A-Za-z0-9_=-]{40,}|ATBB[A-Za-z0-9]{28,})"),
    // Chat and its webhooks.
    (&["xapp-"], r"xapp-[0-9]-[A-Za-z0-9-]{10,}"),
    (&["hooks.slack.com/"], r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_-]{16,}"),
    (&[":AA"], r"[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}"),
    // Clouds.
    (&["AKIA", "ASIA", "ABIA", "ACCA"], r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}(?-u:\b)"),
    (&["AIza"], r"AIza[A-Za-z0-9_-]{30,}"),
    (&["ya29."], r"ya29\.[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]+)*"),
    (&["GOCSPX-"], r"GOCSPX-[A-Za-z0-9_-]{20,}"),
    (&["1//0"], r"1//0[A-Za-z0-9_-]{30,}"),
    (&["doo_v1_", "dop_v1_", "dor_v1_"], r"do[opr]_v1_[A-Za-z0-9]{40,}"),
    (&["dapi"], r"dapi[a-f0-9]{32}[A-Za-z0-9-]*"),
    (&["hvs.", "hvb.", "hvr."], r"hv[sbr]\.[A-Za-z0-9_-]{20,}"),
    (&["dckr_pat_", "dckr_oat_"], r"dckr_[po]at_[A-Za-z0-9_-]{20,}"),
    (&[".atlasv1."], r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}"),
    (&["sbp_", "pscale_"], r"(?:sbp_[a-f0-9]{40}[A-Za-z0-9]*|pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.=-]{30,})"),
    (&["AGE-SECRET-KEY-"], r"AGE-SECRET-KEY-1[A-Za-z0-9]{50,}"),
    // Money and mail.
    (&["sk_live_", "sk_test_", "rk_live_", "rk_test_"], r"[sr]k_(?:live|test)_[A-Za-z0-9]{10,}"),
    (&["whsec_"], r"whsec_[A-Za-z0-9+/=]{16,}"),
    (&["shpat_", "shpca_", "shppa_", "shpss_"], r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}[A-Za-z0-9]*"),
    // Models and packages.
    (&["hf_"], r"hf_[A-Za-z0-9]{30,}"),
    (
        &["gsk_", "xai-", "pplx-", "nvapi-", "r8_"],
        r"(?:gsk_[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{40,}|pplx-[A-Za-z0-9]{40,}|nvapi-[A-Za-z0-9_-]{40,}|r8_[A-Za-z0-9]{37,})",
    ),
    (&["npm_"], r"npm_[A-Za-z0-9]{30,}"),
    (&["rubygems_"], r"rubygems_[a-f0-9]{48}[A-Za-z0-9]*"),
    (&["secret_", "ntn_", "lin_api_"], r"(?:secret_[A-Za-z0-9]{40,}|ntn_[A-Za-z0-9]{40,}|lin_api_[A-Za-z0-9]{32,})"),
    // Watching and design.
    (&["glsa_", "glc_"], r"(?:glsa_[A-Za-z0-9]{32}_[A-Za-z0-9]{8,}|glc_[A-Za-z0-9+/=]{32,})"),
    (&["sntrys_", "sntryu_"], r"sntry[su]_[A-Za-z0-9+/=_-]{30,}"),
    (&["figd_"], r"figd_[A-Za-z0-9_-]{30,}"),
];

/// Shapes whose beginning may go on without end and be none after all. Each is looked for by itself: in one pattern with
/// the others it would have every one of them wait for its end, and a text of many would be read as often.
const UNENDING_SHAPES: &[(&[&str], &str)] = &[
    // Chat.
    (
        &["xoxa-", "xoxb-", "xoxc-", "xoxd-", "xoxe-", "xoxe.", "xoxo-", "xoxp-", "xoxr-", "xoxs-"],
        r"xox[abcdeoprs][.-][A-Za-z0-9%./+=-]*[A-Za-z0-9]{8,}",
    ),
    (&["/api/webhooks/"], r"discord(?:app)?\.com/api/webhooks/[0-9]+/[A-Za-z0-9_-]{20,}"),
    // Networks, mail and tests.
    (&["tskey-"], r"tskey-[a-z]+-[A-Za-z0-9_-]{10,}"),
    (&["SG."], r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    (&["PMAK-"], r"PMAK-[A-Za-z0-9]{20,}-[A-Za-z0-9]{30,}"),
    // JSON web tokens, signed (three parts) and encrypted (five).
    (&["eyJ"], r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+){0,2}"),
];

/// Shapes that words joined by hyphens can have too: they count only when [`is_random`] says so.
const LOOSE_SHAPES: &[(&[&str], &str)] = &[
    // OpenAI, Anthropic and those who followed.
    (&["sk-"], r"sk-[A-Za-z0-9_-]{16,}"),
    (&["pypi-"], r"pypi-[A-Za-z0-9_-]{32,}"),
];

/// The literals that stand in every private key block.
const PEM_CUE: &str = "PRIVATE KEY";

/// What may stand before a token: nothing that belongs to a word, or the end of an escape sequence (of a JSON text
/// within a string, of a URL, of a terminal's colours).
const BEFORE: &str = r"(?:^|[^A-Za-z0-9_]|\\[abfnrtv]|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2}|\[[0-9;]*[mK])";

/// What may stand between two lines of a private key: white space, also escaped or written as a literal of some
/// language, quotes, diff marks and line numbers.
const PEM_GAP: &str = r#"(?:\s|\\+[nrt"]|["'+,|>-]|[0-9]{1,6}[:|\t ])*"#;

static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    let either = |shapes: &[(&[&str], &str)]| {
        let patterns: Vec<_> = shapes.iter().map(|(_, pattern)| *pattern).collect();
        patterns.join("|")
    };
    compiled(&format!("{BEFORE}(?:(?P<sure>{})|(?P<loose>{}))", either(SHAPES), either(LOOSE_SHAPES)))
});

static UNENDING: LazyLock<Vec<(&[&str], Regex)>> = LazyLock::new(|| {
    let alone = |(cues, pattern): &(&'static [&'static str], _)| (*cues, compiled(&format!("{BEFORE}({pattern})")));
    UNENDING_SHAPES.iter().map(alone).collect()
});

/// A private key block; one that was cut off counts too, the mere mention of its first line does not.
static PEM: LazyLock<Regex> = LazyLock::new(|| {
    let (first, last) = ("-----BEGIN[ A-Z0-9]{0,30}", "-----END[ A-Z0-9]{0,30}");
    let dashes = "PRIVATE KEY(?: BLOCK)?-----";
    let header = format!(r"(?:{PEM_GAP}[A-Za-z][A-Za-z-]*: [ -\[\]-~]*)");
    let (long, short) = ("[A-Za-z0-9+/=]{16,}", "[A-Za-z0-9+/=]{1,15}");
    let end = format!("(?:{PEM_GAP}{short}){{0,2}}{PEM_GAP}(?:{last}{dashes}|$)");
    compiled(&format!("{first}{dashes}{header}{{0,8}}(?:{PEM_GAP}{long})+(?:{end})?"))
});

fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the patterns are constants, and every test of redaction compiles them")
}

/// The literals without which [`find`] finds nothing.
pub(super) fn cues() -> impl Iterator<Item = &'static str> {
    let shapes = [SHAPES, UNENDING_SHAPES, LOOSE_SHAPES].into_iter().flatten();
    shapes.flat_map(|(cues, _)| *cues).copied().chain([PEM_CUE])
}

/// The places of all tokens, which may overlap.
pub(super) fn find(text: &str, found: &mut Vec<Range<usize>>) {
    found.extend(PEM.find_iter(text).map(|block| block.range()));
    for captures in PATTERN.captures_iter(text) {
        let loose = captures.name("loose").filter(|token| is_random(token.as_str()));
        found.extend(captures.name("sure").or(loose).map(|token| token.range()));
    }
    for (_, pattern) in UNENDING.iter().filter(|(cues, _)| cues.iter().any(|cue| text.contains(cue))) {
        found.extend(pattern.captures_iter(text).filter_map(|captures| Some(captures.get(1)?.range())));
    }
}

/// Whether some part between hyphens is too long and too mixed to be a word, or all of it to be words: capitals and
/// digits among so many letters.
fn is_random(token: &str) -> bool {
    let mixed = |part: &str| part.contains(|c: char| c.is_ascii_digit()) && part.contains(char::is_alphabetic);
    token.split('-').any(|part| part.len() >= 12 && mixed(part))
        || (token.len() >= 48 && mixed(token) && token.contains(char::is_uppercase))
}
