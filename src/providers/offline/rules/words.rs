//! Words of questions and of code: splitting, stems, synonyms. Tables and string work only.

/// Words that are never the subject of a question.
const STOP: &str = "a about above also am an and any anywhere are as at be been being below both but by can \
cannot case code codebase come could did do does doing done during else ever exactly explain file files find for gets \
get give given gives go goes handle handled handles happen happens happening has have having here how i if implementation in inside \
is it its itself just kind know let line lines live lives located locate look me my name named names of on one only onto or our out \
part place please point program project quote repo repository see show single so some something source stand such take takes tell than that \
the their them then there these they thing this those through thus to too up us use used uses using value values very want was we \
were what when where whether which while who whose why will work works would you your";

/// Words that ask for a definition but do not name it.
const DEFINING: &str = "contain contains declare declared declares declaration define defined defines definition hold holds implement \
implemented implements introduced kept mean means set sits specified specify stored written responsible purpose role";

/// Words that may be part of a name but do not identify it.
const FAINT: &str = "after before until between over under into from with without within all each every calculate calculated calculates \
calculation compute computed computes computing decide decided decides determine determined determines actually given";

/// Groups of words that code uses for the same concept. A word of a question matches every member
/// of its groups.
const FAMILIES: &[&str] = &[
    "delay backoff wait pause sleep interval",
    "maximum max limit cap bound ceiling upper most highest largest longest",
    "minimum min lower least smallest floor",
    "size length len long bytes",
    "count number num total many amount quantity",
    "decide determine choose select pick",
    "compute calculate",
    "capacity cap",
    "grow reserve realloc resize expand",
    "remove delete erase drop discard evict removal",
    "create construct make build instantiate new creation creates",
    "add insert append push put extend",
    "find lookup search locate query get",
    "check verify validate ensure valid is",
    "convert turn transform into from conversion",
    "parse decode deserialize read parser",
    "serialize encode write serializer",
    "format fmt display print show",
    "error err failure fail",
    "message msg",
    "connection conn connect",
    "configuration config conf setting option cfg",
    "initialize init start setup",
    "start launch spawn begin run",
    "stop kill terminate shutdown halt abort exit",
    "close shut",
    "lock mutex guard",
    "index idx position pos offset",
    "text string str",
    "character char",
    "integer int number",
    "iterate iterator iter traverse walk visit",
    "buffer buf",
    "pointer ptr",
    "reference ref",
    "argument arg parameter param",
    "request req",
    "response resp reply answer",
    "context ctx",
    "temporary tmp temp",
    "directory dir folder",
    "timeout deadline",
    "nesting nested depth deep recursion recursive",
    "retry attempt",
    "compare eq cmp equal equality",
    "clone copy duplicate",
    "random rand entropy chance",
    "authenticate auth authorization authentication",
    "merge join combine concatenate chain glue unsplit",
    "split divide partition separate",
    "clear reset truncate",
    "cancel abort",
    "schedule timer interval periodic periodically",
    "callback hook handler",
    "mailbox queue channel port inbox",
    "sort order ord",
    "indent indentation pretty",
    "remain remaining left rest",
    "consume advance skip",
    "increment inc increase",
    "decrement dec decrease",
    "previous prev",
    "current cur now",
    "command cmd",
    "database db sql",
    "permission perm",
    "allocate alloc allocation memory",
    "empty none",
    "estimate approx approximate",
    "escape quote",
    "environment env",
    "synchronize sync synchronous",
    "wrap wrapper",
    "hash hasher",
    "shard sharded",
];

/// Words that are too common in code to lead a search.
const WEAK: &str = "default data type number name new size default function method struct class constant variable field string list \
implementation option result self key int";

fn among(list: &str, word: &str) -> bool {
    list.split_ascii_whitespace().any(|entry| entry == word)
}

/// Whether a word is never the subject of a question.
pub(super) fn is_stop(word: &str) -> bool {
    among(STOP, word) || among(DEFINING, word)
}

/// Splits text into lower-case words; identifiers into their parts (`HTTPServer2` → `http`, `server2`).
pub(super) fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut token = String::new();
    let mut chars = text.chars().peekable();
    let mut lower = false;
    let mut upper = false;
    while let Some(c) = chars.next() {
        if !c.is_alphanumeric() {
            if !token.is_empty() {
                tokens.push(std::mem::take(&mut token));
            }
            (lower, upper) = (false, false);
            continue;
        }
        let next_is_lower = chars.peek().is_some_and(|next| next.is_lowercase());
        let border = c.is_uppercase() && (lower || (upper && next_is_lower));
        if border && !token.is_empty() {
            tokens.push(std::mem::take(&mut token));
        }
        (lower, upper) = (!c.is_uppercase(), c.is_uppercase());
        token.extend(c.to_lowercase());
    }
    if !token.is_empty() {
        tokens.push(token);
    }
    tokens
}

/// Returns the approximate stem of an English word: the common start of its forms.
pub(super) fn stem(word: &str) -> String {
    let strip = |suffix: &str, least: usize| {
        word.strip_suffix(suffix)
            .filter(|rest| rest.len() >= least && rest.is_ascii())
    };
    if let Some(rest) = strip("ies", 3) {
        return format!("{rest}y");
    }
    for suffix in ["ations", "ation", "ingly"] {
        if let Some(rest) = strip(suffix, 4) {
            return rest.to_owned();
        }
    }
    for suffix in ["ing", "ed"] {
        if let Some(rest) = strip(suffix, 3) {
            return without_double(rest);
        }
    }
    for suffix in ["sses", "shes", "ches", "xes"] {
        if let Some(rest) = strip(suffix, 1) {
            return format!("{rest}{}", suffix.strip_suffix("es").unwrap_or(suffix));
        }
    }
    let singular = if word.ends_with("ss") || word.ends_with("us") || word.ends_with("is") {
        None
    } else {
        strip("s", 3)
    };
    let base = singular.unwrap_or(word);
    match base.strip_suffix('e').filter(|rest| rest.len() >= 4) {
        Some(rest) => rest.to_owned(),
        None => base.to_owned(),
    }
}

