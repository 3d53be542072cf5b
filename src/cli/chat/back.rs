//! Takes the last prompt back: the conversation is as before it, and its text is in the line again.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::{Chat, print_failure};
use crate::cli::{
    failure::Failure,
    session::Session,
    signals::Signals,
    terminal::{Paint, err, err_line, sanitize},
    typed,
};

/// Characters of the prompt that the question shows.
const SHOWN_CHARS: usize = 50;

/// The person's choice: yes or no, by one key.
fn choice(key: u8) -> Option<bool> {
    match key {
        b'y' | b'Y' => Some(true),
        b'n' | b'N' | b'\n' | b'\r' | 0x1b | 0x04 => Some(false),
        _ => None,
    }
}

impl Chat<'_> {
    /// Offers to take the last prompt back.
    pub(super) async fn take_back(&mut self, session: &Session) {
        let done = self.taken_back(session).await;
        print_failure(done);
    }

    async fn taken_back(&mut self, session: &Session) -> Result<(), Failure> {
        let rounds = session.handle.rounds().await?;
        let Some(last) = rounds.last() else {
            err_line("there is no prompt to take back");
            return Ok(());
        };
        // Files and output that went with the prompt are not typed again.
        let prompt = match self.sent.take() {
            Some((sent, typed)) if sent == last.user_message => typed,
            _ => last.user_message.clone(),
        };
        if !is_agreed(&prompt, &mut self.signals).await {
            err_line("no");
            return Ok(());
        }
        session.handle.rewind(last.round_id).await?;
        err_line("yes; files and commands are not undone");
        self.begun = Some(prompt);
        Ok(())
    }
}

/// Asks whether the prompt is to be taken back. An interrupt is a no.
async fn is_agreed(prompt: &str, signals: &mut Signals) -> bool {
    let line = prompt.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut shown: String = line.chars().take(SHOWN_CHARS).collect();
    if shown.len() < line.len() {
        shown.push('…');
    }
    let asks = "[y]es, [N]o ";
    err(&format!(
        "{} go back to before \"{}\"? {asks}",
        Paint::stderr().bold("?"),
        sanitize(&shown)
    ));
    let over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&over);
    let mut asked = tokio::task::spawn_blocking(move || {
        let unclear = || err(&format!("\n  Press one key by itself: {asks}"));
        typed::key(|| seen.load(Ordering::Relaxed), choice, unclear)
    });
    let answer = tokio::select! {
        biased;
        () = signals.next() => {
            over.store(true, Ordering::Relaxed);
            let _ = asked.await; // The terminal has its usual modes again.
            return false;
        }
        answer = &mut asked => answer,
    };
    answer.ok().flatten().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_takes_back() {
        assert_eq!([b'y', b'Y'].map(choice), [Some(true); 2]);
        assert_eq!([b'n', b'\n', 0x1b, 0x04].map(choice), [Some(false); 4]);
        assert_eq!([b'a', b' ', 0x80].map(choice), [None; 3]);
    }
}
