//! TLS of the mock: a certificate made for one run or read from PEM, and the protocols on offer.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
};

/// Streams on one HTTP/2 connection that hosted providers announce.
pub const HTTP2_STREAMS_MAX: u32 = 100;

/// A certificate chain and its private key.
#[derive(Debug, Clone, PartialEq)]
pub struct TlsIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
}

/// A new identity, and the certificate authority that clients must trust to accept it.
#[derive(Debug, Clone, PartialEq)]
pub struct MadeIdentity {
    /// What the server presents.
    pub identity: TlsIdentity,
    /// Its certificate in PEM. Its key is kept nowhere.
    pub ca_pem: String,
}

/// Why an identity cannot be made, read or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsIdentityError {
    /// The text has no certificate in PEM.
    #[error("the certificate is not in PEM")]
    NoCertificate,
    /// The text has no private key in PEM.
    #[error("the private key is not in PEM")]
    NoKey,
    /// A certificate could not be made.
    #[error("a certificate cannot be made: {0}")]
    Unmade(String),
    /// Such as a key that is not the certificate's.
    #[error("the certificate and its key cannot be used: {0}")]
    Unusable(String),
}

impl From<rcgen::Error> for TlsIdentityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Unmade(error.to_string())
    }
}

impl TlsIdentity {
    /// Makes a certificate authority, and a certificate of it for `localhost`, the loopback
    /// addresses and `names` (host names or addresses).
    ///
    /// # Errors
    /// [`TlsIdentityError::Unmade`], such as for a name that no certificate can have.
    pub fn make(names: &[String]) -> Result<MadeIdentity, TlsIdentityError> {
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::new(Vec::new())?;
        ca.distinguished_name
            .push(DnType::CommonName, "callboard mock-model CA");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_pem = ca.self_signed(&ca_key)?.pem();

        let key = KeyPair::generate()?;
        let mut all = ["localhost", "127.0.0.1", "::1"]
            .map(str::to_owned)
            .to_vec();
        all.extend_from_slice(names);
        let mut params = CertificateParams::new(all)?;
        params
            .distinguished_name
            .push(DnType::CommonName, "callboard mock-model");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &Issuer::new(ca, ca_key))?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Ok(MadeIdentity {
            identity: Self {
                chain: vec![certificate.der().clone()],
                key: Arc::new(key.into()),
            },
            ca_pem,
        })
    }

    /// Reads a certificate chain, the server's own certificate first, and its private key.
    ///
    /// # Errors
    /// [`TlsIdentityError::NoCertificate`], [`TlsIdentityError::NoKey`].
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, TlsIdentityError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(|_| TlsIdentityError::NoCertificate)?;
        if chain.is_empty() {
            return Err(TlsIdentityError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsIdentityError::NoKey)?;
        Ok(Self {
            chain,
            key: Arc::new(key),
        })
    }
}

/// How the mock serves https.
#[derive(Debug, Clone, PartialEq)]
pub struct MockTls {
    /// What the server presents.
    pub identity: TlsIdentity,
    /// The number of concurrent streams per connection that HTTP/2 announces; `None`: HTTP/1.1
    /// alone.
    pub http2_streams_max: Option<u32>,
}

impl MockTls {
    /// The protocols that are on offer, the preferred one first.
    fn protocols(&self) -> Vec<Vec<u8>> {
        let http2 = self.http2_streams_max.map(|_| b"h2".to_vec());
        http2.into_iter().chain([b"http/1.1".to_vec()]).collect()
    }

    /// The configuration of rustls: TLS 1.2 and 1.3 with the cryptography of ring.
    ///
    /// # Errors
    /// [`TlsIdentityError::Unusable`].
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, TlsIdentityError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder
                    .with_no_client_auth()
                    .with_single_cert(self.identity.chain.clone(), self.identity.key.clone_key())
            });
        let mut config = config.map_err(|error| TlsIdentityError::Unusable(error.to_string()))?;
        config.alpn_protocols = self.protocols();
        Ok(Arc::new(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(identity: TlsIdentity) -> MockTls {
        MockTls {
            identity,
            http2_streams_max: Some(HTTP2_STREAMS_MAX),
        }
    }

    #[test]
    fn an_identity_is_made_for_loopback_and_the_names_given() {
        let made = TlsIdentity::make(&["model.test".to_owned(), "localhost".to_owned()]).unwrap();

        assert!(made.ca_pem.starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(tls(made.identity).server_config().is_ok());
        assert_ne!(
            TlsIdentity::make(&[]).unwrap().ca_pem,
            TlsIdentity::make(&[]).unwrap().ca_pem
        );
    }

    #[test]
    fn what_is_no_identity_is_refused_and_no_key_is_shown() {
        let key = KeyPair::generate().unwrap();
        let made = TlsIdentity::make(&[]).unwrap();

        assert_eq!(
            TlsIdentity::from_pem(b"", key.serialize_pem().as_bytes()),
            Err(TlsIdentityError::NoCertificate)
        );
        assert_eq!(
            TlsIdentity::from_pem(made.ca_pem.as_bytes(), b"key"),
            Err(TlsIdentityError::NoKey)
        );
        let another =
            TlsIdentity::from_pem(made.ca_pem.as_bytes(), key.serialize_pem().as_bytes()).unwrap();
        let shown = format!("{another:?}");
        let secret: Vec<String> = key.serialize_der().iter().map(u8::to_string).collect();
        assert!(!shown.contains(&secret[..8].join(", ")), "{shown}");
        assert!(matches!(
            tls(another).server_config(),
            Err(TlsIdentityError::Unusable(_))
        ));
    }
}
