//! Certificate authorities, and good and bad certificates, made anew for each test.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

/// A certificate authority.
pub struct Ca {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its private key, in PEM.
pub struct Paper {
    pub certificate: String,
    pub key: String,
}

impl Ca {
    pub fn new() -> Ca {
        let mut params = CertificateParams::new([]).expect("no names are good names");
        // Without the number, two CAs of one name would differ only by their signatures.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        params.distinguished_name.push(DnType::CommonName, format!("CA {number}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Ca { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate for this name or IP address.
    pub fn paper(&self, name: &str) -> Paper {
        self.sign(CertificateParams::new([name.to_owned()]).expect("a good name"))
    }

    /// A certificate for this name that has expired.
    pub fn expired(&self, name: &str) -> Paper {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a good name");
        (params.not_before, params.not_after) =
            (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Paper {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Paper { certificate, key: key.serialize_pem() }
    }

    /// The arguments with which a server listens with TLS on `port` and shows `paper`. `clients`
    /// says whether clients have to show a certificate of this CA.
    pub fn arguments(&self, folder: &Path, port: u16, paper: &Paper, clients: &str) -> Vec<String> {
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("the server's directory can be written");
            path.to_str().expect("a path in UTF-8").to_owned()
        };
        let port = port.to_string();
        let files = [
            ("--tls-ca-cert-file", file("ca.pem", &self.pem)),
            ("--tls-cert-file", file("certificate.pem", &paper.certificate)),
            ("--tls-key-file", file("key.pem", &paper.key)),
            ("--tls-auth-clients", clients.to_owned()),
            ("--tls-port", port),
        ];
        files.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }
}