fn without_double(stem: &str) -> String {
    let mut back = stem.chars().rev();
    match (back.next(), back.next()) {
        (Some(a), Some(b)) if a == b && !matches!(a, 'l' | 's' | 'f' | 'e' | 'o') => {
            stem.get(..stem.len() - 1).unwrap_or(stem).to_owned()
        }
        (Some('e'), _) if stem.len() > 4 => stem.get(..stem.len() - 1).unwrap_or(stem).to_owned(),
        _ => stem.to_owned(),
    }
}

/// A word of a question with all words that may stand for it in code.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Term {
    /// The word as the question has it.
    pub(super) word: String,
    /// Its own stem first, then the stems of its groups.
    pub(super) forms: Vec<String>,
    /// Whether it is too common to lead a search.
    pub(super) weak: bool,
    /// Its weight, 0 to 1, before its rarity is known.
    pub(super) weight: f64,
}

/// Letters that a token may have after a form of at least four letters.
const ENDING_MAX: usize = 5;

impl Term {
    /// Creates the term of a lower-case word.
    pub(super) fn from_word(word: &str) -> Self {
        let own = stem(word);
        let mut forms = vec![own.clone()];
        if let Some(rest) = own
            .strip_suffix('y')
            .filter(|rest| rest.len() >= 3 && !rest.ends_with(['a', 'e', 'o', 'u']))
        {
            forms.extend([format!("{rest}ies"), format!("{rest}ied")]);
        }
        for family in FAMILIES {
            let members: Vec<String> = family.split_ascii_whitespace().map(stem).collect();
            if members.contains(&own) {
                forms.extend(members.into_iter().filter(|member| *member != own));
            }
        }
        let mut seen = std::collections::HashSet::new();
        forms.retain(|form| seen.insert(form.clone()));
        let common = among(WEAK, word);
        let faint = among(FAINT, word);
        Self {
            word: word.to_owned(),
            forms,
            weak: common || faint,
            weight: if faint {
                0.25
            } else if common {
                0.45
            } else {
                1.0
            },
        }
    }

    /// How well a token of code matches this term: 1 for the word itself, 0.75 for a related one,
    /// else 0.
    pub(super) fn fits(&self, token: &str) -> f64 {
        let own = 1 + self
            .forms
            .iter()
            .skip(1)
            .take_while(|form| form.ends_with("ies") || form.ends_with("ied"))
            .count();
        match self.forms.iter().position(|form| form_fits(form, token)) {
            None => 0.0,
            Some(at) if at < own => 1.0,
            Some(_) => 0.75,
        }
    }

    /// Whether it may be part of a name but does not identify it.
    pub(super) fn is_faint(&self) -> bool {
        self.weight < 0.4
    }

    /// The best fit among tokens.
    pub(super) fn fits_any(&self, tokens: &[String]) -> f64 {
        tokens
            .iter()
            .map(|token| self.fits(token))
            .fold(0.0, f64::max)
    }

    /// Returns a case-insensitive regular expression that finds the term in a line.
    pub(super) fn pattern(&self) -> String {
        let forms: Vec<String> = self
            .forms
            .iter()
            .filter(|form| form.len() > 1)
            .map(|form| {
                if form.len() <= 3 {
                    format!(r"(?:(?-u:\b)|_){}(?:s?(?-u:\b)|_)", escape(form))
                } else {
                    escape(form)
                }
            })
            .collect();
        format!("(?:{})", forms.join("|"))
    }
}

fn form_fits(form: &str, token: &str) -> bool {
    match token.strip_prefix(form) {
        None => false,
        Some("" | "s") => true,
        Some(ending) => form.len() > 3 && ending.len() <= ENDING_MAX,
    }
}

/// Escapes text for a regular expression.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if !c.is_alphanumeric() && c != '_' && c != ' ' && c.is_ascii() {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_fall_into_words() {
        for (text, words) in [
            ("retry_delay", vec!["retry", "delay"]),
            ("BytesMut::split_off", vec!["bytes", "mut", "split", "off"]),
            ("HTTPServer2 MAX_LEN", vec!["http", "server2", "max", "len"]),
            ("Größe: 汉字", vec!["größe", "汉字"]),
            ("", vec![]),
        ] {
            assert_eq!(tokens(text), words, "{text}");
        }
    }

    #[test]
    fn forms_of_a_word_share_a_stem() {
        for (words, expected) in [
            (&["retry", "retries"][..], "retry"),
            (&["splitting", "split", "splits"], "split"),
            (&["computed", "computing", "computes", "compute"], "comput"),
            (&["allocation", "alloc"], "alloc"),
            (&["indexes", "index"], "index"),
            (&["class", "classes"], "class"),
            (&["status"], "status"),
            (&["calls", "called", "calling"], "call"),
        ] {
            for word in words {
                assert_eq!(stem(word), expected, "{word}");
            }
        }
    }

    #[test]
    fn relatives_fit_less_than_the_word_and_strangers_not() {
        let cap = Term::from_word("cap");
        let retry = Term::from_word("retries");

        assert_eq!(
            (cap.fits("cap"), cap.fits("max"), cap.fits("capture")),
            (1.0, 0.75, 0.0)
        );
        assert_eq!(
            (
                retry.fits("retry"),
                retry.fits("retried"),
                retry.fits("retrieve")
            ),
            (1.0, 1.0, 0.0)
        );
    }
}
