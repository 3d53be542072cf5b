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

/// Lines without text in a row, from which on a person who decides sees their number.
const EMPTY_ROW: usize = 3;

/// Text on which a person decides: every line of it, and of empty lines in a row their number, so
/// that no line stands far below the others.
pub(super) fn whole_code(shown: &str) -> Markup {
    let class: fn(&str) -> &'static str = match is_diff(shown) {
        true => diff_class,
        false => |_: &str| "line",
    };
    let lines = shown.lines().map(|line| (class(line), line));
    html! { pre.code.whole { (rows(lines, &|_, line| html! { (line) })) } }
}

/// What an edit changes, as coloured lines on which a person decides.
pub(super) fn whole_edit(old: &str, new: &str) -> Markup {
    let diff = diff_of(old, new);
    let lines = diff.iter_all_changes().map(changed_line);
    let signed = |class: &str, line: &str| html! { (sign(class)) (line) };
    html! { pre.code.whole { (rows(lines, &signed)) } }
}

/// Lines with their classes, each as `line` makes it; of empty ones in a row their number.
fn rows<'a>(
    lines: impl Iterator<Item = (&'static str, &'a str)>,
    line: &dyn Fn(&'static str, &'a str) -> Markup,
) -> Markup {
    let lines: Vec<_> = lines.collect();
    let same = |a: &(&str, &str), b: &(&str, &str)| {
        a.0 == b.0 && a.1.trim().is_empty() && b.1.trim().is_empty()
    };
    html! {
        @for row in lines.chunk_by(same) {
            @match row {
                [(class, _), ..] if row.len() >= EMPTY_ROW => {
                    span class={ (class) " empty" } { (number(row.len() as u64)) " empty lines" }
                }
                _ => { @for (class, text) in row { span class=(class) { (line(class, text)) } } }
            }
        }
    }
}

/// Whether a text is a unified diff.
fn is_diff(text: &str) -> bool {
    let mut lines = text.lines().take(40);
    lines.any(|line| line.starts_with("@@ ")) && text.contains("\n+") | text.contains("\n-")
}

fn diff_class(line: &str) -> &'static str {
    match line.as_bytes().first() {
        Some(b'+') => "add",
        Some(b'-') => "del",
        Some(b'@') => "hunk",
        _ => "same",
    }
}

fn diff_line(line: &str) -> Markup {
    html! { span class=(diff_class(line)) { (line) } }
}

/// What an edit changes, as coloured lines.
pub(super) fn edit(old: &str, new: &str) -> Markup {
    html! {
        pre.code {
            @for (class, line) in diff_of(old, new).iter_all_changes().map(changed_line) {
                span class=(class) { (sign(class)) (line) }
            }
        }
    }
}

fn diff_of<'a>(old: &'a str, new: &'a str) -> similar::TextDiff<'a, 'a, 'a, str> {
    similar::TextDiff::configure()
        .timeout(std::time::Duration::from_millis(50))
        .diff_lines(old, new)
}

fn changed_line(change: similar::Change<&str>) -> (&'static str, &str) {
    let class = match change.tag() {
        similar::ChangeTag::Insert => "add",
        similar::ChangeTag::Delete => "del",
        similar::ChangeTag::Equal => "same",
    };
    (class, change.value().trim_end_matches('\n'))
}

fn sign(class: &str) -> &'static str {
    match class {
        "add" => "+",
        "del" => "-",
        _ => " ",
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
    fn a_person_who_decides_sees_the_last_line_below_many_empty_ones() {
        let shown = whole_code(&format!("ls{}rm -r .\n", "\n".repeat(40))).into_string();
        let rows = [
            "<span class=\"line\">ls</span>",
            "<span class=\"line empty\">39 empty lines</span>",
            "<span class=\"line\">rm -r .</span>",
        ];
        let expected = format!("<pre class=\"code whole\">{}</pre>", rows.concat());
        assert_eq!(shown, expected);

        let shown = whole_edit("a\n", &format!("a\n{}b\n", "  \n".repeat(9))).into_string();
        let rows = [
            "<span class=\"same\"> a</span>",
            "<span class=\"add empty\">9 empty lines</span>",
            "<span class=\"add\">+b</span>",
        ];
        let expected = format!("<pre class=\"code whole\">{}</pre>", rows.concat());
        assert_eq!(shown, expected);
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
