//! Rough token counts where an encoder would cost too much. Not for decisions about a context.
//!
//! Pure.

/// A third of the characters. For ordinary text the result is within 30 % of the real count.
pub(crate) fn rough_tokens(text: &str) -> u64 {
    text.chars().count() as u64 / 3
}

/// An estimate by the kind of text: prose by its share of Chinese characters, fenced code at a
/// third of its characters, a JSON document at two fifths. Only text between fences counts as code;
/// keywords in prose do not.
pub fn rough_tokens_by_content(text: &str) -> u64 {
    let trimmed = text.trim();
    if [('{', '}'), ('[', ']')]
        .iter()
        .any(|(open, close)| trimmed.starts_with(*open) && trimmed.ends_with(*close))
    {
        return text.chars().count() as u64 * 2 / 5;
    }
    // Parts with an odd index lie between two fences.
    text.split("```")
        .enumerate()
        .map(|(index, part)| {
            if index % 2 == 1 {
                rough_tokens(part)
            } else {
                rough_prose(part)
            }
        })
        .sum()
}

/// Characters divided by `4 (1 - r) + 1.5 r`, where r is the share of Chinese characters.
fn rough_prose(text: &str) -> u64 {
    let (chinese, others) = text
        .chars()
        .fold((0_u64, 0_u64), |(chinese, others), c| match c {
            '\u{4E00}'..='\u{9FFF}' => (chinese + 1, others),
            _ => (chinese, others + 1),
        });
    // n / (4 (1 - r) + 1.5 r) with r = chinese / n, in integers.
    let all = chinese + others;
    let weight = 8 * others + 3 * chinese;
    (2 * all * all).checked_div(weight).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rough_count_is_a_third_of_the_characters_not_bytes() {
        assert_eq!(
            (
                rough_tokens(""),
                rough_tokens("ab"),
                rough_tokens("abc"),
                rough_tokens("汉字汉字汉字")
            ),
            (0, 0, 1, 2)
        );
    }

    #[test]
    fn prose_code_and_json_are_weighed_apart() {
        assert_eq!(rough_tokens_by_content(""), 0);
        assert_eq!(rough_tokens_by_content(&"x".repeat(400)), 100);
        assert_eq!(rough_tokens_by_content(&"汉".repeat(150)), 100);
        assert_eq!(
            rough_tokens_by_content(&format!("{{{}}}", "1".repeat(98))),
            40
        );
        let prose_and_code = format!("{}```{}```", "let x ".repeat(10), "y".repeat(30));
        assert_eq!(rough_tokens_by_content(&prose_and_code), 15 + 10);
    }
}
