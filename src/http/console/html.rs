//! Small parts of pages: times, amounts, marks, folded texts. `trusted` is the only place of the
//! console at which a string becomes HTML without being escaped; tidy holds that.

use callboard_actors::time::Timestamp;
use maud::{Markup, PreEscaped, html};

use crate::visible::visible;

/// HTML that the caller has written, with every text of others escaped.
pub(super) fn trusted(html: String) -> Markup {
    PreEscaped(html)
}

/// A number with separators, as people read it.
pub(super) fn number(value: u64) -> String {
    callboard_actors::journal::thousands(value)
}

/// A sum of money.
pub(super) fn money(micro_usd: u64) -> String {
    let usd = micro_usd as f64 / 1e6;
    match micro_usd {
        0 => "$0".to_owned(),
        1..10_000 => format!("${usd:.5}"),
        _ => format!("${usd:.2}"),
    }
}

/// A duration in one unit or two.
pub(super) fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", seconds, ms % 1000 / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A number of bytes.
pub(super) fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..1_048_576 => format!("{:.1} KiB", count as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", count as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", count as f64 / 1_073_741_824.0),
    }
}

/// A point in time; the script writes it in the person's time zone.
pub(super) fn time(at: Timestamp) -> Markup {
    let text = at.to_string();
    let short = text.get(..16).unwrap_or_default().replace('T', " ");
    html! { time datetime=(text) data-at=(at.0) title=(text) { (short) " UTC" } }
}

/// How long ago something happened; the script counts on.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> Markup {
    html! {
        time data-since=(at.0) datetime=(at) title=(at) { (duration(now.ms_since(at))) }
    }
}

/// How long until something happens; the script counts down.
pub(super) fn until(at: Timestamp, now: Timestamp) -> Markup {
    html! {
        time data-until=(at.0) datetime=(at) title=(at) { (duration(at.ms_since(now))) }
    }
}

/// A word in a coloured box.
pub(super) fn badge(class: &str, text: &str) -> Markup {
    html! { span class={ "badge " (class) } { (text) } }
}

/// A figure with its name above and a remark below, for a list of the class `cards`.
pub(super) fn card(name: &str, value: &str, more: &str) -> Markup {
    html! { li { span.dim.small { (name) } strong { (value) } span.dim.small { (more) } } }
}

/// The beginning of a text of at most `most` bytes, and how many bytes are left out.
pub(super) fn clip(text: &str, most: usize) -> (&str, usize) {
    let end = text.floor_char_boundary(most);
    let shown = text.get(..end).unwrap_or_default();
    (shown, text.len() - shown.len())
}

/// The beginning of a text as people see it, in at most `most` bytes, and how many bytes are left out.
/// What is left out is not looked at.
pub(super) fn clip_visible(text: &str, most: usize) -> (String, usize) {
    let (text, left) = clip(text, most);
    let mut shown = visible(text);
    // An escape is longer than its character.
    let more = clip(&shown, most).1;
    shown.truncate(shown.len() - more);
    (shown, left + more)
}

/// Text as it is, with its lines; lines of a diff are coloured.
pub(super) fn plain(text: &str, most: usize) -> Markup {
    let (shown, left) = clip_visible(text, most);
    html! {
        (code(&shown))
        @if left > 0 { p.dim.small { (bytes(left as u64)) " more in the entry" } }
    }
}

/// Text that may be shown, with its lines; lines of a diff are coloured.
pub(super) fn code(shown: &str) -> Markup {
    html! {
        pre.code {
            @if is_diff(shown) {
                @for line in shown.lines() { (diff_line(line)) }
            } @else { (shown) }
        }
    }
}

/// Whether a text is a unified diff.
fn is_diff(text: &str) -> bool {
    let mut lines = text.lines().take(40);
    lines.any(|line| line.starts_with("@@ ")) && text.contains("\n+") | text.contains("\n-")
}

fn diff_line(line: &str) -> Markup {
    let class = match line.as_bytes().first() {
        Some(b'+') => "add",
        Some(b'-') => "del",
        Some(b'@') => "hunk",
        _ => "same",
    };
    html! { span class=(class) { (line) } }
}

/// What an edit changes, as coloured lines.
pub(super) fn edit(old: &str, new: &str) -> Markup {
    let diff = similar::TextDiff::configure()
        .timeout(std::time::Duration::from_millis(50))
        .diff_lines(old, new);
    html! {
        pre.code {
            @for change in diff.iter_all_changes() {
                @let (class, sign) = match change.tag() {
                    similar::ChangeTag::Insert => ("add", "+"),
                    similar::ChangeTag::Delete => ("del", "-"),
                    similar::ChangeTag::Equal => ("same", " "),
                };
                span class=(class) { (sign) (change.value().trim_end_matches('\n')) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_for_people() {
        let durations = [5, 1_250, 61_000, 3_700_000, 90_000_000].map(duration);
        assert_eq!(
            durations,
            ["5 ms", "1.2 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]
        );
        assert_eq!(
            [0, 1_234, 2_500_000].map(money),
            ["$0", "$0.00123", "$2.50"]
        );
        assert_eq!([5, 2048, 3 << 20].map(bytes), ["5 B", "2.0 KiB", "3.0 MiB"]);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(clip("aé", 2), ("a", 2));
        assert_eq!(clip("aé", 3), ("aé", 0));
    }

    #[test]
    fn an_edit_shows_what_goes_and_what_comes() {
        let shown = edit("a\nb\n", "a\n<c>\n").into_string();

        assert!(shown.contains("<span class=\"del\">-b</span>"), "{shown}");
        assert!(
            shown.contains("<span class=\"add\">+&lt;c&gt;</span>"),
            "{shown}"
        );
    }
}
