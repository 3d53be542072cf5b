//! Rough counts without an encoder: for what is not worth a table, never for decisions (REQUIREMENTS K-26, K-27, CON-35).
//!
//! Pure.

/// A third of the characters: within 30 % for ordinary text (REQUIREMENTS K-26).
pub fn rough_tokens(text: &str) -> u64 {
    text.chars().count() as u64 / 3
}

/// By what the text is: prose by its share of Chinese characters, fenced code a third of its characters, a JSON document two fifths
/// (REQUIREMENTS K-27). Only what stands in a fence is code; the words of a language do not make prose code (BUG-44).
pub fn rough_tokens_by_content(text: &str) -> u64 {
    let trimmed = text.trim();
    if [('{', '}'), ('[', ']')].iter().any(|(open, close)| trimmed.starts_with(*open) && trimmed.ends_with(*close)) {
        return text.chars().count() as u64 * 2 / 5;
    }
    // Odd parts stand between two fences.
    text.split("```").enumerate().map(|(index, part)| if index % 2 == 1 { rough_tokens(part) } else { rough_prose(part) }).sum()
}

/// Characters through `4 (1 - r) + 1.5 r`, r being the share of Chinese characters.
fn rough_prose(text: &str) -> u64 {
    let (chinese, others) = text.chars().fold((0_u64, 0_u64), |(chinese, others), c| match c {
        '\u{4E00}'..='\u{9FFF}' => (chinese + 1, others),
        _ => (chinese, others + 1),
    });
    // n / (4 (1 - r) + 1.5 r) with r = chinese / n, in whole numbers.
    let (all, weight) = (chinese + others, 8 * others + 3 * chinese);
    (2 * all * all).checked_div(weight).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rough_count_is_a_third_of_the_characters_not_bytes() {
        assert_eq!((rough_tokens(""), rough_tokens("ab"), rough_tokens("abc"), rough_tokens("汉字汉字汉字")), (0, 0, 1, 2));
    }

    #[test]
    fn prose_code_and_json_are_weighed_apart() {
        assert_eq!(rough_tokens_by_content(""), 0);
        assert_eq!(rough_tokens_by_content(&"x".repeat(400)), 100);
        assert_eq!(rough_tokens_by_content(&"汉".repeat(150)), 100);
        assert_eq!(rough_tokens_by_content(&format!("{{{}}}", "1".repeat(98))), 40);
        let prose_and_code = format!("{}```{}```", "let x ".repeat(10), "y".repeat(30));
        assert_eq!(rough_tokens_by_content(&prose_and_code), 15 + 10);
    }
}
