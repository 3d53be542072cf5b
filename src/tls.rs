//! TLS of HTTP clients: rustls with the cryptography of `ring`, and the certificates that the
//! operating system trusts.
//!
//! reqwest is built without a default for its cryptography: its own is aws-lc-rs, whose C code takes
//! a minute of CPU to compile. Without a default, `reqwest::Client::new()` panics, so every client
//! of this crate starts here. Nothing is installed for the whole process, so a program that embeds
//! the library keeps its own choice.

use std::sync::Arc;

use reqwest::ClientBuilder;
use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt as _;

/// Why TLS cannot be set up, such as a system without any trusted certificate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(transparent)]
pub struct TlsError(#[from] rustls::Error);

/// A builder of HTTP clients that speak TLS 1.2 and 1.3, and HTTP/1.1 and HTTP/2.
///
/// # Errors
/// [`TlsError`].
pub fn client_builder() -> Result<ClientBuilder, TlsError> {
    Ok(ClientBuilder::new().tls_backend_preconfigured(config()?))
}

/// Like [`client_builder`], but it is the client's `build` that fails if TLS cannot be set up. The
/// reason is lost.
#[cfg(feature = "web")]
pub(crate) fn late_client_builder() -> ClientBuilder {
    client_builder().unwrap_or_else(|error| ClientBuilder::new().tls_backend_preconfigured(error))
}

fn config() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_platform_verifier()?.with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// reqwest recognizes the configuration only if both name the same version of rustls.
    #[test]
    fn reqwest_takes_the_configuration() {
        assert!(client_builder().unwrap().build().is_ok());
    }

    #[cfg(feature = "web")]
    #[test]
    fn a_configuration_that_failed_fails_the_build_of_the_client() {
        let failed = TlsError(rustls::Error::General("no certificates".to_owned()));

        assert!(
            ClientBuilder::new()
                .tls_backend_preconfigured(failed)
                .build()
                .is_err()
        );
    }
}
