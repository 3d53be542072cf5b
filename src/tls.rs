//! TLS of HTTP clients: rustls with the cryptography of `ring`, and the certificates that the
//! operating system trusts.
//!
//! reqwest is built without a default for its cryptography: its own is aws-lc-rs, whose C code takes
//! a minute of CPU to compile. Without a default, `reqwest::Client::new()` panics, so every client
//! of this crate starts here. Nothing is installed for the whole process, so a program that embeds
//! the library keeps its own choice.

use std::sync::Arc;

use reqwest::ClientBuilder;
use rustls::{ClientConfig, pki_types::CertificateDer};
use rustls_platform_verifier::Verifier;

/// Why TLS cannot be set up, such as a system without any trusted certificate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(transparent)]
pub struct TlsError(#[from] rustls::Error);

/// A builder of HTTP clients that speak TLS 1.2 and 1.3, and HTTP/1.1 and HTTP/2.
///
/// # Errors
/// [`TlsError`].
pub fn client_builder() -> Result<ClientBuilder, TlsError> {
    Ok(ClientBuilder::new().tls_backend_preconfigured(config(Vec::new())?))
}

/// Like [`client_builder`], but speaks HTTP/1.1 alone, so each request under way has a connection
/// to itself, and trusts the certificates of this PEM text too.
///
/// # Errors
/// [`TlsError`], also if the text has no certificate.
#[cfg(feature = "load")]
pub(crate) fn http1_client_builder(ca_pem: Option<&[u8]>) -> Result<ClientBuilder, TlsError> {
    let authorities = ca_pem.map(authorities).transpose()?;
    let mut config = config(authorities.unwrap_or_default())?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(ClientBuilder::new()
        .tls_backend_preconfigured(config)
        .http1_only())
}

/// Reads certificates in PEM, at least one.
#[cfg(feature = "load")]
fn authorities(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, rustls::Error> {
    use rustls::pki_types::pem::PemObject as _;

    let none = || rustls::Error::General("no certificate in PEM".to_owned());
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    read.ok()
        .filter(|certificates| !certificates.is_empty())
        .ok_or_else(none)
}

/// Like [`client_builder`], but it is the client's `build` that fails if TLS cannot be set up. The
/// reason is lost.
#[cfg(feature = "web")]
pub(crate) fn late_client_builder() -> ClientBuilder {
    client_builder().unwrap_or_else(|error| ClientBuilder::new().tls_backend_preconfigured(error))
}

/// Trusts the system's certificates and these.
fn config(authorities: Vec<CertificateDer<'static>>) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Verifier::new_with_extra_roots(authorities, provider.clone())?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
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
