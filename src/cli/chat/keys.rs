//! Keys at the prompt that the chat handles.

use std::path::PathBuf;

use super::{Chat, attach_file, print_failure};
use crate::cli::{
    attach, clipboard,
    editor::edited,
    failure::{Done, Failure},
    lines::Line,
    pasted::image_path,
    session::Session,
    terminal::err_line,
    unfold,
};

impl Chat<'_> {
    /// Does what a key at the prompt asks for.
    pub(super) async fn key(&mut self, session: &Session, key: Line) {
        match key {
            Line::Entered(_) | Line::Interrupted => {}
            Line::Rewind => self.take_back(session).await,
            Line::Unfold => print_failure(self.unfold(session).await),
            Line::Edit(text) => match edited(self.config, &text).await {
                Ok(saved) => self.begun = Some(saved),
                Err(failure) => {
                    self.begun = Some(text);
                    print_failure(Err(failure));
                }
            },
            Line::Clipboard => print_failure(self.attach_clipboard(session).await),
            Line::Image(pasted) => self.attach_pasted(pasted),
        }
    }

    /// Prints the whole output of the last call that was folded.
    async fn unfold(&mut self, session: &Session) -> Result<(), Failure> {
        let Some((call, what)) = self.view.unfolds() else {
            err_line("no call has ended yet");
            return Ok(());
        };
        match unfold::output(&session.handle, &call).await? {
            Some(output) => self.view.unfold(&what, &output),
            None => err_line("its output is no longer in the context"),
        }
        Ok(())
    }

    async fn attach_clipboard(&mut self, session: &Session) -> Result<(), Failure> {
        let workspace = session.app.workspace.clone();
        let read = tokio::task::spawn_blocking(move || clipboard::image(&workspace));
        let bytes = read
            .await
            .map_err(|error| Failure::work(error.to_string()))??;
        let image = attach::of_bytes(&bytes, "the clipboard")?;
        self.attached.push(image.title("clipboard"));
        err_line("attached to the next prompt: the image of the clipboard");
        Ok(())
    }

    /// Attaches an image whose path was pasted. What cannot be attached is text of the line.
    fn attach_pasted(&mut self, pasted: String) {
        let file = image_path(&pasted).unwrap_or_else(|| PathBuf::from(&pasted));
        let done: Result<Done, Failure> = attach_file(&file, &mut self.attached);
        if done.is_err() {
            self.begun = Some(pasted);
        }
    }
}
