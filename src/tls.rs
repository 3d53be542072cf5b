//! TLS of clients: rustls with the cryptography of `ring`, and the certificates that the operating
//! system trusts, and others where the operator names them.
//!
//! reqwest is built without a default for its cryptography: its own is aws-lc-rs, whose C code takes
//! a minute of CPU to compile. Without a default, `reqwest::Client::new()` panics, so every client
//! of this crate starts here. Nothing is installed for the whole process, so a program that embeds
//! the library keeps its own choice.

use std::sync::Arc;

use reqwest::ClientBuilder;
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use rustls_platform_verifier::Verifier;

/// Why TLS cannot be set up.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Such as a system without any trusted certificate.
    #[error(transparent)]
    Setup(#[from] rustls::Error),
    /// A text that should hold certificates or a key in PEM form does not.
    #[error("{what} cannot be read as PEM: {reason}")]
    Pem {
        /// Which text.
        what: &'static str,
        /// The parser's reason.
        reason: String,
    },
}

/// Certificates beyond those of the system, each as the text of a PEM file.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Trust {
    /// Certificates of authorities to trust besides those of the system.
    pub authorities: Option<Vec<u8>>,
    /// The client's own certificate chain and its private key, for servers that ask for it.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

/// Shows no key.
impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trust")
            .field("authorities", &self.authorities.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}

/// A builder of HTTP clients that speak TLS 1.2 and 1.3, and HTTP/1.1 and HTTP/2.
///
/// # Errors
/// [`TlsError`].
pub fn client_builder() -> Result<ClientBuilder, TlsError> {
    let config = config(&Trust::default(), &[b"h2", b"http/1.1"])?;
    Ok(ClientBuilder::new().tls_backend_preconfigured(config))
}

/// Like [`client_builder`], but speaks HTTP/1.1 alone, so each request under way has a connection
/// to itself, and trusts the certificates of this PEM text too.
///
/// # Errors
/// [`TlsError`], also if the text has no certificate.
#[cfg(feature = "load")]
pub(crate) fn http1_client_builder(ca_pem: Option<&[u8]>) -> Result<ClientBuilder, TlsError> {
    let trust = Trust {
        authorities: ca_pem.map(<[u8]>::to_vec),
        ..Trust::default()
    };
    let config = config(&trust, &[b"http/1.1"])?;
    Ok(ClientBuilder::new()
        .tls_backend_preconfigured(config)
        .http1_only())
}

/// Like [`client_builder`], but it is the client's `build` that fails if TLS cannot be set up. The
/// reason is lost.
#[cfg(feature = "web")]
pub(crate) fn late_client_builder() -> ClientBuilder {
    client_builder().unwrap_or_else(|error| ClientBuilder::new().tls_backend_preconfigured(error))
}

/// Settings of TLS connections on which `protocols` are offered, in the order of preference.
pub(crate) fn config(trust: &Trust, protocols: &[&[u8]]) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let authorities = match &trust.authorities {
        Some(pem) => certificates(pem, "the file of authorities")?,
        None => Vec::new(),
    };
    let verifier = Verifier::new_with_extra_roots(authorities, provider)?;
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match &trust.client {
        Some((chain, key)) => {
            let chain = certificates(chain, "the client's certificate")?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|error| pem_error("the client's key", &error))?;
            builder.with_client_auth_cert(chain, key)?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| pem_error(what, &error))?;
    if found.is_empty() {
        return Err(TlsError::Pem {
            what,
            reason: "it holds no certificate".to_owned(),
        });
    }
    Ok(found)
}

fn pem_error(what: &'static str, error: &dyn std::error::Error) -> TlsError {
    TlsError::Pem {
        what,
        reason: error.to_string(),
    }
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
        let failed = TlsError::Setup(rustls::Error::General("no certificates".to_owned()));

        assert!(
            ClientBuilder::new()
                .tls_backend_preconfigured(failed)
                .build()
                .is_err()
        );
    }
}
