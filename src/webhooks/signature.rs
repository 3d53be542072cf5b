//! The signature of the Standard Webhooks specification: HMAC-SHA256 over the message's id, the time
//! and the body.
//!
//! Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::hmac;

/// The key that signs for a receiver.
pub(super) struct SigningKey(hmac::Key);

impl SigningKey {
    /// Reads a secret: `whsec_` and the key in base64.
    pub(super) fn of(secret: &str) -> Option<Self> {
        let bytes = STANDARD.decode(secret.strip_prefix("whsec_")?).ok()?;
        Some(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The signature, as one item of the header `webhook-signature`.
    fn sign(&self, id: &str, seconds: u64, body: &[u8]) -> String {
        let mut signed = hmac::Context::with_key(&self.0);
        signed.update(format!("{id}.{seconds}.").as_bytes());
        signed.update(body);
        format!("v1,{}", STANDARD.encode(signed.sign()))
    }
}

/// The header `webhook-signature`: one signature for each key.
pub(super) fn signatures(keys: &[SigningKey], id: &str, seconds: u64, body: &[u8]) -> String {
    let all: Vec<String> = keys.iter().map(|key| key.sign(id, seconds, body)).collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_specification_has_its_signature() {
        let key = || SigningKey::of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

        assert_eq!(signatures(&[key()], id, 1_614_265_330, body), expected);
        assert_eq!(
            signatures(&[key(), key()], id, 1_614_265_330, body),
            format!("{expected} {expected}")
        );
    }
}
