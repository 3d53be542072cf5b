//! Structured output: [`ConversationHandle::send_as`] sends a prompt with a JSON Schema and parses
//! the answer into a Rust value.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::{ConversationHandle, OutcomeError, Prompt, SendError};
use crate::{
    chat::RawJson,
    conversation::{OUTPUT_CODE, json_in},
    stream::RoundEnd,
};

/// Why [`ConversationHandle::send_as`] returned no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendAsError {
    /// The prompt was refused.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The round failed.
    #[error(transparent)]
    Outcome(#[from] OutcomeError),
    /// The answer does not match the schema, even after the model was asked again.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// An answer that does not match its schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the answer does not fit its schema: {faults}")]
pub struct OutputError {
    /// The mismatches, as text.
    pub faults: String,
    /// The model's last answer; empty when the schema was not usable.
    pub text: String,
}

impl ConversationHandle {
    /// Sends a prompt and parses the answer into a `T`. The model gets the JSON Schema of `T`, and
    /// may call tools before it answers. An answer that does not match is refused and the model is
    /// asked again, at most twice.
    ///
    /// ```
    /// # use callboard_actors::host::{ConversationHandle, SendAsError};
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct City {
    ///     name: String,
    ///     inhabitants: u64,
    /// }
    ///
    /// # async fn ask(conversation: ConversationHandle) -> Result<(), SendAsError> {
    /// let city: City = conversation.send_as("What is the largest city of Portugal?").await?;
    /// println!("{} has {} inhabitants", city.name, city.inhabitants);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`SendAsError::Output`] carries the last answer and its mismatches.
    ///
    /// # Cancel safety
    /// Dropping the future does not cancel the round.
    pub async fn send_as<T: DeserializeOwned + JsonSchema>(
        &self,
        prompt: impl Into<Prompt>,
    ) -> Result<T, SendAsError> {
        let nothing = |error: serde_json::Error| OutputError {
            faults: error.to_string(),
            text: String::new(),
        };
        let schema = RawJson::of(&schemars::schema_for!(T)).map_err(nothing)?;
        let mut reply = self.send(prompt).output_schema(schema.clone()).await?;
        let end = match reply.outcome().await {
            Err(OutcomeError::Failed { end }) => match &end.error {
                Some(failure) if failure.code == OUTPUT_CODE => {
                    return Err(OutputError {
                        faults: failure.message.clone(),
                        text: end.text.clone(),
                    }
                    .into());
                }
                _ => return Err(OutcomeError::Failed { end }.into()),
            },
            other => other?,
        };
        let RoundEnd {
            text, stop_reason, ..
        } = end;
        let check = self
            .setup()?
            .output_check(&schema)
            .map_err(|faults| OutputError {
                faults,
                text: text.clone(),
            })?;
        let value = json_in(&text, |value| {
            check(&value)?;
            serde_json::from_value(value).map_err(|error| error.to_string())
        });
        Ok(value.map_err(|faults| {
            let cut = if stop_reason.is_done() {
                String::new()
            } else {
                format!("the round ended with {}; ", stop_reason.code())
            };
            OutputError {
                faults: cut + &faults,
                text,
            }
        })?)
    }
}
